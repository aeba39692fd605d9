"""CPUs that a process may use, by hand-made cgroups."""

import os
from pathlib import Path

import pytest

from emberline.cpus import usable_cpus

PINNED = len(os.sched_getaffinity(0))


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "want"),
    [
        ("", {}, PINNED),
        ("0::/\n", {"cpu.max": "max 100000\n"}, PINNED),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "25000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "990000000000 100000\n"}, PINNED),
        ("0::/pod/box\n", {"pod/cpu.max": "100000 100000\n", "pod/box/cpu.max": "max 100000\n"}, 1),
        ("0::/pod/box\n", {"pod/cpu.max": "max 100000\n", "other/cpu.max": "100000 100000\n"}, PINNED),
        ("4:cpu,cpuacct:/box\n", {"cpu/box/cpu.cfs_quota_us": "100000\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, 1),
        ("4:cpu,cpuacct:/box\n", {"cpu/box/cpu.cfs_quota_us": "-1\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, PINNED),
        ("4:memory:/box\n", {"cpu/box/cpu.cfs_quota_us": "100000\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, PINNED),
        ("0::/../up\n", {"up/cpu.max": "100000 100000\n"}, 1),
        ("nonsense\n", {"cpu.max": "nonsense\n"}, PINNED),
        ("0::/\n", {"cpu.max": "100000 0\n"}, PINNED),
    ],
)
def test_the_least_of_pinning_and_limits_counts(tmp_path: Path, membership: str, files: dict[str, str], want: int) -> None:
    write(tmp_path / "groups", files)
    (tmp_path / "cgroup").write_text(membership)
    assert usable_cpus(tmp_path / "groups", tmp_path / "cgroup") == want


def test_a_share_is_rounded_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "cpu.max").write_text("250000 100000")
    assert usable_cpus(tmp_path, tmp_path / "absent") == 3


def test_a_process_that_is_told_of_no_groups_has_what_it_is_pinned_to(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path / "absent", tmp_path / "absent") == PINNED
