"""Folders that may go when nobody uses them: who uses one holds a lock on it, which ends with its process at the latest."""

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Lease:
    """Holds a folder as long as it lives; any number may.

    Args:
        folder: it.

    Raises:
        OSError: it is gone.
    """

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)


@contextmanager
def unless_leased(folder: Path) -> Iterator[bool]:
    """Gives whether nobody holds a folder; if so, whoever wants to waits until this ends.

    Raises:
        OSError: it is gone.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        is_free = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_free = False
        yield is_free
    finally:
        os.close(descriptor)
