"""Increments written in processes that are killed, and where there is no room: each is there whole or not at all."""

import json
import signal
from pathlib import Path

import pytest
import torch

from emberline.errors import CheckpointError
from emberline.train.checkpoint.increment_writer import IncrementWriter, Stretch
from emberline.train.checkpoint.increments import TableChanges, read_increment
from emberline.train.checkpoint.run_state import Progress
from tests.nursery import start_script
from tests.train.checkpoint.dynamic_files import NOTES, state_of, write_changes, write_states
from tests.train.jobs import TIMEOUT_S


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[list[object]]:
    """What `killed_increments.py` says."""
    folder = tmp_path_factory.mktemp("killed")
    run = folder / "run"
    write_states(run, 20, {"t": state_of(range(200))}, 1, Progress(step=20, run="r", mark="m20"))
    for base in (10, 20):
        marks = (f"m{base}", f"m{base + 10}")
        write_changes(run / "increments" / f"{base}-{base + 10}", (base, base + 10), marks, {"t": (state_of([base], step=base + 10), [])})
    script = start_script([str(Path(__file__).with_name("killed_increments.py")), str(folder)])
    status, output = script.finish(TIMEOUT_S)
    assert status == 0, output
    return [json.loads(line) for line in output.splitlines() if line.startswith("[")]


def test_killed_before_any_change(told: list[list[object]]) -> None:
    lines = [line[1:] for line in told if line[0] == "killed"]
    assert len(lines) > 8
    assert [line[0] for line in lines] == [-signal.SIGKILL] * (len(lines) - 1) + [0]
    wholes = []
    for _, after, problems, again, then in lines:
        assert isinstance(after, list)
        whole = [name for name in after if not name.startswith(".")]
        assert (problems, again, then) == ([], ["20-30", "30-40"], [])
        wholes.append(whole)
    assert [whole for place, whole in enumerate(wholes) if place == 0 or whole != wholes[place - 1]] == [
        ["10-20", "20-30"],
        ["10-20", "20-30", "30-40"],
        ["20-30", "30-40"],
    ]


def test_a_full_disk_is_an_error_that_leaves_nothing(told: list[list[object]]) -> None:
    (full,) = (line for line in told if line[0] == "full")
    assert full[1] == 0
    assert "increments/30-40 cannot be written: " in str(full[2])
    assert "File too large" in str(full[2])
    assert full[3] == ["10-20", "20-30"]
    for name, step in (("apply", 30), ("expire", 20)):
        (line,) = (line for line in told if line[0] == name)
        assert line[1] == 0
        assert f"step-{step}" in str(line[2])
        assert "cannot be written: " in str(line[2])
        assert "File too large" in str(line[2])
        assert line[3] is False


def test_one_that_cannot_be_written_is_told_by_the_next_call_or_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "increments").write_text("in the way")
    changes, none = {"t": TableChanges(state_of([1]), torch.empty(0, dtype=torch.int64), 1)}, {"t": NOTES}

    def stretch(step: int) -> Stretch:
        return Stretch(run="r", base=step - 1, base_mark=f"m{step - 1}", step=step, mark=f"m{step}", times=())

    writer = IncrementWriter(tmp_path)
    writer.write(stretch(1), none, changes)
    with pytest.raises(CheckpointError, match="increments/0-1 cannot be written"):
        writer.write(stretch(2), none, changes)
    writer.wait()
    with pytest.raises(CheckpointError, match="increments/1-2 cannot be written"), writer:
        writer.write(stretch(2), none, changes)
    (tmp_path / "increments").unlink()
    with IncrementWriter(tmp_path) as writer:
        writer.write(stretch(3), none, changes)
    assert (read_increment(tmp_path / "increments" / "2-3").mark, list(tmp_path.iterdir())) == ("m3", [tmp_path / "increments"])
