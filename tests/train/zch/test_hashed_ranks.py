"""Maps by hashes that one to four ranks trained, taken up by one to four: bit by bit what one process has, and vectors that learn alike."""

import functools
import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emberline.train.checkpoint import store
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.zch import FREE_ROW, owner_of
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked
from tests.train.zch.grid_on_ranks import COUNTS, EPSILON, FIRST_SUM, HEAD, INITIAL, RATE, STEPS, weight_of
from tests.train.zch.hashed_on_ranks import FIRST_HOUR, LARGE, SOURCES, TABLES, bags_of

SCRIPT = str(Path(__file__).with_name("hashed_on_ranks.py"))
GRID = list(itertools.product(SOURCES, COUNTS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("hashed")
    (home / "grid_head.py").write_text(HEAD)
    jobs = [Job(count, [SCRIPT, what, str(home)]) for what in ("train", "take-up") for count in COUNTS]
    run_forked(home, jobs)
    return home


@functools.cache
def saved(run: Path, step: int) -> dict[str, Tensor]:
    return read_tensors(store.find_checkpoint(run, step) / "tensors")


def maps(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith("zch/")}


def tables(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith("tables/")}


def test_any_number_of_ranks_admits_and_evicts_as_one_process(folder: Path) -> None:
    """The owner of a bucket gets the ids of all ranks in the order of the whole batch."""
    alone = saved(folder / "run-1", STEPS)
    for count in COUNTS[1:]:
        found = saved(folder / f"run-{count}", STEPS)
        assert maps(found).keys() == maps(alone).keys()
        for name, tensor in maps(alone).items():
            assert torch.equal(found[name], tensor), name
        for name, tensor in tables(alone).items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)
    counters = {table: alone[f"zch/{table}/counters"].sum(0).tolist() for table in TABLES}
    seen = {table: sum(len(bag) for step in range(STEPS) for bag in bags_of(step, table)) for table in TABLES}
    assert {table: counts[0] for table, counts in counters.items()} == seen
    assert all(counters[table][2] > 3 for table in ("ttl", "lru"))
    assert all(counters[table][3] > 3 for table in ("ttl", "full"))
    assert counters[LARGE][2:] == [0, sum(one == 2**63 - 1 for step in range(STEPS) for bag in bags_of(step, LARGE) for one in bag)]


@pytest.mark.parametrize(("source", "count"), GRID)
def test_taken_up_nothing_is_lost_and_nothing_moves(folder: Path, source: int, count: int) -> None:
    before, after = saved(folder / f"run-{source}", STEPS), saved(folder / f"from-{source}-on-{count}", STEPS)
    for name, tensor in (maps(before) | tables(before)).items():
        assert torch.equal(after[name], tensor), name
    notes = [json.loads((folder / f"from-{source}-on-{count}" / f"notes-{rank}.json").read_text()) for rank in range(count)]
    assert notes == [[]] * count


@pytest.mark.parametrize(("source", "count"), GRID)
def test_two_steps_more_are_those_of_one_process(folder: Path, source: int, count: int) -> None:
    alone, found = saved(folder / "from-1-on-1", STEPS + 2), saved(folder / f"from-{source}-on-{count}", STEPS + 2)
    for name, tensor in maps(alone).items():
        assert torch.equal(found[name], tensor), name
    for name, tensor in tables(alone).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("table", TABLES)
def test_each_row_learned_what_its_ids_read_since_it_is_theirs(folder: Path, table: str) -> None:
    """Adagrad by hand: a row that changed owner began with its initial vector and moment."""
    whole = saved(folder / "from-1-on-1", STEPS + 2)
    raw, counts = (whole[f"zch/{table}/{name}"].tolist() for name in ("raw_ids", "counts"))
    reads: dict[int, list[tuple[int, float]]] = {}
    for step in range(STEPS + 2):
        for row, bag in enumerate(bags_of(step, table)):
            for one in bag:
                reads.setdefault(one, []).append((step, weight_of(step, row)))
    weight, total = (whole[f"tables/{table}/{name}"] for name in ("weight", "sum"))
    checked = 0
    for row, one in enumerate(raw):
        if one == FREE_ROW:
            continue
        vector, sum_ = INITIAL, FIRST_SUM
        own = reads[one][len(reads[one]) - counts[row] :]  # those since it has its row
        for _, group in itertools.groupby(own, key=lambda read: read[0]):
            gradient = sum(weight for _, weight in group)
            sum_ += gradient**2
            vector -= RATE * gradient / (sum_**0.5 + EPSILON)
        assert weight[row].tolist() == pytest.approx([vector] * 4, rel=1e-5, abs=1e-6)
        assert total[row].tolist() == pytest.approx([sum_] * 4, rel=1e-5, abs=1e-6)
        checked += 1
    assert checked > 10
    if table == LARGE:
        assert set(raw) - {FREE_ROW} == set(reads) - {FREE_ROW}
    if f"zch/{table}/last_seen_hour" in whole:
        hours = whole[f"zch/{table}/last_seen_hour"].tolist()
        assert all(hours[row] == FIRST_HOUR + reads[one][-1][0] for row, one in enumerate(raw) if one != FREE_ROW)


@pytest.mark.parametrize("count", COUNTS)
def test_small_and_negative_ids_are_on_all_ranks(folder: Path, count: int) -> None:
    whole = saved(folder / f"run-{count}", STEPS)
    ids = whole[f"zch/{LARGE}/raw_ids"]
    ends = whole[f"zch/{LARGE}/ends"]
    for shard in range(count):
        first, end = (int(ends[24 // count * place]) for place in (shard, shard + 1))
        own = ids[first:end][ids[first:end] != FREE_ROW]
        assert owner_of(own, 24, "mixed").div(24 // count, rounding_mode="floor").eq(shard).all()
        fair = int((ids != FREE_ROW).sum()) / count
        assert abs(len(own) - fair) < 5 * fair**0.5
