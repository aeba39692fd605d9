"""The kernel for CUDA: its values by Triton's interpreter on a CPU, and on a CUDA device where there is one; `fused_cases.py` has the cases.

Whether kernels are interpreted is decided once a process, as they are defined: so each way has a process of its own.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from emberline.errors import MissingDependencyError
from emberline.serving import lookup
from emberline.serving.lookup import choose_lookup
from emberline.serving.rows_on_disk import RowsOnDisk
from emberline.serving.tables import write_table
from tests.serving.lookup.test_native import schema_of

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="the package triton is not here: `pip install triton`; it comes with torch for CUDA")


@needs_triton
@pytest.mark.parametrize("interpreted", [True, pytest.param(False, marks=pytest.mark.gpu)])
def test_the_cases(interpreted: bool, repository: Path, said: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | (
        {"TRITON_INTERPRET": "1"} if interpreted else {}
    )
    cases = Path(__file__).with_name("fused_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(cases)]
    run = subprocess.run(command, env=environment, cwd=repository, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None
    assert int(passed[1]) >= 12
    said.append(f"fused lookups: {passed[1]} cases {'by the interpreter' if interpreted else 'on CUDA'}")


def test_on_a_cpu_it_is_refused() -> None:
    schema = schema_of([4], weighted=False)
    reason = (
        "it is for CUDA, and the device is 'cpu'" if HAS_TRITON else "it needs the package triton, which comes with torch for CUDA and does not load"
    )
    with pytest.raises(MissingDependencyError, match=f"^lookup 'fused' does not work here: {reason}"):
        choose_lookup(schema, {"t0": torch.zeros(10, 4)}, {}, torch.device("cpu"), "fused")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "emberline.serving.lookup.fused_kernel", raising=False)
    monkeypatch.delattr(lookup, "fused_kernel", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(
        MissingDependencyError, match=r"^lookup 'fused' does not work here: it needs the package triton, which comes with torch for CUDA"
    ):
        choose_lookup(schema_of([4], weighted=False), {"t0": torch.zeros(10, 4)}, {}, torch.device("cuda"), "fused")


def test_tables_on_disk_are_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "t0", torch.zeros(10, 4))
    with pytest.raises(MissingDependencyError, match=r"^lookup 'fused' does not work here: it needs tables in memory, and these stay on disk$"):
        choose_lookup(schema_of([4], weighted=False), {"t0": RowsOnDisk.find(tmp_path / "t0")}, {}, torch.device("cuda"), "fused")
