"""Which dense optimiser a parameter belongs to, by its name."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from emberline.errors import ConfigError

_SHOWN = 3


def assign_parts(names: Iterable[str], patterns: Sequence[str]) -> list[list[str]]:
    """Cut parameters into parts: each belongs to the first pattern that fits its whole name.

    Args:
        names: whole names of parameters.
        patterns: regular expressions.

    Returns:
        the names of each pattern, then those that no pattern fits, in their order.

    Raises:
        ConfigError: a pattern fits no name, or only names that earlier ones have.
    """
    known = list(names)
    compiled = [re.compile(pattern) for pattern in patterns]
    parts: list[list[str]] = [[] for _ in range(len(patterns) + 1)]
    for name in known:
        place = next((place for place, pattern in enumerate(compiled) if pattern.fullmatch(name)), len(patterns))
        parts[place].append(name)
    problems = [_problem(pattern, known) for pattern, part in zip(patterns, parts, strict=False) if not part]
    if problems:
        raise ConfigError([f"train_config: dense_optimizer: part_optimizers: {problem}" for problem in problems])
    return parts


def _problem(pattern: str, names: Sequence[str]) -> str:
    taken = [name for name in names if re.fullmatch(pattern, name)]
    if taken:
        return f"regex_pattern {pattern!r} fits only what earlier patterns have: {_listed(taken)}; put it before them"
    inside = [name for name in names if re.search(pattern, name)]
    if inside:
        return f"regex_pattern {pattern!r} must fit a parameter's whole name; it fits a part of {_listed(inside)}; try '.*{pattern}.*'"
    close = get_close_matches(re.sub(r"[.*\\]+", ".", pattern), names, n=_SHOWN, cutoff=0.3)
    near = f"; near: {_listed(close)}" if close else f"; there are {_listed(names)}"
    return f"regex_pattern {pattern!r} fits no dense parameter{near if names else '; the model has none'}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
