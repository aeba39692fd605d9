"""What is done to two kernels of the same tables, whose numbers must be the same, bit for bit."""

from dataclasses import replace

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from hypothesis import strategies as st

from emberline.errors import CapacityError
from emberline.train.dynamic.options import DynamicEmbOptions, DynamicRuntime, FrequencyAdmission, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.state import DynamicState, DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.kernels import Adagrad, Adam, RowWiseAdagrad, Sgd
from emberline.train.kernels.optimizers import RowOptimizer

UNIFORM = Initializer(mode=InitializerMode.UNIFORM, lower=-1, upper=1)
OPTIMIZERS = (Sgd(lr=0.5), Adagrad(lr=0.5, initial_accumulator_value=0.25), RowWiseAdagrad(lr=0.5), Adam(lr=0.25))
SIZES = {"a": 6, "b": 40, "c": 9}
READS = [0, 1, 2, 1]


def tables_of(budgets: list[int | None], caching: list[bool], strategy: ScoreStrategy, threshold: int, dim: int = 4) -> list[DynamicTable]:
    admission = FrequencyAdmission(threshold=threshold, counter_capacity=8, initializer=UNIFORM) if threshold else None
    made = []
    for (name, rows), budget, moves in zip(SIZES.items(), budgets, caching, strict=True):
        options = DynamicEmbOptions(
            max_capacity=rows,
            initializer=UNIFORM,
            eval_initializer=UNIFORM,
            score_strategy=strategy,
            admission=admission,
            caching=moves,
            local_hbm_for_values=budget,
        )
        made.append(DynamicTable(name, dim if name != "b" else 3, options, rows, 8 if threshold else 0))
    return made


def all_fast(tables: list[DynamicTable]) -> list[DynamicTable]:
    return [replace(table, options=replace(table.options, local_hbm_for_values=None)) for table in tables]


def kernel(
    tables: list[DynamicTable],
    optimizer: RowOptimizer,
    dtype: torch.dtype = torch.float32,
    pooling: PoolingMode = PoolingMode.MEAN,
    kind: type[BatchedDynamicEmbeddingTables] = BatchedDynamicEmbeddingTables,
    device: str = "cpu",
) -> BatchedDynamicEmbeddingTables:
    runtime = DynamicRuntime(3)
    return kind(tables, READS, optimizer, dtype, runtime=runtime, pooling=pooling, device=torch.device(device), clock=lambda: 77)


def assert_numbers(found: torch.Tensor, expected: torch.Tensor, optimizer: RowOptimizer, is_one_device: bool = True) -> None:
    """The same bits; but PyTorch's fused kernels round the last numbers of an array otherwise than the first, and other rows may be the last ones."""
    if is_one_device and isinstance(optimizer, Sgd | RowWiseAdagrad):
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=1e-3 if found.dtype == torch.float16 else 1e-5, atol=1e-6)


def assert_same_ids(found: DynamicState, expected: DynamicState) -> None:
    """All but what is learned."""
    for name in ("keys", "last_steps", "scores", "counted_keys", "counts", "default", "unadmitted"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.counters == expected.counters


def numbers_of(state: DynamicState) -> list[torch.Tensor]:
    """What is learned."""
    return [state.weights, *(state.moments[name] for name in sorted(state.moments))]


CALLS = st.sampled_from(["train", "train", "train", "two", "look", "remove", "expire", "reload", "prefetch"])
bags = st.lists(st.lists(st.integers(-3, 30), max_size=3), min_size=8, max_size=8)


def assert_equal_runs(made: BatchedDynamicEmbeddingTables, plain: BatchedDynamicEmbeddingTables, steps: list[tuple[str, list[list[int]]]]) -> None:
    """Both do the same, and are the same afterwards."""
    has_same_rows, is_one_device = type(made) is type(plain), made.device == plain.device
    batches = [_batch(own) for _, own in steps]
    for (what, _), (ids, offsets), (later_ids, later_offsets) in zip(steps, batches, [*batches, _batch([])][1:], strict=True):
        made.prefetch(later_ids.to(made.device), later_offsets.to(made.device))  # as a job does: just before the batch that comes first
        found, expected = (act(one, what, ids.to(one.device), offsets.to(one.device)).cpu() for one in (made, plain))
        assert_numbers(found, expected, Sgd() if has_same_rows else plain.tables.optimizer, is_one_device)
    for name in SIZES:
        states = made.dump(name), plain.dump(name)
        assert_same_ids(*states)
        for own, other in zip(*map(numbers_of, states), strict=True):
            assert_numbers(own, other, Sgd() if has_same_rows else plain.tables.optimizer, is_one_device)


def _batch(own: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and offsets of bags."""
    ids = torch.tensor([key for bag in own for key in bag], dtype=torch.int64)
    return ids, torch.tensor([0, *(len(bag) for bag in own)]).cumsum(0)


def act(made: BatchedDynamicEmbeddingTables, what: str, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    if what in ("train", "two", "look", "prefetch"):
        made.train(what in ("train", "two"))
        try:
            vectors = [made(ids, offsets) for _ in range(1 + (what == "two"))]  # two lookups wait for their gradients
        except CapacityError as error:
            return torch.tensor([float(len(str(error)))])
        for number, part in enumerate(vectors):
            if part.requires_grad and what != "look":
                (part * torch.linspace(-1 - number, 1, part.numel()).view(part.shape).to(part.device)).sum().backward()
        return torch.cat([part.detach() for part in vectors])
    for name in SIZES:
        if what == "remove":
            made.remove(name, ids)
        elif what == "expire":
            made.expire(name, made.step - 1)
        else:
            made.load(name, made.dump(name))
    return torch.cat([made.find(name, torch.arange(-3, 31))[0].flatten() for name in SIZES])
