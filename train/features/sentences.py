"""The sentences in which problems are told."""

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches


class Absence(str):
    """A sentence that tells that something is not there. It misleads where that thing was there, but mistyped and told of already."""

    __slots__ = ()


def prefixed(where: str, sentence: str) -> str:
    """The sentence with its place in front; an absence stays one."""
    text = f"{where}: {sentence}"
    return Absence(text) if isinstance(sentence, Absence) else text


def given_again(what: str, names: Iterable[str]) -> list[str]:
    """One sentence for each name that is given more than once."""
    return [f"{what} {name!r} is given {count} times" for name, count in Counter(names).items() if count > 1]


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """One sentence: the name is unknown, and the one that was likely meant, or else all that there are."""
    names = list(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"unknown {what} {name!r}; did you mean {close[0]!r}?"
    return f"unknown {what} {name!r}; known: {', '.join(names)}" if names else f"unknown {what} {name!r}; there is none"
