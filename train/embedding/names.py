"""Which names the embedding system can take."""

from collections.abc import Iterable


def name_problems(what: str, name: str) -> Iterable[str]:
    """Keys are cut at dots, and `@` joins a feature and its table."""
    if not name or "." in name or "@" in name:
        yield f"{what} {name!r} must not be empty, nor hold '.' or '@'"
