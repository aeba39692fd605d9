"""Ranges of fields, at their borders."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from emberline.train.config.ranges import Check, above_zero, at_least_one, zero_or_more


@dataclass(frozen=True)
class Numbers:
    a: float | None
    b: float | None = None


@pytest.mark.parametrize(
    ("check", "wanted", "good", "bad"),
    [
        (at_least_one, "at least 1", (1, 2**63), (0, -1)),
        (above_zero, "a number above 0", (1e-300, 1, 1e300), (0.0, -0.0, -1.0, math.inf, math.nan)),
        (zero_or_more, "a number of 0 or more", (0, -0.0, 1e300), (-1e-300, math.inf, -math.inf, math.nan)),
    ],
)
def test_borders(check: Callable[..., Check], wanted: str, good: tuple[float, ...], bad: tuple[float, ...]) -> None:
    assert [check("a", "b")(Numbers(value, value)) for value in (None, *good)] == [[]] * (len(good) + 1)
    for value in bad:
        assert check("a", "b")(Numbers(value, value)) == [f"a must be {wanted}, found {value}", f"b must be {wanted}, found {value}"]
        assert check("b")(Numbers(value)) == []
