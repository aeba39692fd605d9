"""Sizes of memory as people write them."""

import math
import re

from emberline.errors import ConfigError

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse_size(text: str) -> int:
    """Bytes of a size such as `80GiB`, `1.5 TB` or `4096`.

    Raises:
        ConfigError: it is no size.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    size = float(match[1]) * _UNITS.get(match[2], math.nan) if match is not None else math.nan
    if not math.isfinite(size):
        raise ConfigError(f"{text!r} is no size: write a number and a unit, such as 80GiB (known: {', '.join(unit for unit in _UNITS if unit)})")
    return round(size)


def size_text(size: float) -> str:
    """A size in the largest unit that leaves a number of 1 or more: `66.5 GiB`."""
    steps = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
    unit, step = next(((unit, step) for unit, step in steps if size >= step), ("B", 1))
    number = size / step
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
