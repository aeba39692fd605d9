"""The compiled form of the id index: `kernel.c`, for CPUs.

It is compiled once, by the C compiler of the machine, into the folder where Python keeps what it compiled of this package, or into
`~/.cache/emberline` where that may not be written. Whoever makes an image without a compiler runs `python -m emberline.serving.remap.native` while
there is one. A machine without either does the same work by numpy and torch, with the same answers: `emberline doctor` tells which it is.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from emberline.errors import MissingDependencyError

SOURCE = Path(__file__).with_name("kernel.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-pthread")
COMPILE_TIMEOUT_S = 120
_ADDRESS, _INT64, _UINT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int32
_LOG = logging.getLogger(__name__)
_OPENING = threading.Lock()
"""Threads that open models at once compile once."""


def library_folders(source: Path = SOURCE) -> tuple[Path, ...]:
    """Where the compiled form of `source` may be, in order."""
    folders = [source.parent / "__pycache__"]
    with suppress(RuntimeError):  # a user that the system does not know has no home
        folders.append(Path.home() / ".cache" / "emberline")
    return tuple(folders)


def open_library(source: Path, folders: Sequence[Path]) -> tuple[ctypes.CDLL, Path]:
    """Load the compiled form of a C file, which is made if it is in none of the folders. Its functions run without Python's lock.

    Args:
        source: the C file. Its text is part of the library's name, so that a change makes a new one.
        folders: searched in order; the first that can be written to takes what is compiled.

    Returns:
        The library, and its file.

    Raises:
        MissingDependencyError: there is no compiler, it fails, or no folder can be written to; the message says which.
    """
    text = "\n".join([source.read_text(), *FLAGS, platform.machine()])
    name = f"{source.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    for folder in folders:
        with suppress(OSError):  # absent, or made for another C library
            return ctypes.CDLL(str(folder / name)), folder / name
    made = _compile(source, name, folders)
    try:
        return ctypes.CDLL(str(made)), made
    except OSError as error:
        raise MissingDependencyError(f"{made} was compiled but does not load: {error}") from error


def _compile(source: Path, name: str, folders: Sequence[Path]) -> Path:
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    if compiler is None:
        raise MissingDependencyError(f"there is no C compiler ({', '.join(COMPILERS)})")
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as draft:
                made = Path(draft) / name
                _run([compiler, *FLAGS, "-o", str(made), str(source)])
                with made.open("rb") as stream:
                    os.fsync(stream.fileno())  # half a library, after a power failure, would end the process that loads it
                return made.replace(folder / name)  # at once, so that no other process loads half a file
    raise MissingDependencyError(f"none of {', '.join(map(str, folders))} can be written to")


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependencyError(f"the C compiler does not run: {error}") from error
    if done.returncode != 0:
        raise MissingDependencyError(f"the C compiler fails: {done.stderr.strip() or done.returncode}")


def native_library() -> ctypes.CDLL | None:
    """The index's compiled form; None where it cannot be had, which is logged once with the reason."""
    with _OPENING:
        return _kernel()


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    try:
        library, _ = _open_kernel()
    except MissingDependencyError as error:
        _LOG.warning("raw ids are looked up by numpy and torch, which is slower, since %s", error)
        return None
    return library


def _open_kernel() -> tuple[ctypes.CDLL, Path]:
    library, path = open_library(SOURCE, library_folders())
    lines = (_ADDRESS, _UINT64, _UINT64)  # the lines, the number of homes, the seed
    build, lookup = library.emberline_remap_build, library.emberline_remap_lookup
    build.argtypes, build.restype = (_ADDRESS, _ADDRESS, _INT64, *lines, _INT32, _ADDRESS), _INT32
    lookup.argtypes, lookup.restype = (_ADDRESS, _INT64, *lines, _INT64, _ADDRESS, _ADDRESS, _INT32), None
    return library, path


def main() -> int:
    """Compile the kernel, or find it compiled, and say where it is; 1 where it cannot be had."""
    try:
        _, path = _open_kernel()
    except MissingDependencyError as error:
        print(f"numpy and torch: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
