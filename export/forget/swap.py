"""A folder put in the place of another by one step: whoever looks finds the old one or the new one, whole.

`renameat2` exchanges two names (Linux 3.15, on all common file systems). Where the system or the file system has no such thing, the old folder is
renamed to `.replaced-<name>-<random>` and the new one takes its name: for a moment there is neither, and what a kill leaves then, `recover` mends.
"""

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from emberline.building import flush_dir

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_REPLACED = ".replaced-"
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)


def put_in_place(new: Path, old: Path) -> None:
    """Give a flushed folder the name of another in the same parent, which has the new one's name afterwards, or a hidden one.

    Raises:
        OSError: it cannot be renamed; both are as they were.
    """
    flush_dir(new)
    if not exchange(new, old):
        hidden = old.parent / f"{_REPLACED}{old.name}-{secrets.token_hex(8)}"
        old.rename(hidden)
        try:
            new.rename(old)
        except OSError:
            hidden.rename(old)
            raise
        hidden.rename(new)
    flush_dir(old.parent)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names at once; false where that is not to be had here.

    Raises:
        OSError: one of them is not there, or cannot be renamed.
    """
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def recover(parent: Path) -> None:
    """Give back its name to each folder that a kill left between two names, and remove what was replaced."""
    for path in sorted(parent.glob(_REPLACED + "*")):
        final = parent / path.name.removeprefix(_REPLACED).rpartition("-")[0]
        if final.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rename(final)
    flush_dir(parent)


@cache
def _renameat2() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    found: Callable[..., int] = function
    return found
