"""Folders that are there whole or not at all: filled under a hidden name beside the final one, flushed to disk, then renamed once.

`<parent>/.building-<random>/` is being filled by a living process, which holds a lock on it. What a killed process leaves stays hidden, and the next
that builds in the same parent removes it.
"""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BUILDING_PREFIX = ".building-"
_REMOVING_PREFIX = ".removing-"
"""Of what is no more, and whose files are being deleted."""
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


@contextmanager
def building_dir(parent: Path) -> Iterator[Path]:
    """A hidden folder in `parent`, which is made too; removed at the end, unless it was renamed.

    Raises:
        OSError: it cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_stale_builds(parent)
    path, lock = _make_locked_dir(parent)
    try:
        yield path
    finally:
        # Published: the path is gone and there is nothing to remove.
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def rename_new(path: Path, final: Path) -> bool:
    """Give a flushed folder its final name, flushed too; false where a folder of that name is there.

    Raises:
        OSError: it cannot be renamed.
    """
    flush_dir(path)
    try:
        path.rename(final)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    flush_dir(final.parent)
    return True


def hide(path: Path, parent: Path) -> Path | None:
    """Give what is to be removed a hidden name in `parent`, by one rename; what a kill leaves of it there, the next that builds in `parent` removes.

    Returns:
        Its new path; None where it is gone.

    Raises:
        OSError: it cannot be renamed.
    """
    hidden = parent / f"{_REMOVING_PREFIX}{path.name}-{secrets.token_hex(8)}"
    try:
        path.rename(hidden)
    except FileNotFoundError:
        return None
    return hidden


def remove_stale_builds(parent: Path) -> list[Path]:
    """Remove what processes that were killed left behind; a folder whose process lives is left alone.

    Returns:
        The folders that were removed.
    """
    removed = sorted(parent.glob(_REMOVING_PREFIX + "*"))
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    for path in sorted(parent.glob(BUILDING_PREFIX + "*")):
        lock = _try_lock(path)
        if lock is None:
            continue
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        removed.append(path)
    return removed


def flush_tree(root: Path) -> None:
    """Wait until every file and folder below `root` is on disk."""
    for path in root.rglob("*"):
        if path.is_dir():
            flush_dir(path)
            continue
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def flush_dir(path: Path) -> None:
    """Wait until the names in a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_locked_dir(parent: Path) -> tuple[Path, int]:
    """A new hidden folder and the descriptor that holds its lock.

    Another process may take a folder that is not locked yet for a stale one and remove it: then a new one is made.
    """
    while True:
        path = parent / (BUILDING_PREFIX + secrets.token_hex(8))
        path.mkdir()
        lock = _try_lock(path)
        if lock is None:
            continue
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(lock).st_ino:
                return path, lock
        os.close(lock)


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed or its process ends; None where another holds it or the folder is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
