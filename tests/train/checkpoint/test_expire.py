"""Ids that training has not read for long, taken out of a checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emberline import cli
from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.expire import expire_ids, parse_age
from emberline.train.checkpoint.run_state import Progress, read_progress
from emberline.train.checkpoint.tensors import read_tensors
from tests.train.checkpoint.dynamic_files import assert_same, part_of, state_of, stored, write_states

DAY = 86400
TIMES = ((10, 1000 * DAY), (20, 1010 * DAY), (30, 1020 * DAY), (40, 1030 * DAY))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 3 ranks whose ids were read last at steps 1 to 40."""
    keys = list(range(100, 140))
    state = replace(state_of(keys, step=40, counted={7: 1}), last_steps=torch.arange(1, 41))
    others = state_of([1, 2], step=3)
    write_states(tmp_path / "run", 40, {"t": state, "u": others}, 3, Progress(step=40, run="r", mark="m", times=TIMES))
    return tmp_path / "run"


def test_by_step(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["expire", str(run), "--before-step", "31", "--table", "t", "--output", str(tmp_path / "new")]) == 0
    new = tmp_path / "new" / "step-40"
    assert capsys.readouterr().out.splitlines() == [
        "table 't': 30 of 40 ids go, which training read last before step 31",
        f"checkpoint: {new}",
    ]
    before, after = stored(run / "step-40", "t").state(0, 1), stored(new, "t").state(0, 1)
    young = before.last_steps >= 31
    wanted = replace(
        before,
        keys=before.keys[young],
        weights=before.weights[young],
        moments={name: moment[young] for name, moment in before.moments.items()},
        last_steps=before.last_steps[young],
        scores=before.scores[young],
        counters={**before.counters, "expired": before.counters["expired"] + 30},
    )
    assert_same(after, wanted)
    for rank in range(2):
        assert_same(replace(stored(new, "t").state(rank, 2), counters={}), replace(part_of(wanted, rank, 2), counters={}))
    old, found = read_tensors(run / "step-40" / "tensors"), read_tensors(new / "tensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in old.items() if not name.startswith("dynamic/t/"))
    assert read_progress(new).mark != "m"
    sizes = [sum(file.stat().st_size for file in (path / "tensors").iterdir()) for path in (run / "step-40", new)]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(("age", "gone"), [("5d", 30), ("10d", 30), ("11d", 20), ("20d", 20), ("30d", 10), ("4w", 10), ("31d", 0), ("9999999w", 0)])
def test_by_age_only_what_is_surely_old_goes(run: Path, tmp_path: Path, age: str, gone: int) -> None:
    told: list[str] = []
    path = expire_ids(run, tmp_path / "new", told.append, older_than_s=parse_age(age), tables=("t",))
    assert stored(path, "t").num_ids == 40 - gone
    assert told[0].startswith("the last step was done at 1972-10-27 00:00 UTC; ids that training read last before ")
    store.verify_checkpoint(path)


def test_wrong_wishes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "new"
    with pytest.raises(ConfigError, match=r"--table: unknown table that grows 'x'; known: t, u"):
        expire_ids(run, new, print, before_step=3, tables=("x",))
    none = write_states(tmp_path / "none", 1, {})
    with pytest.raises(CheckpointError, match="has no tables that grow"):
        expire_ids(none, new, print, before_step=3)
    untimed = write_states(tmp_path / "untimed", 1, {"t": state_of([1])})
    with pytest.raises(CheckpointError, match="does not know when its steps were done; give --before-step"):
        expire_ids(untimed, new, print, older_than_s=60)
    assert not new.exists()
    for arguments in (["--older-than", "3"], ["--older-than", "0d"], ["--before-step", "-1"], [], ["--older-than", "3d", "--before-step", "4"]):
        with pytest.raises(SystemExit):
            cli.main(["expire", str(run), *arguments, "--output", str(new)])
    assert "must be a whole number with m, h, d or w" in capsys.readouterr().err


def test_all_ids_may_go(run: Path, tmp_path: Path) -> None:
    path = expire_ids(run, tmp_path / "new", print, before_step=2**70)
    for table in ("t", "u"):
        before, after = stored(run / "step-40", table).state(0, 1), stored(path, table).state(0, 1)
        assert (len(after.keys), after.weights.shape, after.moments["sum"].shape) == (0, (0, 3), (0,))
        assert after.counters["expired"] == before.counters["expired"] + len(before.keys)
        assert torch.equal(after.counted_keys, before.counted_keys)
    store.verify_checkpoint(path)
    again = expire_ids(path, tmp_path / "again", print, before_step=1)
    assert stored(again, "t").num_ids == 0


def test_a_clock_that_was_set_back_keeps_ids(tmp_path: Path) -> None:
    """Steps 11 to 20 are said to be older than those before; or step 20 younger than those after."""
    times = ((10, 1000 * DAY), (20, 5 * DAY), (30, 1020 * DAY))
    state = replace(state_of(range(30), step=30), last_steps=torch.arange(1, 31))
    write_states(tmp_path / "run", 30, {"t": state}, 1, Progress(step=30, times=times))
    path = expire_ids(tmp_path / "run", tmp_path / "new", print, older_than_s=30 * DAY)
    assert stored(path, "t").num_ids == 30
    assert stored(expire_ids(tmp_path / "run", tmp_path / "other", print, older_than_s=20 * DAY), "t").num_ids == 20
    ahead = ((10, 1000 * DAY), (20, 9000 * DAY), (25, 1010 * DAY), (30, 1020 * DAY))
    write_states(tmp_path / "ahead", 30, {"t": state}, 1, Progress(step=30, times=ahead))
    assert stored(expire_ids(tmp_path / "ahead", tmp_path / "third", print, older_than_s=DAY), "t").num_ids == 20
