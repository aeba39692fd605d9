"""Which kernel is chosen, on what, and what is said of it."""

import sys
from collections.abc import Iterator

import pytest
import torch

from emberline.errors import ConfigError, MissingDependencyError
from emberline.train.dynamic.nvidia.package import choose_kernel, find_package, kernel_here
from emberline.train.dynamic.options import KernelKind
from tests.train.dynamic.fake_nvidia import MODULES, NewTables, OldTables, fake_package

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def nothing_installed() -> Iterator[None]:
    """No package of this name, whatever the machine has."""
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.modules["dynamicemb"] = None  # type: ignore[assignment]
    yield
    del sys.modules["dynamicemb"]
    sys.modules.update(before)


def test_the_package_is_told_by_what_it_has() -> None:
    with fake_package():
        new = find_package()
    with fake_package(new=False):
        old = find_package()
    assert (new.tables, old.tables) == (NewTables, OldTables)
    flags = ("weighs_bags", "strategy_counts", "options_route", "dumps_counters", "ids_are_unsigned")
    assert [getattr(new, flag) for flag in flags] == [True] * 5
    assert [getattr(old, flag) for flag in flags] == [False] * 5
    assert str(new) == "dynamicemb unknown"
    assert "dynamicemb" not in sys.modules


def test_nvidias_is_taken_where_it_can_run() -> None:
    with fake_package():
        on_cuda, forced = choose_kernel(CUDA), choose_kernel(CUDA, KernelKind.EMBERLINE)
        on_cpu, asked = choose_kernel(CPU), choose_kernel(CUDA, KernelKind.NVIDIA)
    assert str(on_cuda) == "NVIDIA's kernel, since dynamicemb unknown is installed, and this is CUDA"
    assert str(forced) == "our kernel, since it was asked for"
    assert (on_cuda.kernel, on_cuda.reason) == (KernelKind.NVIDIA, "dynamicemb unknown is installed, and this is CUDA")
    assert on_cuda.package is not None
    assert on_cuda.package.tables is NewTables
    assert (forced.kernel, forced.reason, forced.package) == (KernelKind.EMBERLINE, "it was asked for", None)
    assert (on_cpu.kernel, on_cpu.reason) == (KernelKind.EMBERLINE, "NVIDIA's is for CUDA alone, and this is cpu")
    assert (asked.kernel, asked.reason) == (KernelKind.NVIDIA, "it was asked for")


@pytest.mark.usefixtures("nothing_installed")
def test_without_the_package_ours_runs_unless_theirs_is_asked_for() -> None:
    choice = choose_kernel(CUDA)
    assert (choice.kernel, choice.package) == (KernelKind.EMBERLINE, None)
    assert choice.reason == "package dynamicemb is not installed"
    with pytest.raises(MissingDependencyError, match="package dynamicemb is not installed"):
        choose_kernel(CUDA, KernelKind.NVIDIA)


def test_on_a_machine_without_gpus_ours_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert str(kernel_here()) == "our kernel, since NVIDIA's is for CUDA alone, and this is cpu"


def test_theirs_is_refused_without_cuda() -> None:
    with fake_package(), pytest.raises(ConfigError, match="needs CUDA, and these ranks are on cpu"):
        choose_kernel(CPU, KernelKind.NVIDIA)


def test_a_release_without_what_we_use_is_told() -> None:
    with fake_package():
        del sys.modules["dynamicemb"].FrequencyAdmissionStrategy
        choice = choose_kernel(CUDA)
    assert choice.kernel is KernelKind.EMBERLINE
    assert choice.reason.startswith("package dynamicemb unknown is of a release that we do not know: ")
