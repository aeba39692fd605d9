import math
from dataclasses import replace

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode

from emberline.errors import CapacityError, CheckpointError, ConfigError, DataError, TrainingError
from emberline.train.dynamic.options import DynamicEmbOptions, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.kernels import Adagrad, Adam, Lamb, RowOptimizer, Sgd


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


def _lone(rows: int = 64, optimizer: RowOptimizer | None = None, **more: object) -> BatchedDynamicEmbeddingTables:
    options = more.pop("reads", [0])
    return BatchedDynamicEmbeddingTables([_table(rows)], options, optimizer or Sgd(lr=0.5), **more)  # type: ignore[arg-type]


def test_batches_without_ids_count_as_steps_and_change_nothing_else() -> None:
    tables = _lone()
    assert _train(tables, [], []).tolist() == [[0.0, 0.0]] * 2
    assert tables(torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)).shape == (0, 2)
    assert (tables.step, tables.sizes()) == (2, {"t": 0})
    _train(tables, [9])
    assert tables.dump("t").last_steps.tolist() == [3]


def test_features_that_share_a_table_may_have_other_numbers_of_ids_and_rows() -> None:
    tables = _lone(reads=[0, 0])
    first, second = torch.arange(21), torch.arange(10, 40)
    ids = torch.cat([first, second])
    found = tables(ids, torch.tensor([0, 20, 21, 31, 41, 51]), batch_sizes=[2, 3])
    assert found.tolist() == [20.0, 20.0, 1.0, 1.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    (found * torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])).sum().backward()
    expected = [0.5 if key < 10 else -0.5 if key < 21 else 0.0 for key in range(40)]
    assert tables.dump("t").weights[:, 0].tolist() == expected
    counters = tables.counters("t")
    assert (counters.size, counters.admitted, counters.seen, counters.misses) == (40, 40, 51, 51)


@pytest.mark.parametrize("batch", [[1, 2, 3], [7, 8, 9], [3, 8, 1, 3]], ids=["resident", "missing", "both"])
def test_rows_are_those_of_their_ids(batch: list[int]) -> None:
    tables = _lone(4)
    for key in (1, 2, 3):
        for _ in range(key):
            _train(tables, [key])
    assert _train(tables, *([key] for key in batch))[:, 0].tolist() == [1.0 - 0.5 * key if key < 4 else 1.0 for key in batch]


def test_as_many_ids_as_there_are_rows_all_stay() -> None:
    tables = _lone(500)
    for start in range(0, 500, 50):
        _train(tables, [key * 1_000_003 for key in range(start, start + 50)])
    counters = tables.counters("t")
    assert (counters.size, counters.capacity, counters.admitted, counters.evicted) == (500, 500, 500, 0)


def test_one_row_serves_one_id_at_a_time() -> None:
    tables = _lone(1)
    for key in (-(2**63), 2**63 - 1, 0, 0):
        assert _train(tables, [key, key]).tolist() == [[2.0, 2.0]] or key == 0
    assert tables.dump("t").weights.tolist() == [[-1.0, -1.0]]
    with pytest.raises(CapacityError, match="raise max_capacity"):
        _train(tables, [0, 1])
    assert (tables.dump("t").keys.tolist(), tables.step) == ([0], 4)


def test_weights_scale_vectors_and_count_for_nothing() -> None:
    table = _table(8, ScoreStrategy.LFU)
    tables = BatchedDynamicEmbeddingTables([table], [0], Sgd(lr=0.5), pooling=PoolingMode.MEAN)
    found = tables(torch.tensor([1, 1, 2]), torch.tensor([0, 2, 3]), torch.tensor([10.0, 20.0, 0.5]))
    assert found.tolist() == [[15.0, 15.0], [0.5, 0.5]]
    assert tables.dump("t").scores.tolist() == [2, 1]
    with pytest.raises(DataError, match="1 weights of 2 ids"):
        tables(torch.tensor([7, 8]), torch.tensor([0, 2]), torch.ones(1))
    with pytest.raises(DataError, match="offsets"):
        tables(torch.tensor([7, 8]), torch.tensor([0, 3]))
    assert (tables.step, tables.sizes()) == (1, {"t": 2})


def test_positions_get_their_own_vectors() -> None:
    tables = _lone(pooling=PoolingMode.NONE, reads=[0, 0])
    found = tables(torch.tensor([4, 5, 4]), torch.tensor([0, 1, 2, 2, 3]))
    found.backward(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert tables.dump("t").weights.tolist() == [[-2.0, -3.0], [-0.5, -1.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_dtype(dtype: torch.dtype) -> None:
    tables = _lone(dtype=dtype, optimizer=Adagrad(lr=0.25, eps=0.0, initial_accumulator_value=3.0))
    _train(tables, [1], [1, 2])
    state = tables.dump("t")
    assert state.weights.dtype == dtype
    root = math.sqrt(3 + 4)
    torch.testing.assert_close(state.weights.float(), torch.tensor([[1 - 0.5 / root] * 2, [1 - 0.25 / 2] * 2]), atol=4e-3, rtol=0)
    assert state.moments["sum"].tolist() == [[7.0, 7.0], [4.0, 4.0]]
    other = _lone(dtype=dtype, optimizer=Adagrad(lr=0.25, eps=0.0))
    assert other.load("t", state) == 0
    assert other.dump("t").weights.equal(state.weights)


def test_adam_goes_by_the_updates_of_all() -> None:
    tables = _lone(optimizer=Adam(lr=0.1, eps=1e-8))
    _train(tables, [1])
    _train(tables, [2])
    first, second = 0.1 * 1.0 / (1 - 0.9**2), 0.001 * 1.0 / (1 - 0.999**2)
    state = tables.dump("t")
    torch.testing.assert_close(state.weights[:, 0], torch.tensor([1.0 - 0.1, 1.0 - 0.1 * first / math.sqrt(second)]))
    torch.testing.assert_close(state.moments["exp_avg"][:, 0], torch.tensor([0.1, 0.1]))


def test_gradients_that_are_no_numbers_reach_their_rows_alone() -> None:
    tables = _lone()
    tables(torch.tensor([1, 2]), torch.tensor([0, 1, 2])).backward(torch.tensor([[math.nan, 1.0], [1.0, 1.0]]))
    weights = tables.dump("t").weights.tolist()
    assert math.isnan(weights[0][0])
    assert (weights[0][1], weights[1]) == (0.5, [0.5, 0.5])


def test_gradients_of_rows_that_others_got_are_nobodys() -> None:
    tables = _lone(2)
    early = tables(torch.tensor([1, 2]), torch.tensor([0, 1, 2]))
    tables(torch.tensor([2]), torch.tensor([0, 1]))
    tables(torch.tensor([3]), torch.tensor([0, 1]))  # takes the row of 1
    early.sum().backward()
    assert dict(zip(*(part.tolist() for part in (tables.dump("t").keys, tables.dump("t").weights[:, 0])), strict=True)) == {2: 0.5, 3: 1.0}


def test_frozen_tables_let_nobody_in() -> None:
    tables = _lone(optimizer=Sgd(lr=0.0))
    assert tables(torch.tensor([1]), torch.tensor([0, 1])).tolist() == [[7.0, 7.0]]
    assert (tables.step, tables.sizes(), tables.counters("t").seen) == (0, {"t": 0}, 0)


def test_states_of_more_ids_than_rows_keep_the_highest_scores() -> None:
    large = _lone(8)
    for key in (5, 1, 3, 2):
        _train(large, [key])
    small = _lone(2)
    assert small.load("t", large.dump("t")) == 2
    assert small.dump("t").keys.tolist() == [2, 3]
    assert (small.counters("t").dropped, small.step) == (2, 4)


def test_states_of_other_tables_are_refused_and_change_nothing() -> None:
    tables = _lone()
    _train(tables, [1, 2])
    state = tables.dump("t")
    for wrong in (
        replace(state, weights=state.weights[:, :1]),
        replace(state, weights=state.weights.half()),
        replace(state, keys=torch.tensor([1, 1])),
        replace(state, last_steps=torch.tensor([-1, 0])),
        replace(state, scores=state.scores[:1]),
    ):
        with pytest.raises(CheckpointError, match="table 't'"):
            tables.load("t", wrong)
    with pytest.raises(CheckpointError, match="no 'sum', which the optimiser keeps"):
        _lone(optimizer=Adagrad()).load("t", state)
    assert tables.dump("t").weights.equal(state.weights)


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="not by Lamb"):
        _lone(optimizer=Lamb())
    with pytest.raises(ConfigError, match="different names"):
        BatchedDynamicEmbeddingTables([_table(2), _table(2)], [0, 1], Sgd())
    with pytest.raises(ConfigError, match="0 rows of 2 numbers"):
        _lone(0)
    with pytest.raises(ConfigError, match="fewer than"):
        _lone(2**32)
    tables = _lone()
    with pytest.raises(TrainingError, match="CUSTOMIZED"):
        tables.set_scores("t", torch.tensor([1]), torch.tensor([1]))
    with pytest.raises(TrainingError, match="which ids were removed is not kept"):
        tables.changes_since("t", 0)


def test_a_table_of_more_rows_than_memory_takes_what_it_uses() -> None:
    tables = BatchedDynamicEmbeddingTables([_table(2**31 - 8, ScoreStrategy.LFU)], [0], Sgd(lr=0.5))
    assert _train(tables, [1, -1]).tolist() == [[2.0, 2.0]]
    state = tables.dump("t")
    assert (state.weights.tolist(), state.scores.tolist()) == ([[0.5, 0.5]] * 2, [1, 1])
