"""Increments of a run looked at: how many, which are damaged, and where some are missing."""

import shutil
from pathlib import Path

import pytest

from emberline import cli
from emberline.train.checkpoint.run_state import Progress
from emberline.train.checkpoint.verify_increments import verify_increments
from tests.train.checkpoint.dynamic_files import state_of, write_changes, write_states


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """RUN/step-10 and step-30, increments from 10 to 40."""
    run = tmp_path / "run"
    for step in (10, 30):
        write_states(run, step, {"t": state_of([1, 2])}, 1, Progress(step=step, run="r", mark=f"m{step}"))
    for base in (10, 20, 30):
        increment(run, base, base + 10, f"m{base}", f"m{base + 10}")
    return run


def increment(run: Path, base: int, step: int, base_mark: str, mark: str, of: str = "r") -> Path:
    path = run / "increments" / f"{base}-{step}"
    return write_changes(path, (base, step), (base_mark, mark), {"t": (state_of([base], step=step), [])}, run=of)


def test_a_whole_chain_is_counted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = verify_increments(run)
    assert (seen.count, seen.span, seen.lines, seen.problems) == (3, (10, 40), [], [])
    assert cli.main(["verify", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{run}: 2 checkpoints, none damaged; 3 increments, of steps 10 to 40, each leads on"
    (run / "increments" / ".draft-40-50").mkdir()
    (run / "increments" / "notes").mkdir()
    assert verify_increments(run).text() == "3 increments, of steps 10 to 40"
    shutil.rmtree(run / "increments")
    assert verify_increments(run).text() == "0 increments"
    assert cli.main(["verify", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{run}: 2 checkpoints, none damaged"


@pytest.mark.parametrize("place", range(7))
def test_any_changed_byte_is_found(run: Path, place: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "increments" / "30-40" / ("rank-0.safetensors" if place < 4 else "manifest.json")
    data = bytearray(path.read_bytes())
    data[len(data) * place // 7] ^= 1
    path.write_bytes(data)
    seen = verify_increments(run)
    assert len(seen.problems) == 1
    assert "30-40" in seen.problems[0]
    assert cli.main(["verify", str(run)]) != 0
    assert "1 of 3 increments" in capsys.readouterr().err


def test_gaps_and_what_does_not_belong_are_named(run: Path) -> None:
    folder = run / "increments"
    kept = folder.rename(run / "kept")

    def problems(*names: str) -> list[str]:
        shutil.rmtree(folder, ignore_errors=True)
        for name in names:
            shutil.copytree(kept / name, folder / name)
        seen = verify_increments(run)
        assert seen.count == len(names)
        assert seen.lines[: len(seen.problems)] == seen.problems
        return [line.removeprefix(f"{folder}/") for line in seen.lines]

    assert problems("20-30", "30-40") == [
        "20-30 leads on from step 20, to which no checkpoint and no increment here leads: those of steps 10 to 20 are missing"
    ]
    assert problems("10-20", "30-40") == [f"{folder}: none leads to step 30; those from there on go on from its checkpoint"]
    increment(run, 20, 30, "other", "m30")
    assert verify_increments(run).problems == [
        f"{folder}/20-30 leads on from another state of step 20 than is here: the run went on otherwise once it was stopped"
    ]
    problems("10-20", "20-30", "30-40")
    increment(run, 40, 50, "m40", "m50", of="s")
    assert verify_increments(run).problems == [f"{folder}/40-50 is of another run (s) than the checkpoints beside it (r)"]
    (folder / "40-50" / "manifest.json").unlink()
    (found,) = verify_increments(run).problems
    assert found.startswith(f"{folder}/40-50: no complete increment: manifest.json, which is written last, is not there")
    problems("10-20", "20-30", "30-40")
    shutil.rmtree(run / "step-10")  # so those that lead to nothing beyond step 30 are about to go
    shutil.rmtree(folder / "10-20")
    assert verify_increments(run).lines == []
