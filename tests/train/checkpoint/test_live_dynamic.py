"""Tables that grow, saved by 1, 2 and 3 ranks and taken up by others; and their increments."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emberline.errors import CheckpointError
from emberline.train.checkpoint.apply_increments import apply_increments
from emberline.train.checkpoint.increments import read_increment
from emberline.train.checkpoint.run_growth import MOST_TIMES, RunGrowth
from emberline.train.checkpoint.run_state import Progress, read_progress
from emberline.train.checkpoint.stored_dynamic import StoredDynamic
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.dynamic.options import ScoreStrategy
from emberline.train.dynamic.state import DynamicState
from emberline.train.kernels.optimizers import Adagrad, RowWiseAdagrad, Sgd
from emberline.train.sharding import process_group
from tests.train.checkpoint.dynamic_files import assert_same, stored
from tests.train.checkpoint.dynamic_ranks import CAPACITY, OPTIONS, STEPS, build, go_on, restore, run, save, train
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked

SCRIPT = str(Path(__file__).with_name("dynamic_ranks.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What 1, 2 and 3 ranks wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    run_forked(folder, [Job(ranks, [SCRIPT, str(folder)]) for ranks in (1, 2, 3)])
    with process_group():
        for source in (2, 3):
            go_on(folder, source, 0, 1)
    return folder


@pytest.fixture
def alone() -> Iterator[None]:
    with process_group():
        yield


def table(checkpoint: Path, name: str) -> StoredDynamic:
    return stored(checkpoint, name)


def whole(checkpoint: Path, name: str) -> DynamicState:
    return table(checkpoint, name).state(0, 1)


@pytest.mark.parametrize("name", ["large", "waits"])
def test_all_ranks_hold_what_one_does(folder: Path, name: str) -> None:
    wanted = whole(folder / "run-1" / f"step-{STEPS}", name)
    assert len(wanted.keys) > 10
    assert (len(wanted.counted_keys) > 10) == (name == "waits")
    for ranks in (2, 3):
        assert_same(whole(folder / f"run-{ranks}" / f"step-{STEPS}", name), wanted, tolerance=1e-6)  # vector units round otherwise


@pytest.mark.parametrize(("source", "ranks"), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3), (2, 3), (3, 3)])
def test_taken_up_by_any_number_of_ranks(folder: Path, source: int, ranks: int) -> None:
    before, after = folder / f"run-{source}" / f"step-{STEPS}", folder / f"as-{source}-on-{ranks}" / f"step-{STEPS}"
    for name in ("large", "waits"):
        assert_same(whole(after, name), whole(before, name))
        wanted = whole(folder / "from-1-on-1" / f"step-{STEPS + 1}", name)
        assert_same(whole(folder / f"from-{source}-on-{ranks}" / f"step-{STEPS + 1}", name), wanted, tolerance=1e-6)
    if source == ranks:
        found, wanted_tensors = read_tensors(after / "tensors"), read_tensors(before / "tensors")
        assert found.keys() == wanted_tensors.keys()
        assert all(torch.equal(found[one], tensor) for one, tensor in wanted_tensors.items())


@pytest.mark.parametrize(("source", "ranks"), [(1, 2), (1, 3), (2, 3), (3, 1), (2, 2)])
def test_ids_of_the_lowest_scores_go_where_there_is_no_room(folder: Path, source: int, ranks: int) -> None:
    before, after = table(folder / f"run-{source}" / f"step-{STEPS}", "full"), table(folder / f"as-{source}-on-{ranks}" / f"step-{STEPS}", "full")
    dropped = 0
    for rank in range(ranks):
        had, has = before.state(rank, ranks), after.state(rank, ranks)
        room = -(-CAPACITY // ranks)
        order = sorted(range(len(had.keys)), key=lambda place: (int(had.scores[place]), int(had.keys[place])))[max(0, len(had.keys) - room) :]
        kept = torch.tensor(sorted(order), dtype=torch.int64)
        assert torch.equal(has.keys, had.keys[kept])
        assert torch.equal(has.weights, had.weights[kept])
        assert torch.equal(has.scores, had.scores[kept])
        gone = len(had.keys) - len(kept)
        notes = json.loads((folder / f"notes-{source}-on-{ranks}-{rank}.json").read_text())
        assert notes == ([f"table 'full': {gone} ids of this rank, those of the lowest scores, have no row any more"] if gone else [])
        dropped += gone
    assert (dropped > 0) == (ranks > source and ranks == 3)
    found = {name: sum(one.state(rank, ranks).counters[name] for rank in range(ranks)) for name in ("dropped", "evicted") for one in (after,)}
    assert found == {"dropped": dropped, "evicted": before.state(0, 1).counters["evicted"]}
    assert found["evicted"] > 0


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_increments_lead_to_what_a_full_save_has(folder: Path, ranks: int, tmp_path: Path) -> None:
    run_folder = folder / f"run-{ranks}"
    names = sorted(path.name for path in (run_folder / "increments").iterdir())
    assert names == ["3-4", "4-6", "6-8"]
    sizes = {name: sum(file.stat().st_size for file in (run_folder / "increments" / name).iterdir()) for name in names}
    whole_size = sum(file.stat().st_size for file in (run_folder / f"step-{STEPS}" / "tensors").iterdir())
    assert sizes["3-4"] < sizes["4-6"] < whole_size
    assert read_increment(run_folder / "increments" / "6-8").mark == read_progress(run_folder / f"step-{STEPS}").mark
    path = apply_increments(run_folder / "step-3", [run_folder / "increments"], tmp_path / "new", print)
    found, wanted = read_tensors(path / "tensors"), read_tensors(run_folder / f"step-{STEPS}" / "tensors")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_a_run_that_goes_on_writes_its_own_increments(folder: Path, tmp_path: Path, alone: None) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder / "run-1", copy)
    held = build(1)
    progress = read_progress(copy / "step-3")
    restore(copy / "step-3", held)
    with RunGrowth(copy, held, 4) as growth:
        growth.restore(progress)
        assert not list((copy / "increments").iterdir())
        for step in range(4, STEPS + 1):
            train(held, step, 0, 1)
            growth.after_step(step, pending=step == 4)
    assert sorted(path.name for path in (copy / "increments").iterdir()) == ["3-5", "5-8"]
    path = apply_increments(copy / "step-3", [copy / "increments"], tmp_path / "new", print)
    found, wanted = read_tensors(path / "tensors"), read_tensors(folder / "run-1" / f"step-{STEPS}" / "tensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    stale = folder / "run-1" / "increments" / "6-8"
    with pytest.raises(CheckpointError, match="leads on from step 6"):
        apply_increments(copy / "step-3", [copy / "increments" / "3-5", stale], tmp_path / "other", print)


@pytest.mark.parametrize("every", [0, 2])
def test_what_leads_beyond_where_a_run_goes_on_is_dropped(folder: Path, tmp_path: Path, alone: None, every: int) -> None:
    """Also where the run writes no increments any more."""
    copy = tmp_path / "run"
    shutil.copytree(folder / "run-1" / "increments", copy / "increments")
    (copy / "increments" / ".draft-8-10").mkdir()
    (copy / "increments" / "notes").mkdir()
    with RunGrowth(copy, build(1), every) as growth:
        growth.restore(Progress(step=6, run="r", mark="m"))
        assert sorted(path.name for path in (copy / "increments").iterdir()) == ["3-4", "4-6", "notes"]
        growth.begin()
        assert sorted(path.name for path in (copy / "increments").iterdir()) == ["notes"]


def test_times_of_steps_are_kept_and_thinned(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, clock = build(1), [1000.0]
    monkeypatch.setattr("emberline.train.checkpoint.run_growth.time.time", lambda: clock[0])
    growth = RunGrowth(tmp_path, held, 0)
    (kernel,) = set(held.values())
    for step, now in ((1, 1000), (2, 1030), (3, 1059), (4, 1060), (5, 1100), (6, 1200)):
        kernel.step, clock[0] = step, float(now)
        growth.after_step(step, pending=False)
    assert growth.at_save(6).times == ((1, 1000), (4, 1060), (6, 1200))
    many = tuple((step, 60 * step) for step in range(1, MOST_TIMES + 1))
    growth.restore(Progress(step=9, run="r", mark="m", times=many))
    kernel.step, clock[0] = MOST_TIMES + 5, 1e6
    found = growth.at_save(10)
    half = MOST_TIMES // 2
    assert found.times == (*many[:half:2], *many[half:], (MOST_TIMES + 5, 1_000_000))
    assert (found.run, len(found.mark)) == ("r", 16)


def test_other_options_are_refused_by_name(folder: Path, alone: None) -> None:
    path = folder / "run-1" / f"step-{STEPS}"

    def refused(message: str, held: dict[str, object]) -> None:
        with pytest.raises(CheckpointError, match=message):
            restore(path, held)  # type: ignore[arg-type]

    other = {**OPTIONS, "large": replace(OPTIONS["large"], score_strategy=ScoreStrategy.TIMESTAMP)}
    refused("table 'large' has score_strategy TIMESTAMP, the checkpoint STEP: scores mean something else", dict(build(1, other)))
    refused("table 'large': the optimiser keeps nothing, and the checkpoint has exp_avg, exp_avg_sq: it was another one", dict(build(1, None, Sgd())))
    refused("keeps sum by row, and the checkpoint has exp_avg, exp_avg_sq", dict(build(1, None, RowWiseAdagrad())))
    refused("keeps sum, and the checkpoint", dict(build(1, None, Adagrad())))
    refused("table 'full' is float16, and float32 in the checkpoint", dict(build(1, None, None, torch.float16)))
    refused("dynamic/new/keys is missing", dict(build(1, {**OPTIONS, "new": OPTIONS["large"]})))
    grown = build(1, {name: replace(own, max_capacity=own.max_capacity + 5) for name, own in OPTIONS.items()})
    assert restore(path, grown) == []
    assert grown["full"].counters("full").size == CAPACITY


def test_a_run_alone_is_bit_equal_when_it_goes_on(folder: Path, alone: None, tmp_path: Path) -> None:
    run(tmp_path, 0, 1)
    held = build(1)
    restore(tmp_path / "run-1" / "step-3", held)
    for step in range(4, STEPS + 1):
        train(held, step, 0, 1)
    save(tmp_path / "again", held, Progress(step=STEPS))
    found, wanted = read_tensors(tmp_path / "again" / f"step-{STEPS}" / "tensors"), read_tensors(tmp_path / "run-1" / f"step-{STEPS}" / "tensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_ids_that_found_no_room_are_gone_from_increments_too(folder: Path, alone: None, tmp_path: Path) -> None:
    """A run of 3 ranks is taken up by one with room for fewer ids."""
    copy = tmp_path / "run"
    shutil.copytree(folder / "run-3", copy)
    held = build(1, {name: replace(own, max_capacity=20) for name, own in OPTIONS.items()})
    with RunGrowth(copy, held, 1) as growth:
        assert len(restore(copy / f"step-{STEPS}", held)) == 2
        growth.restore(read_progress(copy / f"step-{STEPS}"))
        train(held, STEPS + 1, 0, 1)
        growth.after_step(STEPS + 1, pending=False)
        train(held, STEPS + 2, 0, 1)
        growth.after_step(STEPS + 2, pending=False)
    save(tmp_path / "full", held, Progress(step=STEPS + 2))
    path = apply_increments(copy / f"step-{STEPS}", [copy / "increments"], tmp_path / "new", print)
    found, wanted = read_tensors(path / "tensors"), read_tensors(tmp_path / "full" / f"step-{STEPS + 2}" / "tensors")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
