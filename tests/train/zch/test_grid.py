"""What one to four ranks trained, taken up by one to four: every id keeps what it had while there is room, and goes on learning as if nothing was."""

import functools
import itertools
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from emberline.train.checkpoint import store
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.zch import FREE_ROW, owner_of
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked
from tests.train.zch.grid_on_ranks import (
    COUNTS,
    EPSILON,
    FIRST_SUM,
    HEAD,
    INITIAL,
    LARGE,
    RATE,
    ROUTINGS,
    SIZES,
    STEPS,
    TABLES,
    bags_of,
    weight_of,
)

pytestmark = pytest.mark.slow
SCRIPT = str(Path(__file__).with_name("grid_on_ranks.py"))
GRID = list(itertools.product(COUNTS, COUNTS))
Owned = dict[int, dict[str, list[float]]]
"""Id -> all that belongs to it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("grid")
    (home / "grid_head.py").write_text(HEAD)
    jobs = [Job(count, [SCRIPT, what, str(home)]) for what in ("train", "take-up") for count in COUNTS]
    run_forked(home, jobs)
    return home


@functools.cache
def trained(folder: Path, count: int, table: str) -> Owned:
    """In the checkpoint."""
    tensors = read_tensors(store.find_checkpoint(folder / f"run-{count}") / "tensors")
    ids, rows = (tensors[f"zch/{table}/{name}"].tolist() for name in ("raw_ids", "rows"))
    counted = [name for name in ("counts", "last_access_iter") if f"zch/{table}/{name}" in tensors]
    found = {}
    for place, (one, row) in enumerate(zip(ids, rows, strict=True)):
        if one != FREE_ROW:
            own = {name: tensors[f"tables/{table}/{name}"][row].tolist() for name in ("weight", "sum")}
            found[one] = own | {name: [tensors[f"zch/{table}/{name}"][place].item()] for name in counted}
    return found


@functools.cache
def parts(folder: Path, source: int, count: int, step: int) -> list[dict[str, torch.Tensor]]:
    """What each rank had."""
    return [load_file(folder / f"from-{source}-on-{count}" / f"{step}-{rank}.safetensors") for rank in range(count)]


@functools.cache
def taken_up(folder: Path, source: int, count: int, step: int, table: str) -> Owned:
    found: Owned = {}
    for rank, part in enumerate(parts(folder, source, count, step)):
        ids = part[f"{table}/ids"]
        assert owner_of(ids, count, ROUTINGS[table]).eq(rank).all()
        names = [name for name in ("weight", "sum", "counts", "last_access_iter") if f"{table}/{name}" in part]
        for place, one in enumerate(ids.tolist()):
            assert one not in found
            found[one] = {name: np.atleast_1d(part[f"{table}/{name}"][place].numpy()).tolist() for name in names}
    return found


def score(own: Mapping[str, list[float]]) -> float:
    """What the three policies of the tables give an id, in the iteration of the checkpoint."""
    if "last_access_iter" not in own:
        return own["counts"][0]
    age = STEPS - own["last_access_iter"][0] + 1
    return own["counts"][0] / age if "counts" in own else -age


def rooms(size: int, count: int) -> list[int]:
    """Ids that each rank has room for."""
    block = -(-size // count)
    return [min(block, size - rank * block) - 1 for rank in range(count)]


def learned(vector: list[float], total: list[float], gradient: float) -> tuple[float, float]:
    """Adagrad by hand, on a row whose numbers are all alike."""
    assert len(set(vector)) == len(set(total)) == 1
    sum_ = total[0] + gradient**2
    return vector[0] - RATE * gradient / (sum_**0.5 + EPSILON), sum_


def gradients(step: int, table: str) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for row, bag in enumerate(bags_of(step, table)):
        for one in bag:
            found[one] += weight_of(step, row)
    return found


@pytest.mark.parametrize(("source", "count"), GRID)
def test_every_id_keeps_what_it_had_and_the_best_are_kept(folder: Path, source: int, count: int) -> None:
    notes = [json.loads((folder / f"from-{source}-on-{count}" / f"notes-{rank}.json").read_text()) for rank in range(count)]
    for table, size in zip(TABLES, SIZES, strict=True):
        before, after = trained(folder, source, table), taken_up(folder, source, count, STEPS, table)
        assert all(before[one] == own for one, own in after.items())
        lost = before.keys() - after.keys()
        if table == LARGE or source == count:
            assert not lost
        owners = dict(zip(before, owner_of(torch.tensor(list(before)), count, ROUTINGS[table]).tolist(), strict=True))
        for rank, room in enumerate(rooms(size, count)):
            kept = [score(before[one]) for one in after if owners[one] == rank]
            gone = [score(before[one]) for one in lost if owners[one] == rank]
            assert len(kept) == min(room, len(kept) + len(gone))
            assert not (kept and gone) or max(gone) <= min(kept)
        told = sum(int(note.split(": ")[1].split()[0]) for own in notes for note in own if repr(table) in note)
        assert told == len(lost)
        assert len(before) > (50 if table == LARGE else 2)


@pytest.mark.parametrize(("source", "count"), GRID)
def test_histories_and_counters_are_kept(folder: Path, source: int, count: int) -> None:
    tensors = read_tensors(store.find_checkpoint(folder / f"run-{source}") / "tensors", "zch/")
    found = parts(folder, source, count, STEPS)
    for table in TABLES:
        assert sum(part[f"{table}/counters"] for part in found).tolist() == tensors[f"zch/{table}/counters"].sum(0).tolist()  # type: ignore[union-attr]
        later = parts(folder, source, count, STEPS + 1)
        history = sorted(one for part in later for one in part[f"{table}/history_ids"].tolist())
        assert history == sorted(one for bag in bags_of(STEPS, table) for one in bag)


@pytest.mark.parametrize(("source", "count"), GRID)
def test_one_step_more_is_that_of_the_unsharded_run(folder: Path, source: int, count: int) -> None:
    for table in TABLES:
        before, after = (taken_up(folder, source, count, step, table) for step in (STEPS, STEPS + 1))
        alone = taken_up(folder, source, 1, STEPS + 1, table)
        found = gradients(STEPS, table)
        assert before.keys() == after.keys()
        assert any(one in before for one in found)
        for one, own in before.items():
            weight, sum_ = learned(own["weight"], own["sum"], found.get(one, 0.0)) if one in found else (own["weight"][0], own["sum"][0])
            assert after[one]["weight"] == pytest.approx([weight] * 4, rel=1e-6, abs=1e-6)
            assert after[one]["sum"] == pytest.approx([sum_] * 4, rel=1e-6, abs=1e-6)
            if one in alone:
                assert after[one]["weight"] == pytest.approx(alone[one]["weight"], rel=1e-6, abs=1e-6)
        strangers: dict[int, float] = defaultdict(float)
        for one, gradient in found.items():
            if one not in before:
                strangers[int(owner_of(torch.tensor([one]), count, ROUTINGS[table]))] += gradient
        then, now = parts(folder, source, count, STEPS), parts(folder, source, count, STEPS + 1)
        for rank, gradient in strangers.items():
            vector, total = (then[rank][f"{table}/{name}"].tolist() for name in ("fallback", "fallback_sum"))
            weight, sum_ = learned(vector, total, gradient)
            assert now[rank][f"{table}/fallback"].tolist() == pytest.approx([weight] * 4, rel=1e-6, abs=1e-6)
            assert now[rank][f"{table}/fallback_sum"].tolist() == pytest.approx([sum_] * 4, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("source", "count"), GRID)
def test_ids_that_come_then_begin_afresh_on_any_ranks(folder: Path, source: int, count: int) -> None:
    """With room for all, each id that the two steps read is admitted in the second, and learns from it as a new row does."""
    known, after = (taken_up(folder, source, count, step, LARGE) for step in (STEPS + 1, STEPS + 2))
    alone = taken_up(folder, source, 1, STEPS + 2, LARGE)
    found = gradients(STEPS + 1, LARGE)
    assert after.keys() == alone.keys() == known.keys() | found.keys() | gradients(STEPS, LARGE).keys()
    new = after.keys() - known.keys()
    assert len(new) > 5
    for one in new:
        weight, sum_ = learned([INITIAL], [FIRST_SUM], found.get(one, 0.0))
        assert after[one]["weight"] == pytest.approx([weight] * 4, rel=1e-6, abs=1e-6)
        assert after[one]["sum"] == pytest.approx([sum_] * 4, rel=1e-6, abs=1e-6)
    for one, own in after.items():
        assert own["weight"] == pytest.approx(alone[one]["weight"], rel=1e-6, abs=1e-6)
        assert own["counts"] == alone[one]["counts"]


@pytest.mark.parametrize("count", COUNTS)
def test_small_and_negative_ids_are_on_all_ranks(folder: Path, count: int) -> None:
    used: Any = [part[f"{LARGE}/ids"].numel() for part in parts(folder, 1, count, STEPS)]
    fair = sum(used) / count
    assert all(abs(one - fair) < 5 * fair**0.5 for one in used)
    assert sum(used) == len({one for step in range(STEPS) for bag in bags_of(step, LARGE) for one in bag})
