"""Several ranks beside one process with all their rows: the same steps, weights, moments, id maps, losses and metrics."""

from pathlib import Path

import pytest
import torch

from emberline.train.checkpoint import store
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.config import load_config
from emberline.train.job import run_training
from emberline.train.zch import FREE_ROW
from tests.train.job_runs import logged
from tests.train.jobs import Job
from tests.train.rank_cases import CASES, ONE_LEFT, config_text, make_data, run_case
from tests.train.rank_runs import forked_results, run_forked, start_forked

Tensors = dict[str, torch.Tensor]
NOT_BY_ID = ("/numbers", "/counts", "/counted_keys", "/default", "/unadmitted")
ON_FOUR = ("deep", "zch")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each case's runs on one and on two ranks, all from the same first step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("cases")
    make_data(folder)
    for case in CASES:
        (folder / case).mkdir()
        (folder / case / "start.config").write_text(config_text(case, folder, 1, steps=1))
        run_training(load_config(folder / case / "start.config"), folder / case / "start")
    jobs = [Job(2, [str(folder), *CASES]), Job(3, [str(folder), "dynamic"])]
    two = start_forked(folder, jobs)
    for case in CASES:
        run_case(folder, case)
    torch.set_num_threads(threads)
    for ranks in forked_results(two, folder, jobs):
        assert [status for status, _ in ranks] == [0] * len(ranks), ranks
    return folder


def newest(run: Path) -> Tensors:
    return read_tensors(store.find_checkpoint(run) / "tensors")


def by_id(tensors: Tensors, table: str, name: str) -> Tensors:
    """The rows of a tensor of a table that grows, or of a ZCH table, by the raw id that owns each."""
    if f"dynamic/{table}/keys" in tensors:
        return dict(zip(map(str, tensors[f"dynamic/{table}/keys"].tolist()), tensors[name], strict=True))
    ids, rows = tensors[f"zch/{table}/raw_ids"].tolist(), tensors[f"zch/{table}/rows"].tolist()
    return {str(one): tensors[name][row] for one, row in zip(ids, rows, strict=True) if one != FREE_ROW}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_process_does(runs: Path, case: str) -> None:
    check(runs, case, 2)


def test_three_ranks_grow_as_one_process_does(runs: Path) -> None:
    check(runs, "dynamic", 3)


@pytest.mark.slow
def test_four_ranks_learn_what_one_process_does(runs: Path, tmp_path: Path) -> None:
    run_forked(tmp_path, [Job(4, [str(runs), *ON_FOUR])])
    for case in ON_FOUR:
        check(runs, case, 4)


def check(runs: Path, case: str, ranks: int) -> None:
    """The newest checkpoints of a case on so many ranks and on one hold the same."""
    alone, together = newest(runs / case / "on-1"), newest(runs / case / f"on-{ranks}")
    assert set(together) - set(alone) == {f"rng/{rank}/torch" for rank in range(1, ranks)}
    compared = 0
    for name, value in alone.items():
        kind, table = name.split("/")[:2]
        if kind in ("rng", "zch"):
            continue
        found, expected = {name: together[name]}, {name: value}
        if kind == "dynamic" and name.endswith(NOT_BY_ID):
            assert not name.endswith("default") or torch.equal(together[name], value)
            continue
        if kind == "dynamic":
            found, expected = by_id(together, table, name), by_id(alone, table, name)
            assert len(expected) > 8
        if f"zch/{table}/raw_ids" in alone and value.shape[:1] == alone[f"zch/{table}/raw_ids"].shape:
            found, expected = by_id(together, table, name), by_id(alone, table, name)
            assert len(expected) == 11  # every id has a row, with any number of shards
        assert set(found) == set(expected)
        for key, own in expected.items():
            torch.testing.assert_close(found[key], own, atol=1e-5, rtol=1e-5, msg=f"{name} {key}: found {found[key]}, expected {own}")
            compared += 1
    assert compared > 20
    start = newest(runs / case / "start")
    assert all((start[name] - alone[name]).abs().max() > 1e-3 for name in start if name.startswith("tables/") and name.endswith("/weight"))


@pytest.mark.parametrize("case", CASES)
def test_losses_metrics_and_counts_are_of_all_ranks(runs: Path, case: str) -> None:
    alone, together = logged(runs / case / "on-1"), logged(runs / case / "on-2")
    assert [(line["kind"], line["step"]) for line in together] == [(line["kind"], line["step"]) for line in alone]
    assert [line["step"] for line in alone if line["kind"] == "eval"] == ([9, 18, 21] if CASES[case]["rows"] == ONE_LEFT else [8, 16, 21])
    for one, other in zip(alone, together, strict=True):
        assert one.pop("kind") == other.pop("kind")
        for line in (one, other):  # room is doubled on each rank
            for name in [name for name in line if name.endswith(("/capacity", "/room_bytes"))]:
                assert line.pop(name) >= line[name.replace("/capacity", "/size").replace("/room_", "/memory_")]
        for line, ranks in ((one, 1), (other, 2)):  # each rank has a fallback row, which nobody can own
            for name in [name for name in line if name.endswith("/occupancy")]:
                used = line[name.replace("occupancy", "rows_in_use")]
                assert line.pop(name) == pytest.approx(used / (201 - ranks))
        assert other == pytest.approx(one, abs=2e-5, rel=2e-5)
    assert {line["rows"] for line in together if "rows" in line} == {CASES[case]["rows"]}
    if case == "dynamic":
        last = [line for line in together if "loss" in line][-1]
        assert last["dynamic/s0_emb/size"] == last["dynamic/s0_emb/admitted"] == 11
        assert last["dynamic/f0_emb/memory_bytes"] == 11 * 8 * 4 * 2
        assert 0.9 < last["dynamic/f0_emb/hit_rate"] == last["dynamic/f0_emb/hits"] / last["dynamic/f0_emb/seen"] < 1
    if case == "zch":
        assert [line["zch/f0_emb/admitted"] for line in together if "loss" in line][-1] == 11
