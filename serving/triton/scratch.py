"""What a started Triton needs on disk and in shared memory, by whose it is: what was left behind by a process that was killed is removed later."""

import os
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from zlib import crc32

SHM = Path("/dev/shm")
_FOLDER = re.compile(r"emberline-triton-(\d+)-(\d+)-(\d+)-\w+")
_START_FIELD = 19
"""In `/proc/<pid>/stat` after the name: clock ticks from the machine's start to the process's."""


@dataclass(frozen=True)
class Owner:
    """A process, told apart from every other that has or had its number.

    Args:
        namespace: of process numbers: those of another container or machine, which may share the folder, mean nothing here.
        pid: its number.
        started: when it was started, in clock ticks.
    """

    namespace: int
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """A running process of this process's container."""
        started = _started(pid)
        assert started is not None, "it runs"
        return cls(_namespace(), pid, started)

    @property
    def is_gone(self) -> bool:
        """Whether it has surely ended; `OSError` where that cannot be found out."""
        return self.namespace == _namespace() and _started(self.pid) != self.started

    @property
    def shm_prefix(self) -> str:
        """What its shared memory's names begin with."""
        return f"emberline_{self.pid}_{self.namespace}_{self.started}_"

    def make_folder(self) -> Path:
        """A new empty folder for temporary files."""
        return Path(tempfile.mkdtemp(prefix=f"emberline-triton-{self.namespace}-{self.pid}-{self.started}-"))


def remove_leftovers() -> list[Path]:
    """Remove folders and shared memory of this user's processes that have ended.

    Returns:
        The folders.
    """
    removed = []
    for folder in Path(tempfile.gettempdir()).glob("emberline-triton-*"):
        found = _FOLDER.fullmatch(folder.name)
        if found is None:
            continue
        owner = Owner(*map(int, found.groups()))
        with suppress(OSError):  # another process may be removing it too
            if owner.is_gone and folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
                shutil.rmtree(folder)
                remove_shared_memory(owner.shm_prefix)
                removed.append(folder)
    return removed


def remove_shared_memory(prefix: str) -> None:
    """Remove shared memory whose names begin so."""
    for path in SHM.glob(f"{prefix}*"):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino ^ crc32(os.uname().nodename.encode())


def _started(pid: int) -> int | None:
    """When a process was started; None where there is none of that number. Whatever else keeps it from being read says nothing: `OSError`."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[_START_FIELD])
