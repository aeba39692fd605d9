"""What `verify` and `inspect` say of runs: all checkpoints are read, and one that is not complete is called so."""

import shutil
from pathlib import Path

import pytest

from emberline.cli import main
from emberline.errors import CheckpointError
from emberline.export.describe import describe, verify
from emberline.train.checkpoint import store
from emberline.train.checkpoint.keeping import BestBy, CheckpointKeeper
from tests.serving.conftest import make_toy
from tests.serving.deltas.toy_delta import changed, write_delta

NUMBERS = {3: 0.5, 7: 0.9, 10: 0.7}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three checkpoints, the second of which is the best."""
    folder = tmp_path / "run"
    keeper = CheckpointKeeper(folder, 0, BestBy(metric="auc"))
    for step, number in NUMBERS.items():
        with store.write_checkpoint(folder, step, {}) as draft:
            (draft / "data").write_text("x" * step)
        keeper.note(step, {"auc": number})
    return folder


def test_all_checkpoints_of_a_run_are_read(run: Path) -> None:
    assert list(verify(run)) == [
        f"{run}/step-3: 1 files, 3 bytes, all as they were written",
        f"{run}/step-7: 1 files, 7 bytes, all as they were written; the best",
        f"{run}/step-10: 1 files, 10 bytes, all as they were written",
        f"{run}: 3 checkpoints, none damaged",
    ]
    assert list(verify(run / "step-3")) == [f"{run}/step-3: 1 files, 3 bytes, all as they were written"]
    assert list(verify(run / "best")) == [f"{run}/best: 1 files, 7 bytes, all as they were written"]


def test_an_old_one_that_is_damaged_is_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "step-3" / "data").write_text("xxy")
    (run / "step-7" / "data").unlink()
    assert main(["verify", str(run)]) == 1
    out, error = capsys.readouterr()
    first, second, third = out.splitlines()
    assert first.startswith(f"{run}/step-3 is damaged: data")
    assert second.startswith(f"{run}/step-7 is damaged: data")
    assert second.endswith("; it was the best")
    assert third == f"{run}/step-10: 1 files, 10 bytes, all as they were written"
    assert f"{run}: 2 of 3 checkpoints are damaged: step-3, step-7" in error


def test_the_best_must_be_there(run: Path) -> None:
    shutil.rmtree(run / "step-7")
    with pytest.raises(CheckpointError, match="best points at step-7, which is no complete checkpoint"):
        list(verify(run))


def test_one_that_is_not_complete_is_called_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = "not a complete checkpoint: manifest.json, which is written last, is not there"
    (run / "step-10" / "manifest.json").unlink()
    for command in ("verify", "inspect"):
        assert main([command, str(run / "step-10")]) == 1
        assert f"{run}/step-10: {whole}" in capsys.readouterr().err
    assert list(verify(run))[2:] == [f"{run}/step-10: left out, as it has no manifest.json", f"{run}: 2 checkpoints, none damaged"]
    for step in (3, 7):
        (run / f"step-{step}" / "manifest.json").unlink()
    for look in (describe, lambda path: list(verify(path))):
        with pytest.raises(CheckpointError, match="no complete checkpoint here"):
            look(run)


def test_a_manifest_that_was_changed_is_named(run: Path) -> None:
    (run / "step-3" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="1 of 3 checkpoints are damaged: step-3"):
        list(verify(run))
    with pytest.raises(CheckpointError, match=r"step-3: manifest.json cannot be read|step-3: format None"):
        list(verify(run / "step-3"))


def test_a_delta_without_a_report_is_shown_too(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path, 1)
    write_delta(root, changed(make_toy()))
    lines = describe(root)
    place = lines.index("deltas: 1; what follows is the artifact before them")
    assert lines[place + 1].split()[:3] == ["delta", "made", "step"]
    assert lines[place + 2].split()[:7] == ["1", "2026-01-01T00:00:00Z", "-", "4", "2", "1", "-"]
