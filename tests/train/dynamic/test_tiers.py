"""Tables with a second tier, beside the same tables all in memory: every number is the same, bit for bit."""

from dataclasses import replace
from pathlib import Path

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from hypothesis import given, settings
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
    tables: list[DynamicTable], optimizer: RowOptimizer, dtype: torch.dtype = torch.float32, folder: Path | None = None
) -> BatchedDynamicEmbeddingTables:
    return BatchedDynamicEmbeddingTables(
        tables, READS, optimizer, dtype, runtime=DynamicRuntime(3, folder), pooling=PoolingMode.MEAN, clock=lambda: 77
    )


def assert_same(found: DynamicState, expected: DynamicState) -> None:
    assert torch.equal(found.keys, expected.keys)
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.last_steps, expected.last_steps)
    assert torch.equal(found.scores, expected.scores)
    assert found.counters == expected.counters
    assert found.moments.keys() == expected.moments.keys()
    for name, moment in expected.moments.items():
        assert torch.equal(found.moments[name], moment), name


CALLS = st.sampled_from(["train", "train", "train", "two", "look", "remove", "expire", "reload", "prefetch"])
bags = st.lists(st.lists(st.integers(-3, 30), max_size=3), min_size=8, max_size=8)


@settings(max_examples=25, deadline=None)
@given(
    budgets=st.lists(st.one_of(st.none(), st.integers(0, 600)), min_size=3, max_size=3),
    caching=st.lists(st.booleans(), min_size=3, max_size=3),
    strategy=st.sampled_from([ScoreStrategy.STEP, ScoreStrategy.LFU]),
    threshold=st.sampled_from([0, 2]),
    optimizer=st.sampled_from(OPTIMIZERS),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    steps=st.lists(st.tuples(CALLS, bags), max_size=12),
)
def test_numbers_do_not_depend_on_tiers(
    budgets: list[int | None],
    caching: list[bool],
    strategy: ScoreStrategy,
    threshold: int,
    optimizer: RowOptimizer,
    dtype: torch.dtype,
    steps: list[tuple[str, list[list[int]]]],
) -> None:
    tables = tables_of(budgets, caching, strategy, threshold)
    tiered, plain = kernel(tables, optimizer, dtype), kernel(all_fast(tables), optimizer, dtype)
    for what, batch in steps:
        ids = torch.tensor([key for bag in batch for key in bag], dtype=torch.int64)
        offsets = torch.tensor([0, *(len(bag) for bag in batch)]).cumsum(0)
        if what == "prefetch":
            tiered.prefetch(ids, offsets)
        found = [_act(made, what, ids, offsets) for made in (tiered, plain)]
        assert torch.equal(found[0], found[1])
    for name in SIZES:
        assert_same(tiered.dump(name), plain.dump(name))
        assert_same(tiered.dump(name), plain.dump(name))


def _act(made: BatchedDynamicEmbeddingTables, what: str, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    if what in ("train", "two", "look", "prefetch"):
        made.train(what in ("train", "two"))
        try:
            vectors = [made(ids, offsets) for _ in range(1 + (what == "two"))]  # two lookups wait for their gradients
        except CapacityError as error:
            return torch.tensor([float(len(str(error)))])
        for number, part in enumerate(vectors):
            if part.requires_grad and what != "look":
                (part * torch.linspace(-1 - number, 1, part.numel()).view(part.shape)).sum().backward()
        return torch.cat([part.detach() for part in vectors])
    for name in SIZES:
        if what == "remove":
            made.remove(name, ids)
        elif what == "expire":
            made.expire(name, made.step - 1)
        else:
            made.load(name, made.dump(name))
    return torch.cat([made.find(name, torch.arange(-3, 31))[0].flatten() for name in SIZES])
