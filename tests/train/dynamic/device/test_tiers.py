"""Tables with rows on a device and on the host, beside the same tables all on the device: every number is the same, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from emberline.errors import CapacityError
from emberline.train.config import PipelineConfig
from emberline.train.dynamic.device import tiers
from emberline.train.dynamic.device.ahead import gathered
from emberline.train.dynamic.device.rows import DeviceRows, Numbers
from emberline.train.dynamic.device.tables import DeviceDynamicEmbeddingTables
from emberline.train.dynamic.options import DynamicEmbOptions, DynamicRuntime, ScoreStrategy
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.dynamic.tiers.blocks import TierCounters
from emberline.train.job import run_training
from emberline.train.kernels.optimizers import Adagrad, RowOptimizer
from emberline.train.sharding import dynamic_kernels
from tests.train.dynamic.beside import CALLS, OPTIMIZERS, UNIFORM, all_fast, assert_equal_runs, assert_same_ids, bags, kernel, tables_of
from tests.train.dynamic.test_against_oracle import Lives
from tests.train.job_runs import logged, tensors_of
from tests.train.test_job_tiers import growing

DIM = 8
ROW_BYTES = 2 * 4 * DIM
"""Of weights, and of a moment of Adagrad."""


@settings(max_examples=12, deadline=None)
@given(
    budgets=st.lists(st.one_of(st.none(), st.integers(0, 600)), min_size=3, max_size=3),
    caching=st.lists(st.booleans(), min_size=3, max_size=3),
    strategy=st.sampled_from([ScoreStrategy.STEP, ScoreStrategy.LFU]),
    threshold=st.sampled_from([0, 2]),
    optimizer=st.sampled_from(OPTIMIZERS),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    is_pooled=st.booleans(),
    steps=st.lists(st.tuples(CALLS, bags), max_size=9),
)
def test_numbers_do_not_depend_on_tiers(
    budgets: list[int | None],
    caching: list[bool],
    strategy: ScoreStrategy,
    threshold: int,
    optimizer: RowOptimizer,
    dtype: torch.dtype,
    is_pooled: bool,
    steps: list[tuple[str, list[list[int]]]],
) -> None:
    tables = tables_of(budgets, caching, strategy, threshold, 4 if is_pooled else 3)
    pooling = PoolingMode.MEAN if is_pooled else PoolingMode.NONE
    made, plain = (kernel(own, optimizer, dtype, pooling, DeviceDynamicEmbeddingTables) for own in (tables, all_fast(tables)))
    assert_equal_runs(made, plain, steps)


ON_A_GPU = [pytest.param("cuda", optimizer, marks=pytest.mark.gpu) for optimizer in OPTIMIZERS]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("device", "optimizer"), [("cpu", OPTIMIZERS[1]), *ON_A_GPU])
def test_a_longer_run(device: str, caching: bool, optimizer: RowOptimizer) -> None:
    generator = torch.Generator().manual_seed(11)
    calls = ["train", "train", "two", "train", "remove", "train", "look", "expire", "train", "reload", "train", "train", "look"]
    steps = [(what, [torch.randint(-3, 30, (count,), generator=generator).tolist() for count in range(8)]) for what in calls]
    tables = tables_of([70, 130, 0], [caching] * 3, ScoreStrategy.LFU, 0)
    made, plain = (
        kernel(own, optimizer, torch.float32, PoolingMode.MEAN, DeviceDynamicEmbeddingTables, device) for own in (tables, all_fast(tables))
    )
    assert_equal_runs(made, plain, steps)
    found = [made.tiers(name) for name in "abc"]
    assert all(table.slow_reads > 0 for table in found[1:])
    assert found[1].fast_reads > 0


class TieredLives(Lives):
    def _new(self) -> BatchedDynamicEmbeddingTables:
        plain = super()._new()
        pairs = zip(plain.described, (24, 40), (True, False), strict=True)  # two rows of each are fast
        own = [
            replace(table, options=replace(table.options, caching=caching, local_hbm_for_values=budget, init_capacity_per_rank=None))
            for table, budget, caching in pairs
        ]
        return DeviceDynamicEmbeddingTables(own, plain.bank.reads, plain.tables.optimizer, runtime=DynamicRuntime(7), clock=plain._clock)


def test_lives() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(TieredLives, settings=settings(max_examples=6, stateful_step_count=30, deadline=None, suppress_health_check=checks))


def lone(caching: bool, fast: int, rows: int = 1000) -> BatchedDynamicEmbeddingTables:
    options = DynamicEmbOptions(max_capacity=rows, initializer=UNIFORM, caching=caching, local_hbm_for_values=fast * ROW_BYTES + 7)
    return DeviceDynamicEmbeddingTables([DynamicTable("t", DIM, options, rows)], [0], Adagrad(lr=0.5), runtime=DynamicRuntime(1))


def train(made: BatchedDynamicEmbeddingTables, ids: torch.Tensor) -> None:
    made(ids, torch.arange(len(ids) + 1)).sum().backward()


def test_hybrid_tells_where_rows_are() -> None:
    made = lone(False, 100)
    assert made.tiers("t") == TierCounters(mode="HYBRID", fast_rows=100, fast_bytes=100 * ROW_BYTES)
    train(made, torch.arange(150))
    train(made, torch.arange(90, 150))
    found = made.tiers("t")
    assert (found.fast_reads, found.slow_reads, found.slow_bytes) == (110, 100, 50 * ROW_BYTES)
    (block,) = made.bank.blocks
    assert [len(rows.tensor) for rows in block.memories] == [102, 102]  # two rows are constant
    assert lone(False, 100, 100).tiers("t") == TierCounters(fast_rows=100)


def test_caching_keeps_what_was_used_last() -> None:
    made = lone(True, 100)
    for ids in (torch.arange(100), torch.arange(50, 150), torch.arange(50, 150), torch.arange(50)):
        made(ids, torch.arange(len(ids) + 1))
    found = made.tiers("t")
    assert (found.mode, found.fast_rows) == ("CACHING", 100)
    assert (found.fast_reads, found.slow_reads) == (50 + 100, 100 + 50 + 50)


@pytest.mark.parametrize("caching", [False, True])
def test_rows_of_the_next_batch_are_copied_before(caching: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain = lone(caching, 10), lone(caching, 1000)
    batches = [torch.arange(100), torch.arange(20, 30), torch.arange(25, 35), torch.arange(20, 35)]
    for one in (made, plain):
        train(one, batches[0])
        train(one, torch.arange(50, 60))
    asked: list[list[int]] = []

    def counting(tensor: torch.Tensor, rows: Numbers, device: torch.device) -> torch.Tensor:
        asked.append((rows + first).tolist())
        return gathered(tensor, rows, device)

    first = 0 if caching else 10
    monkeypatch.setattr(tiers, "gathered", counting)
    (block,) = made.bank.blocks
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        if following is not None:
            made.prefetch(following, torch.arange(len(following) + 1))
            block.both._prefetcher.wait()
        for one in (made, plain) if batch is not batches[0] else ():
            train(one, batch)
    looked, learned = made.dump("t"), plain.dump("t")
    assert torch.equal(looked.weights, learned.weights)
    assert torch.equal(looked.moments["sum"], learned.moments["sum"])
    # the vectors of a lookup, and vectors and moments of an update: what the batch before wrote to, or the cache has no room for
    others = [[*range(20, 25)]] if caching else [[*range(25, 30)], [*range(25, 35)]]
    assert asked[:-2] == [rows for rows in others for _ in range(3)]


def test_a_full_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(rows: DeviceRows, *arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    made = lone(False, 100)
    train(made, torch.arange(5))
    before = made.dump("t")
    with monkeypatch.context() as patched:
        patched.setattr(DeviceRows, "_zeros", full)
        with pytest.raises(CapacityError, match="table 't': there is no memory on cpu for 100 rows of 8 numbers; lower max_capacity"):
            train(made, torch.arange(100))
    assert_same_ids(made.dump("t"), before)
    monkeypatch.setattr(DeviceRows, "__init__", full)
    with pytest.raises(CapacityError, match="table 't': there is no memory on cpu for copies of 100 rows of 8 numbers; lower cache_load_factor"):
        lone(True, 100)


@pytest.mark.parametrize("fast", [100, 1000])
def test_rows_grow_one_by_one_where_memory_is_short(fast: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, zeros = lone(False, fast), DeviceRows._zeros

    def short(own: DeviceRows, wanted: int) -> torch.Tensor:
        if wanted > 95 and own.tensor.dim() == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(own, wanted)

    monkeypatch.setattr(DeviceRows, "_zeros", short)
    for keys in (80, 85, 93):
        train(made, torch.arange(keys))
        assert made.sizes() == {"t": keys}
    with pytest.raises(CapacityError, match="table 't': there is no memory on cpu for 94 rows of 8 numbers"):
        train(made, torch.arange(94))
    assert made.sizes() == {"t": 93}


@pytest.mark.parametrize("caching", [False, True])
def test_a_swap_that_fails_loses_nothing(caching: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lone(caching, 3)
    for start in range(0, 12, 3):
        train(made, torch.arange(start, start + 3))
    before = made.dump("t")

    def full(tensor: torch.Tensor, rows: Numbers, device: torch.device) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(tiers, "gathered", full)
        with pytest.raises(torch.OutOfMemoryError):
            made.eval()(torch.arange(0, 6, 2), torch.arange(4))
    after = made.dump("t")
    assert torch.equal(after.weights, before.weights)
    assert torch.equal(after.moments["sum"], before.moments["sum"])


@pytest.mark.usefixtures("one_thread")
def test_a_job_in_two_tiers_stops_and_goes_on(make_config: Callable[..., PipelineConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_kernels, "create_tables", DeviceDynamicEmbeddingTables)

    def run(name: str, steps: int, more: str, *, resume: bool = False) -> dict[str, torch.Tensor]:
        settings = f"num_steps: {steps} save_increments_steps: 2"
        config = make_config(train=settings, features=growing(more), model="dlrm { dense_mlp { hidden_units: [8] } final { hidden_units: [8] } }")
        run_training(replace(config, eval_input_path=""), tmp_path / name, resume=resume)
        return tensors_of(tmp_path / name)

    plain = run("plain", 10, "")
    run("tiered", 4, "cache_load_factor: 0.3")
    tiered = run("tiered", 10, "cache_load_factor: 0.3", resume=True)
    assert plain.keys() == tiered.keys()
    assert [name for name, value in plain.items() if not torch.equal(tiered[name], value)] == []
    (*_, end) = logged(tmp_path / "tiered")
    assert 0 < end["dynamic/user_emb/fast_share"] < 1
