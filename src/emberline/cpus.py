"""How many CPUs this process may use: threads beyond them only wait for each other.

`os.cpu_count()` tells of the machine. A container that was given a share of it is told by its cgroup, and a pinned process by its affinity.
"""

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cpus(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """The CPUs of this process: those that it is pinned to, or its cgroup's share of time where that is less, rounded up; at least 1.

    Args:
        cgroups: where cgroups are mounted.
        membership: the file that tells which ones this process is in.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = [share for folder in _own_groups(cgroups, membership) if (share := _share(folder)) is not None]
    return max(1, min([allowed, *(math.ceil(share) for share in shares)]))


def _own_groups(cgroups: Path, membership: Path) -> list[Path]:
    """The folders of this process's cgroups, and of those that they are in: each may have a limit."""
    lines: list[str] = []
    with suppress(OSError):
        lines = membership.read_text().splitlines()
    found = [cgroups, cgroups / "cpu"]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = cgroups / "cpu" if controllers else cgroups
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        found += [top.joinpath(*parts[: end + 1]) for end in range(len(parts))]
    return found


def _share(folder: Path) -> float | None:
    """CPUs that a cgroup may use; None where it has no limit: version 2's `cpu.max`, or the two files of version 1."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return float(quota) / float(period) if quota != "max" and float(period) > 0 else None
    with suppress(OSError, ValueError):
        number, length = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return number / length if number > 0 and length > 0 else None
    return None
