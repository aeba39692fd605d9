"""Limits of containers, in both versions of cgroups, at every level."""

from pathlib import Path

import pytest

from emberline.train.sharding.memory import host_memory, rank_memory

TOTAL = 1000 * 1024


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemFree: 1 kB\nMemTotal:    1000 kB\n", "proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, TOTAL),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, TOTAL),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "4096\n"}, 4096),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "5000\n"}, 5000),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "300\n", "sys/fs/cgroup/memory.max": "5000\n"}, 300),
        ("0::/gone/from/here\n", {"sys/fs/cgroup/memory.max": "700\n"}, 700),
        ("0::/\n", {"sys/fs/cgroup/memory.max": str(TOTAL * 4)}, TOTAL),
        ("3:cpu,memory:/docker/x\n", {"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "800\n"}, 800),
        ("3:memory:/docker/x\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "900\n"}, 900),
        ("3:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, TOTAL),
        ("3:cpu:/x\n", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1\n"}, TOTAL),
        ("", {}, TOTAL),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, cgroup: str, files: dict[str, str], expected: int) -> None:
    assert host_memory(machine(tmp_path, cgroup, files)) == expected


def test_ranks_of_a_machine_share(tmp_path: Path) -> None:
    assert rank_memory(8, machine(tmp_path, "0::/\n", {"sys/fs/cgroup/memory.max": "4100\n"})) == 512


def test_a_system_without_cgroups_has_its_memory(tmp_path: Path) -> None:
    root = machine(tmp_path, "", {})
    (root / "proc/self/cgroup").unlink()
    assert host_memory(root) == TOTAL


def test_this_machine_has_some() -> None:
    assert 2**28 < host_memory() < 2**50
