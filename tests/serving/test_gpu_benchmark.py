"""`benchmarks/gpu.py` at tiny sizes on a CPU: that it works where it is needed, which is seldom at hand."""

import importlib.util
import subprocess
import sys
from pathlib import Path


def test_the_short_form_compares_all_answers_and_says_what_it_leaves_out(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(repository / "benchmarks" / "gpu.py"), "--cpu-smoke"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    lines = run.stdout.splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## Lookups", "## Maps of raw ids", "## Engine"]
    has_triton = importlib.util.find_spec("triton") is not None
    for start in ("| 16 | fp32 | uniform | 1 |", "| 16 | int8 | Zipf | 4 |"):
        fused, _, plain = next(line for line in lines if line.startswith(start)).removeprefix(start).split("|")[:3]
        assert (fused.strip() != "") == has_triton
        assert int(plain) > 0
    left_out = [line for line in lines if line.startswith("Left out, fused: lookup 'fused' does not work here: it needs the package triton")]
    assert len(left_out) == (0 if has_triton else 2)
    assert [line for line in lines if line.startswith("| torch | 2 |")]
    assert lines[-1] == "Python backend of Triton: not measured, this is no GPU."
