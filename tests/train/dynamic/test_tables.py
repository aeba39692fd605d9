import pytest
import torch

from emberline.errors import CapacityError
from emberline.train.dynamic.options import DynamicEmbOptions, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.kernels import Sgd


def _table(rows: int, strategy: ScoreStrategy = ScoreStrategy.STEP) -> DynamicTable:
    ones = Initializer(mode=InitializerMode.CONSTANT, value=1.0)
    sevens = Initializer(mode=InitializerMode.CONSTANT, value=7.0)
    return DynamicTable("t", 2, DynamicEmbOptions(max_capacity=rows, initializer=ones, eval_initializer=sevens, score_strategy=strategy), rows)


def _train(tables: BatchedDynamicEmbeddingTables, *bags: list[int]) -> torch.Tensor:
    ids = torch.tensor([key for bag in bags for key in bag], dtype=torch.int64)
    offsets = torch.tensor([0, *(len(bag) for bag in bags)]).cumsum(0)
    vectors = tables(ids, offsets)
    vectors.sum().backward()
    found: torch.Tensor = vectors.detach()
    return found


def test_ids_get_rows_and_learn() -> None:
    tables = BatchedDynamicEmbeddingTables([_table(8)], [0], Sgd(lr=0.5))
    assert _train(tables, [5, -3], [], [5, 2**63 - 1]).tolist() == [[2.0, 2.0], [0.0, 0.0], [2.0, 2.0]]
    state = tables.dump("t")
    assert state.keys.tolist() == [-3, 5, 2**63 - 1]
    assert state.weights.tolist() == [[0.5, 0.5], [0.0, 0.0], [0.5, 0.5]]  # id 5 got two gradients of 1
    tables.eval()
    assert tables(torch.tensor([5, 4]), torch.tensor([0, 1, 2])).tolist() == [[0.0, 0.0], [7.0, 7.0]]
    assert tables.sizes() == {"t": 3}


def test_the_oldest_give_way_and_a_full_table_that_keeps_all_raises() -> None:
    tables = BatchedDynamicEmbeddingTables([_table(2)], [0], Sgd(lr=0.5))
    for bag in ([1], [2], [1], [3]):
        _train(tables, bag)
    assert tables.dump("t").keys.tolist() == [1, 3]
    fixed = BatchedDynamicEmbeddingTables([_table(2, ScoreStrategy.NO_EVICTION)], [0], Sgd(lr=0.5))
    _train(fixed, [1, 2])
    before = fixed.dump("t")
    with pytest.raises(CapacityError, match="table 't' has 2 ids in 2 rows of this rank, and score_strategy is NO_EVICTION, and 1 new ids need rows"):
        _train(fixed, [2, 3])
    after = fixed.dump("t")
    assert after.keys.tolist() == [1, 2]
    assert after.weights.equal(before.weights)
    assert after.step == before.step == 1
    assert fixed.counters("t").failed == 1
