"""When to try again what went wrong: to see that it is still wrong may mean reading all of it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

MOST_TURNS = 64
Files = Mapping[str, tuple[int, int]]
"""Size and time of the last change of each file, by path."""


class Pacing:
    """One thing that is tried at each look until it goes well: after a failure at once where its files have changed since, and else after
    1, 2, 4, ... looks, 64 at most.
    """

    def __init__(self) -> None:
        self._refused: Files | None = None
        self._turns = self._left = 0

    def is_due(self, files: Callable[[], Files]) -> bool:
        """Whether this look is one to try it; to be called once a look.

        Args:
            files: what it is made of now.
        """
        self._left -= 1
        return self._refused is None or self._left <= 0 or files() != self._refused

    def failed(self, files: Files) -> None:
        """It was tried and went wrong with these files."""
        self._turns = self._left = min(2 * self._turns, MOST_TURNS) if files == self._refused else 1
        self._refused = files

    def went_well(self) -> None:
        """It was tried and went well, or there is nothing to try."""
        self._refused = None


def files_below(folder: Path) -> Files:
    """Every file in and below a folder; what is gone meanwhile is left out."""
    found = {}
    with suppress(OSError):
        for path in folder.rglob("*"):
            found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found
