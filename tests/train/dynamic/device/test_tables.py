"""Tables on any device, beside those of the CPU: there, every number is the same, bit for bit."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from torch.utils._python_dispatch import TorchDispatchMode

from emberline.errors import CapacityError, ConfigError, DataError
from emberline.train.dynamic.device.rows import DeviceRows
from emberline.train.dynamic.device.tables import DeviceDynamicEmbeddingTables, create_tables
from emberline.train.dynamic.options import DynamicRuntime, ScoreStrategy
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.kernels.optimizers import Adagrad, RowOptimizer, Sgd
from tests.train.dynamic.beside import (
    CALLS,
    OPTIMIZERS,
    SIZES,
    assert_equal_runs,
    assert_numbers,
    assert_same_ids,
    bags,
    kernel,
    numbers_of,
    tables_of,
)
from tests.train.dynamic.test_against_oracle import Lives


@settings(max_examples=25, deadline=None)
@given(
    strategy=st.sampled_from(list(ScoreStrategy)),
    threshold=st.sampled_from([0, 2]),
    optimizer=st.sampled_from(OPTIMIZERS),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    pooling=st.sampled_from([PoolingMode.SUM, PoolingMode.MEAN, PoolingMode.NONE]),
    steps=st.lists(st.tuples(CALLS, bags), max_size=9),
)
def test_numbers_are_those_of_the_cpu(
    strategy: ScoreStrategy,
    threshold: int,
    optimizer: RowOptimizer,
    dtype: torch.dtype,
    pooling: PoolingMode,
    steps: list[tuple[str, list[list[int]]]],
) -> None:
    tables = tables_of([None] * 3, [False] * 3, strategy, threshold, 3)
    made = kernel(tables, optimizer, dtype, pooling, DeviceDynamicEmbeddingTables)
    assert_equal_runs(made, kernel(tables, optimizer, dtype, pooling), steps)


class DeviceLives(Lives):
    def _new(self) -> BatchedDynamicEmbeddingTables:
        plain = super()._new()
        return DeviceDynamicEmbeddingTables(plain.described, plain.bank.reads, plain.tables.optimizer, runtime=DynamicRuntime(7), clock=plain._clock)


def test_lives() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(DeviceLives, settings=settings(max_examples=5, stateful_step_count=30, deadline=None, suppress_health_check=checks))


def plain_tables() -> list[DynamicTable]:
    return tables_of([None] * 3, [False] * 3, ScoreStrategy.LFU, 0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_weights_and_reads_of_unequal_sizes(device: str, optimizer: RowOptimizer) -> None:
    made = kernel(plain_tables(), optimizer, torch.float32, PoolingMode.MEAN, DeviceDynamicEmbeddingTables, device)
    plain = kernel(plain_tables(), optimizer)
    ids, offsets = torch.tensor([1, -5, 1, 2**63 - 1, -(2**63), 3, 1]), torch.tensor([0, 2, 2, 4, 5, 5, 7])
    weights, sizes = torch.tensor([1.0, 0.5, 2.0, -1.0, 3.0, 0.25, 1.0]), [2, 1, 0, 3]
    for _ in range(3):
        found = []
        for one in (made, plain):
            vectors = one(ids.to(one.device), offsets.to(one.device), weights.to(one.device), batch_sizes=sizes)
            (vectors * torch.arange(len(vectors), device=one.device)).sum().backward()
            found.append(vectors.detach().cpu())
        assert_numbers(found[0], found[1], optimizer, device == "cpu")
    for name in SIZES:
        states = made.dump(name), plain.dump(name)
        assert_same_ids(*states)
        for own, other in zip(*map(numbers_of, states), strict=True):
            assert_numbers(own, other, optimizer, device == "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
@pytest.mark.parametrize("threshold", [0, 2])
def test_a_gpu_does_what_the_cpu_does(optimizer: RowOptimizer, threshold: int) -> None:
    generator = torch.Generator().manual_seed(11)
    lengths = torch.randint(0, 4, (40, 8), generator=generator)
    calls = ["train", "train", "two", "remove", "train", "look", "expire", "reload"] * 5
    steps = [
        (what, [torch.randint(-3, 30, (count,), generator=generator).tolist() for count in own]) for what, own in zip(calls, lengths, strict=True)
    ]
    tables = tables_of([None] * 3, [False] * 3, ScoreStrategy.LFU, threshold)
    made = kernel(tables, optimizer, torch.float32, PoolingMode.MEAN, DeviceDynamicEmbeddingTables, "cuda")
    assert_equal_runs(made, kernel(tables, optimizer), steps)


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_work_is_not_done_id_by_id() -> None:
    found = []
    for number in (4, 36):
        tables = [replace(table, max_rows=1000) for table in plain_tables()]
        made = kernel(tables, Sgd(), torch.float32, PoolingMode.SUM, DeviceDynamicEmbeddingTables)
        ids, offsets = torch.arange(number), torch.linspace(0, number, 5).long()
        made(ids, offsets).sum().backward()
        with Calls() as calls:
            made(ids, offsets).sum().backward()
        found.append(calls.names)
    assert found[0] == found[1]
    waits = sum(count for name, count in found[0].items() if any(part in name for part in ("_local_scalar_dense", "nonzero", "unique")))
    assert waits <= 12 * len(SIZES)


def test_tables_of_the_cpu_lie_there_alone() -> None:
    with pytest.raises(ConfigError, match="these tables lie on the CPU, not on cuda"):
        kernel(plain_tables(), Adagrad(), torch.float32, PoolingMode.SUM, BatchedDynamicEmbeddingTables, "cuda")


def test_the_device_decides() -> None:
    assert type(create_tables(plain_tables(), [0], Sgd())) is BatchedDynamicEmbeddingTables
    assert type(create_tables(plain_tables(), [0], Sgd(), device=torch.device("cpu"))) is BatchedDynamicEmbeddingTables
    assert type(create_tables(plain_tables(), [0], Sgd(), device=torch.device("meta"))) is DeviceDynamicEmbeddingTables


def test_a_device_that_is_full_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernel(plain_tables(), Sgd(), torch.float32, PoolingMode.SUM, DeviceDynamicEmbeddingTables)
    made(torch.tensor([1]), torch.tensor([0, 1, 1, 1, 1])).sum().backward()
    before = made.dump("a")

    def full(rows: DeviceRows, wanted: int, most: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(DeviceRows, "reserve", full)
    with pytest.raises(CapacityError, match="table 'a': there is no memory on cpu for 6 rows of 4 numbers; lower max_capacity"):
        made(torch.arange(6), torch.tensor([0, 6, 6, 6, 6]))
    monkeypatch.undo()
    assert_same_ids(made.dump("a"), before)


def test_offsets_that_do_not_fit_are_refused() -> None:
    made = kernel(plain_tables(), Sgd(), torch.float32, PoolingMode.SUM, DeviceDynamicEmbeddingTables)
    for offsets in ([0, 1, 1, 1, 1], [0, 2, 1, 2, 3], [1, 1, 2, 3, 3]):
        with pytest.raises(DataError, match=r"offsets go from . to ., of 3 ids, and must not fall"):
            made(torch.arange(3), torch.tensor(offsets))
    with pytest.raises(DataError, match=r"4 bags of 4 reads, which have .* rows"):
        made(torch.arange(3), torch.tensor([0, 1, 2, 3, 3]), batch_sizes=[1, 1, 1])
    with pytest.raises(DataError, match="-1 bags of 4 reads"):
        made(torch.arange(0), torch.arange(0))
    with pytest.raises(DataError, match="2 weights of 3 ids"):
        made(torch.arange(3), torch.tensor([0, 1, 2, 3, 3]), torch.ones(2))
    assert made.step == 0
    assert made(torch.empty(0, dtype=torch.int64), torch.tensor([0])).shape == (0, 4 + 3 + 4 + 3)


def test_there_is_room_for_as_many_ids_as_asked_at_first() -> None:
    tables = [replace(table, options=replace(table.options, init_capacity_per_rank=8)) for table in plain_tables()]
    made = kernel(tables, Adagrad(), torch.float32, PoolingMode.SUM, DeviceDynamicEmbeddingTables)
    assert [block.capacity for block in made.bank.blocks] == [6, 8, 8]  # the first has no more
    assert [len(moments[0]) for moments in made.tables.moments()] == [8, 10, 10]
    made(torch.arange(9), torch.tensor([0, 0, 9, 9, 9])).sum().backward()
    assert made.bank.blocks[1].capacity == 40
