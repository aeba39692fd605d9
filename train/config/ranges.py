"""Checks that fields of a dataclass lie in a range; a field that is None is not set, and passes."""

import math
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], list[str]]
"""One sentence for each problem of a dataclass."""


def at_least_one(*names: str) -> Check:
    """A check that these fields are 1 or more."""
    return _check(names, lambda value: value >= 1, "at least 1")


def above_zero(*names: str) -> Check:
    """A check that these fields are finite and above 0."""
    return _check(names, lambda value: 0.0 < value < math.inf, "a number above 0")


def zero_or_more(*names: str) -> Check:
    """A check that these fields are finite and not negative."""
    return _check(names, lambda value: 0.0 <= value < math.inf, "a number of 0 or more")


def _check(names: tuple[str, ...], is_good: Callable[[float], bool], wanted: str) -> Check:
    def check(config: Any) -> list[str]:
        values = {name: getattr(config, name) for name in names}
        return [f"{name} must be {wanted}, found {value}" for name, value in values.items() if value is not None and not is_good(value)]

    return check
