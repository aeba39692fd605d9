"""Evaluation's one call beside the long way, which training takes too, bit by bit."""

import numpy as np
import pytest
import torch

from emberline.train.dynamic.options import DynamicEmbOptions, Initializer, InitializerMode
from emberline.train.dynamic.slots import KERNEL
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.kernels import Sgd

DIMS = (1, 8, 20, 64, 136)
READS = (3, 0, 1, 0, 4, 2)
EDGES = [2**63 - 1, -(2**63), 0, -1]


def _tables() -> BatchedDynamicEmbeddingTables:
    if KERNEL.get() is None:
        pytest.skip(f"no compiled index: {KERNEL.reason()}")
    draws = Initializer(mode=InitializerMode.NORMAL, std_dev=3.0)
    options = DynamicEmbOptions(max_capacity=4000, initializer=draws, eval_initializer=draws)
    tables = [DynamicTable(f"t{place}", dim, options, 4000) for place, dim in enumerate(DIMS)]
    return BatchedDynamicEmbeddingTables(tables, READS, Sgd(lr=0.5))


def _batch(rng: np.random.Generator, num_rows: int, longest: int, keys: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.from_numpy(rng.integers(0, longest, len(READS) * num_rows, endpoint=True))
    ids = rng.choice(np.array(keys, dtype=np.int64), int(lengths.sum()))
    return torch.from_numpy(ids), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


def _both(tables: BatchedDynamicEmbeddingTables, ids: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In one call, and the long way: where gradients could come."""
    tables.eval()
    slow = tables(ids, offsets)
    with torch.no_grad():
        fast = tables(ids, offsets)
    tables.train()
    assert (slow.requires_grad, fast.requires_grad) == (True, False)
    return fast, slow.detach()


@pytest.mark.parametrize(("num_rows", "longest"), [(0, 0), (1, 0), (1, 1), (7, 3), (3, 200), (500, 4)])
def test_sums_are_those_of_the_long_way(num_rows: int, longest: int) -> None:
    rng, tables = np.random.default_rng(longest), _tables()
    keys = [*EDGES, *(rng.integers(-(2**63), 2**63 - 1, 900).tolist())]
    for known in (3, 300, 700):  # the index grows meanwhile
        tables(*_batch(rng, 40, 5, keys[:known]))
        batch = _batch(rng, num_rows, longest, keys)
        for fast, slow in (_both(tables, *batch), _both(tables, batch[0], batch[1].int())):
            assert (fast.shape, fast.dtype) == (slow.shape, slow.dtype) == ((num_rows, 230), torch.float32)
            assert fast.numpy().tobytes() == slow.numpy().tobytes()
    other = _tables()
    for name, size in tables.sizes().items():
        assert other.load(name, tables.dump(name)) == 0
        assert other.sizes()[name] == size > 0
    assert _both(other, *batch)[0].equal(slow)


def test_no_number_infinities_and_minus_zeros_are_added_alike() -> None:
    tables = _tables()
    ids = torch.arange(6)
    tables(ids.repeat(6), torch.arange(0, 37, 6))
    for name in tables.sizes():
        state = tables.dump(name)
        state.weights[:] = torch.tensor([-0.0, float("nan"), float("inf"), -float("inf"), 1e38, 3e38])[:, None]
        tables.load(name, state)
    bags = [[0], [0, 0], [1], [2, 4], [2, 3], [5, 5], [4, 5, 3]] * len(READS)
    fast, slow = _both(tables, torch.tensor([key for bag in bags for key in bag]), torch.tensor([0, *map(len, bags)]).cumsum(0))
    assert fast.nan_to_num(nan=12.5).equal(slow.nan_to_num(nan=12.5))
    assert fast.signbit()[:3].equal(slow.signbit()[:3])
    assert fast[:4, 0].tolist()[:2] == [0.0, 0.0]
