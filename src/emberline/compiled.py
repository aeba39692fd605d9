"""C files of this package, compiled by the C compiler of the machine when they are first needed, and loaded.

What is compiled lies in the folder where Python keeps what it compiled of the same package, or in `~/.cache/emberline` where that may not be written.
Whoever makes an image without a compiler runs the module that has the kernel (`python -m ...`) while there is one.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from emberline.errors import MissingDependencyError

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-pthread")
COMPILE_TIMEOUT_S = 120
_LOG = logging.getLogger(__name__)


class Kernel:
    """One C file with a stand-in in Python, for machines where it cannot be compiled.

    Args:
        source: the C file.
        declare: tells ctypes the types of its functions.
        flags: of the compiler, besides `FLAGS`; asked for when the library is.
        stand_in: what does the work without it, in a word or two.
        without: what that means, for the log: `<without>, since <reason>`.
    """

    def __init__(
        self, source: Path, declare: Callable[[ctypes.CDLL], None], *, stand_in: str, without: str, flags: Callable[[], Sequence[str]] = tuple
    ) -> None:
        self._source, self._declare, self._flags = source, declare, flags
        self._stand_in, self._without = stand_in, without
        self._opening = threading.Lock()
        """Threads that need it at once compile once."""
        self._found: tuple[ctypes.CDLL | None] | None = None

    def open(self) -> tuple[ctypes.CDLL, Path]:
        """The library and its file.

        Raises:
            MissingDependencyError: it cannot be had; the message says why.
        """
        library, path = open_library(self._source, library_folders(self._source), self._flags())
        self._declare(library)
        return library, path

    def get(self) -> ctypes.CDLL | None:
        """The library; None where it cannot be had, which is logged once with the reason."""
        with self._opening:
            if self._found is None:
                self._found = (self._try(),)
            return self._found[0]

    def reason(self) -> str:
        """Why it cannot be had; empty where it can."""
        try:
            self.open()
        except MissingDependencyError as error:
            return str(error)
        return ""

    def forget(self) -> None:
        """Look for it again when it is next needed."""
        self._found = None

    def main(self) -> int:
        """Compile it, or find it compiled, and say where it is; 1 where it cannot be had."""
        try:
            _, path = self.open()
        except MissingDependencyError as error:
            print(f"{self._stand_in}: {error}", file=sys.stderr)
            return 1
        print(path)
        return 0

    def _try(self) -> ctypes.CDLL | None:
        try:
            return self.open()[0]
        except MissingDependencyError as error:
            _LOG.warning("%s, since %s", self._without, error)
            return None


def library_folders(source: Path) -> tuple[Path, ...]:
    """Where the compiled form of `source` may be, in order."""
    folders = [source.parent / "__pycache__"]
    with suppress(RuntimeError):  # a user that the system does not know has no home
        folders.append(Path.home() / ".cache" / "emberline")
    return tuple(folders)


def open_library(source: Path, folders: Sequence[Path], flags: Sequence[str] = ()) -> tuple[ctypes.CDLL, Path]:
    """Load the compiled form of a C file, which is made if it is in none of the folders. Its functions run without Python's lock.

    Args:
        source: the C file. Its text is part of the library's name, so that a change makes a new one.
        folders: searched in order; the first that can be written to takes what is compiled.
        flags: of the compiler, besides `FLAGS`; they are part of the name too.

    Returns:
        The library, and its file.

    Raises:
        MissingDependencyError: there is no compiler, it fails, or no folder can be written to; the message says which.
    """
    text = "\n".join([source.read_text(), *FLAGS, *flags, platform.machine()])
    name = f"{source.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    for folder in folders:
        with suppress(OSError):  # absent, or made for another C library
            return ctypes.CDLL(str(folder / name)), folder / name
    made = _compile(source, name, folders, flags)
    try:
        return ctypes.CDLL(str(made)), made
    except OSError as error:
        raise MissingDependencyError(f"{made} was compiled but does not load: {error}") from error


def _compile(source: Path, name: str, folders: Sequence[Path], flags: Sequence[str]) -> Path:
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    if compiler is None:
        raise MissingDependencyError(f"there is no C compiler ({', '.join(COMPILERS)})")
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as draft:
                made = Path(draft) / name
                _run([compiler, *FLAGS, *flags, "-o", str(made), str(source)])
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
