"""Whether files are others than they were, looked at no more often than pays."""

import time
from collections.abc import Sequence
from pathlib import Path

Stamp = tuple[tuple[int, int, int, int], ...]
LOOK_S = 1.0
"""Seconds between two looks at the same files."""


class Changes:
    """Looks at files, at most once in `LOOK_S`.

    Args:
        paths: of the files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._next = time.monotonic() + LOOK_S

    def is_time(self) -> bool:
        """Whether it is time to look again; if so, the next time is later."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK_S
        return True

    def stamp(self) -> Stamp:
        """What tells the files that are there now from those that are there later; a file that is missing has a stamp too."""
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> tuple[int, int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
