"""Messages about names that do not exist."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """One sentence: the name is unknown, and the one that was likely meant, or else all that there are."""
    names = list(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"unknown {what} {name!r}; did you mean {close[0]!r}?"
    return f"unknown {what} {name!r}; known: {', '.join(names)}" if names else f"unknown {what} {name!r}; there is none"
