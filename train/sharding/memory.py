"""How much memory this machine, or the container around this process, has."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import torch

_CGROUP_V2, _CGROUP_V1 = "memory.max", "memory.limit_in_bytes"


def host_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that the processes of this machine may have together: the machine's, or less where a container has a limit.

    Limits of cgroups are looked for in both versions, at the process's own group and at all above it.

    Args:
        root: where `proc` and `sys` are.
    """
    total = next(int(line.split()[1]) * 1024 for line in (root / "proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return min([total, *_limits(root)])


def rank_memory(local_world_size: int, root: Path = Path("/")) -> int:
    """Each rank's share of `host_memory`, in bytes, where `local_world_size` of them share it."""
    return host_memory(root) // local_world_size


def gpu_memory(index: int) -> int:
    """Bytes of memory of one GPU of this machine."""
    return int(torch.cuda.get_device_properties(index).total_memory)


def _limits(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _limits_above(root / "sys/fs/cgroup", path, _CGROUP_V2)
        elif "memory" in controllers.split(","):
            yield from _limits_above(root / "sys/fs/cgroup/memory", path, _CGROUP_V1)


def _limits_above(mount: Path, path: str, name: str) -> Iterator[int]:
    """The limits of a group and of all above it, as far as they can be seen: inside a container, the mount itself is the group."""
    parts = PurePosixPath(path.lstrip("/")).parts
    for depth in range(len(parts) + 1):
        try:
            text = mount.joinpath(*parts[:depth], name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max" is no limit
            yield int(text)
