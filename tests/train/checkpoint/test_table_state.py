"""Tables saved under one plan and restored under another, on as many ranks: the next step is that of a run that went on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

from emberline.errors import CheckpointError
from emberline.train.checkpoint.shards import TableShard, table_shards
from emberline.train.checkpoint.table_state import restore_tables
from emberline.train.checkpoint.tensors import describe_tensors, read_tensors, save_tensors
from emberline.train.sharding import process_group
from tests.train.checkpoint.table_runs import OPTIMIZERS, TABLES, build, columns_of, restore, save, train
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]
SCRIPT = str(Path(__file__).with_name("table_runs.py"))
BY_ROW = ("rowwise_adagrad", "partial_rowwise_adam", "lamb", "partial_rowwise_lamb", "lars_sgd")
PLANS = ("table_wise", "row_wise", "column_wise")
CHAIN = ("data_parallel", "row_wise", "table_wise", "column_wise", "data_parallel")


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with process_group():
        yield


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert sorted(found) == sorted(wanted)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, atol=tolerance, rtol=tolerance, msg=name)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_one_further_step_is_that_of_a_run_that_went_on(optimizer: str, tmp_path: Path) -> None:
    plans = [plan for plan in PLANS if not (plan == "column_wise" and optimizer in BY_ROW)]  # by the row of a part, not of a table
    for before in plans:
        model = build(optimizer, before)
        for step in range(3):
            train(model, step)
        save(model, tmp_path / before)
        train(model, 3)
        save(model, tmp_path / f"{before}-on")
        wanted = read_tensors(tmp_path / f"{before}-on")
        for after in plans:
            again = build(optimizer, after)
            restore(again, tmp_path / before, columns_of(before))
            save(again, tmp_path / f"{before}-{after}")
            assert_close(read_tensors(tmp_path / f"{before}-{after}"), read_tensors(tmp_path / before), tolerance=0.0)
            train(again, 3)
            save(again, tmp_path / f"{before}-{after}-on")
            assert_close(read_tensors(tmp_path / f"{before}-{after}-on"), wanted)


def test_names_say_what_optimisers_keep(tmp_path: Path) -> None:
    expected: dict[str, dict[str, tuple[int, ...]]] = {
        "sgd": {},
        "adagrad": {"sum": (11, 8), "step": (1,)},
        "rowwise_adagrad": {"sum": (11,), "step": (1,)},
        "adam": {"exp_avg": (11, 8), "exp_avg_sq": (11, 8), "step": (1,)},
        "partial_rowwise_adam": {"exp_avg": (11, 8), "exp_avg_sq": (11,), "step": (1,)},
        "lamb": {"exp_avg": (11, 8), "exp_avg_sq": (11, 8), "step": (1,)},
        "partial_rowwise_lamb": {"exp_avg": (11, 8), "exp_avg_sq": (11,), "step": (1,)},
        "lars_sgd": {"momentum_buffer": (11, 8), "step": (1,)},
        "adadelta": {"square_avg": (11, 8), "acc_delta": (11, 8), "step": (1,)},
        "rmsprop": {"square_avg": (11, 8), "step": (1,)},
    }
    for optimizer, moments in expected.items():
        save(build(optimizer, "table_wise"), tmp_path / optimizer)
        stored = describe_tensors(tmp_path / optimizer)
        own = {name.split("/")[2]: info.shape for name, info in stored.items() if name.startswith("tables/a/")}
        assert own == {"weight": (11, 8), **moments}


@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad"])
def test_kernels_of_fbgemm_and_ours_take_each_others_tables(optimizer: str, tmp_path: Path) -> None:
    theirs = build(optimizer, "table_wise", [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()])
    for step in range(3):
        train(theirs, step)
    save(theirs, tmp_path / "theirs")
    ours = build(optimizer, "row_wise")
    restore(ours, tmp_path / "theirs", {})
    for model, name in ((theirs, "theirs-on"), (ours, "ours-on")):
        train(model, 3)
        save(model, tmp_path / name)
    found, wanted = read_tensors(tmp_path / "ours-on"), read_tensors(tmp_path / "theirs-on")
    assert_close({name: value for name, value in found.items() if "/step" not in name}, {n: v for n, v in wanted.items() if "/step" not in n}, 1e-5)
    back = build(optimizer, "row_wise", [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()])
    restore(back, tmp_path / "ours-on", {})
    save(back, tmp_path / "back")
    assert_close(read_tensors(tmp_path / "back"), found, tolerance=0.0)


def shard_of(columns: tuple[int, int], starts: tuple[int, ...], moment: Tensor, dim: int = 12) -> TableShard:
    weight = torch.zeros(len(moment), columns[1] - columns[0])
    return TableShard("t", (len(moment), dim), (0, columns[0]), starts, weight, {"sum": moment}, kernel=None)


def test_moments_by_row_are_means_over_columns(tmp_path: Path) -> None:
    by_part = torch.tensor([[1.0, 2.0, 6.0], [0.0, 3.0, 9.0]])  # parts of 4, 4 and 4 columns
    save_tensors(tmp_path / "t", {"tables/t/weight": torch.zeros(2, 12), "tables/t/sum": by_part, "tables/t/step": torch.tensor([5])})
    cuts = {(0,): [3.0, 4.0], (0, 6): [(4 * 1 + 2 * 2) / 6, (4 * 0 + 2 * 3) / 6], (0, 2, 4): [1.0, 0.0]}
    for starts, wanted in cuts.items():
        end = starts[1] if len(starts) > 1 else 12
        shard = shard_of((0, end), starts, torch.zeros(2))
        stored = describe_tensors(tmp_path / "t")
        restored = [shard]
        with pytest.raises(AttributeError):  # there is no kernel to count
            restore_tables(tmp_path / "t", restored, stored, {"t": (0, 4, 8)})
        assert shard.moments["sum"].tolist() == pytest.approx(wanted)


def test_what_does_not_fit_is_named_before_anything_is_filled(tmp_path: Path) -> None:
    save(build("rowwise_adagrad", "column_wise"), tmp_path / "cut")
    model = build("rowwise_adagrad", "row_wise")
    before = {shard.table: shard.weight.clone() for shard in table_shards(model)}
    with pytest.raises(CheckpointError, match=r"tables/a/sum is \[11, 2\] there, where \[11, 3\] is needed"):
        restore(model, tmp_path / "cut", {"a": (0, 2, 4)})
    with pytest.raises(CheckpointError, match=r"tables/a/sum is float32 \[11, 2\] there, but float32 \[11\] in the model"):
        restore(model, tmp_path / "cut", {})
    save(build("adam", "row_wise"), tmp_path / "adam")
    with pytest.raises(CheckpointError, match="tables/a/sum is not in it"):
        restore(model, tmp_path / "adam", {})
    assert all(torch.equal(before[shard.table], shard.weight) for shard in table_shards(model))


@pytest.mark.slow
def test_between_one_rank_and_two(tmp_path: Path) -> None:
    """One rank, two ranks with copies, by rows, tables, columns, with copies again, one rank by columns: each step is that of one rank alone."""
    by_weight, by_row, wanted = ("sgd", "adam", "adagrad"), ("rowwise_adagrad", "partial_rowwise_adam"), {}
    for optimizer in by_weight + by_row:
        model = build(optimizer, "table_wise")
        for step in range(7):
            train(model, step)
            save(model, tmp_path / f"{optimizer}-wanted-{step + 1}")
            if step == 0:
                save(model, tmp_path / f"{optimizer}-1")
        wanted[optimizer] = [read_tensors(tmp_path / f"{optimizer}-wanted-{step}") for step in range(2, 8)]
    for whole, placements in ((by_weight, CHAIN), (by_row, tuple(kind for kind in CHAIN if kind != "column_wise"))):
        run_forked(tmp_path, [Job(2, [SCRIPT, str(tmp_path), ",".join(whole), "table_wise", *placements])])
        for optimizer in whole:
            for step in range(2, 2 + len(placements)):
                assert_close(read_tensors(tmp_path / f"{optimizer}-{step}"), wanted[optimizer][step - 2], 1e-5)
    for optimizer in by_weight:
        model = build(optimizer, "column_wise")
        restore(model, tmp_path / f"{optimizer}-6", {})
        train(model, 6)
        save(model, tmp_path / f"{optimizer}-7")
        assert_close(read_tensors(tmp_path / f"{optimizer}-7"), wanted[optimizer][5], 1e-5)
    assert sorted(TABLES) == ["a", "b", "s"]
