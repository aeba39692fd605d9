"""When requests are due."""

from collections.abc import Iterator

import numpy as np

PATTERNS = ("poisson", "constant")
"""As callers who know nothing of each other come, or one after the other at equal distances."""
_PART = 1024


def arrivals(pattern: str, rate: float, duration_s: float, source: np.random.Generator) -> Iterator[float]:
    """Seconds after the start, ascending, in [0, duration_s).

    Args:
        pattern: one of `PATTERNS`.
        rate: requests a second; `constant` gives exactly `rate * duration_s` of them, rounded up.
        duration_s: how long they come.
        source: of chance.
    """
    if pattern == "constant":
        number = 0
        while (due := number / rate) < duration_s:
            yield due
            number += 1
        return
    last = 0.0
    while True:
        for due in (last + source.exponential(1 / rate, _PART).cumsum()).tolist():
            if due >= duration_s:
                return
            yield due
            last = due
