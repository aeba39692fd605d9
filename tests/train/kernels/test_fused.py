import copy
from typing import Any

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import DataError
from emberline.train.kernels import Adagrad, Adam, FusedTables, RowOptimizer, RowWiseAdagrad, Sgd, Table, TableBank, UpdateGate
from emberline.train.kernels import fused as fused_module
from tests.train.kernels.by_hand import OPTIMIZERS, Batch, TablesByHand

TABLES = [Table("a", 6, 3), Table("b", 1, 5), Table("c", 40, 3), Table("d", 4, 1)]
READS = [2, 0, 1, 3, 0]


def make(optimizer: RowOptimizer, seed: int = 0, dtype: torch.dtype = torch.float32, **more: Any) -> FusedTables:
    tables = FusedTables(TableBank(TABLES, READS, dtype), optimizer, **more)
    generator = torch.Generator().manual_seed(seed)
    for weights in tables.bank.weights():
        weights.copy_(torch.randn(weights.shape, generator=generator))
    return tables


def by_hand(tables: FusedTables, mean: bool = False) -> TablesByHand:
    return TablesByHand([table.double().numpy() for table in tables.bank.weights()], tables.bank.reads, tables.optimizer, mean)


def draw(seed: int, num_rows: int = 4, longest: int = 4) -> Batch:
    generator = np.random.default_rng(seed)

    def bag(rows: int) -> list[tuple[int, float]]:
        return [(int(generator.integers(rows)), float(np.float32(generator.normal()))) for _ in range(generator.integers(longest + 1))]

    return Batch([[bag(TABLES[table].rows) for _ in range(num_rows)] for table in READS])


def call(tables: FusedTables, batch: Batch, weighted: bool = False, mean: bool = False, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    ids, offsets = torch.tensor(batch.ids(), dtype=dtype), torch.tensor(batch.offsets(), dtype=dtype)
    weights = torch.tensor(batch.weights(), dtype=torch.float32) if weighted else None
    return tables.pooled(ids, offsets, batch.num_rows, weights, mean=mean)


def unweighted(batch: Batch) -> Batch:
    return Batch([[[(identity, 1.0) for identity, _ in bag] for bag in read] for read in batch.bags])


def gradient(seed: int, num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, sum(TABLES[table].dim for table in READS), generator=torch.Generator().manual_seed(seed))


def assert_same(tables: FusedTables, expected: TablesByHand, tolerance: float = 2e-5) -> None:
    for place, (weights, moments) in enumerate(zip(tables.bank.weights(), tables.moments(), strict=True)):
        np.testing.assert_allclose(weights.double().numpy(), expected.weights(place), rtol=tolerance, atol=tolerance)
        for moment, wanted in zip(moments, expected.moments(place), strict=True):
            np.testing.assert_allclose(moment.double().numpy(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize(("weighted", "mean"), [(False, False), (True, True)])
def test_training_is_that_of_loops(optimizer: RowOptimizer, weighted: bool, mean: bool) -> None:
    tables = make(optimizer)
    expected = by_hand(tables, mean)
    for seed in range(4):
        drawn = draw(seed)
        batch = drawn if weighted else unweighted(drawn)
        found = call(tables, batch, weighted, mean, torch.int32 if seed % 2 else torch.int64)
        np.testing.assert_allclose(found.detach().double().numpy(), expected.pooled(batch), rtol=1e-4, atol=1e-4)
        grad = gradient(seed, batch.num_rows)
        expected.hold(batch, grad.double().numpy())
        expected.apply()
        found.backward(grad)  # type: ignore[no-untyped-call]
        assert_same(tables, expected, 1e-4)
    assert tables.step == 4


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), num_rows=st.integers(0, 5), longest=st.integers(0, 3), chunk=st.sampled_from([1, 7, 1 << 17]))
def test_any_batch_and_any_chunk(seed: int, num_rows: int, longest: int, chunk: int) -> None:
    tables, batch = make(Adagrad(lr=0.3)), draw(seed, num_rows, longest)
    expected, grad = by_hand(tables), gradient(seed, num_rows)
    found = call(tables, batch, weighted=True)
    np.testing.assert_allclose(found.detach().numpy(), expected.pooled(batch).reshape(found.shape), rtol=1e-4, atol=1e-5)
    expected.hold(batch, grad.double().numpy())
    expected.apply()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_module, "CHUNK_NUMBERS", chunk)
        found.backward(grad)  # type: ignore[no-untyped-call]
    assert_same(tables, expected, 1e-4)


def test_all_ids_the_same_are_one_update() -> None:
    tables = FusedTables(TableBank([Table("t", 3, 2)], [0]), Adagrad(lr=1.0, eps=0.0))
    tables.pooled(torch.full((1000,), 1), torch.tensor([0, 400, 1000]), 2).backward(torch.tensor([[1.0, -2.0], [1.0, -2.0]]))  # type: ignore[no-untyped-call]
    assert tables.bank.weights()[0].tolist() == [[0, 0], [-1, 1], [0, 0]]
    assert tables.moments()[0][0].tolist() == [[0, 0], [1000.0**2, 2000.0**2], [0, 0]]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_vectors_by_position(optimizer: RowOptimizer) -> None:
    tables = FusedTables(TableBank([Table("a", 5, 3), Table("b", 2, 3)], [0, 1, 0]), optimizer)
    for weights in tables.bank.weights():
        weights.copy_(torch.randn(weights.shape, generator=torch.Generator().manual_seed(1)))
    before = [weights.clone() for weights in tables.bank.weights()]
    expected = by_hand(tables)
    ids, counts = torch.tensor([4, 4, 1, 0, 1, 4]), [3, 2, 1]
    found = tables.per_position(ids, counts)
    assert torch.equal(found, torch.stack([before[0][4], before[0][4], before[0][1], before[1][0], before[1][1], before[0][4]]))
    grad = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    bags = [[[(4, 1.0)], [(4, 1.0)], [(1, 1.0)]], [[(0, 1.0)], [(1, 1.0)]], [[(4, 1.0)]]]
    first = 0
    for read, own in enumerate(bags):  # each id is a bag of its own
        alone: list[list[list[tuple[int, float]]]] = [own if place == read else [[]] * len(own) for place in range(3)]
        wide = torch.zeros(len(own), 9)
        wide[:, 3 * read : 3 * read + 3] = grad[first : first + len(own)]
        expected.hold(Batch(alone), wide.double().numpy())
        first += len(own)
    expected.apply()
    found.backward(grad)  # type: ignore[no-untyped-call]
    assert_same(tables, expected)


def test_no_ids_by_position() -> None:
    tables = FusedTables(TableBank([Table("a", 5, 3)], [0, 0]), Adam())
    found = tables.per_position(torch.empty(0, dtype=torch.int64), [0, 0])
    assert found.shape == (0, 3)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert tables.step == 1


# fbgemm's CPU kernels leave out the decay of row-wise Adagrad, and the division of weighted means in backward: loops stand for those.
@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [
        (Sgd(lr=0.1), EmbOptimType.EXACT_SGD),
        (Adagrad(lr=0.1), EmbOptimType.EXACT_ADAGRAD),
        (RowWiseAdagrad(lr=0.1), EmbOptimType.EXACT_ROWWISE_ADAGRAD),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("weighted", "mean"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("max_gradient", [None, 0.5])
def test_fbgemm_learns_the_same(optimizer: RowOptimizer, kind: EmbOptimType, mean: bool, weighted: bool, max_gradient: float | None) -> None:
    tables = [Table("a", 30, 4), Table("b", 8, 8)]
    ours = FusedTables(TableBank(tables, [0, 0, 1]), optimizer, max_gradient=max_gradient)
    theirs = SplitTableBatchedEmbeddingBagsCodegen(
        [(table.rows, table.dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for table in tables],
        feature_table_map=[0, 0, 1],
        optimizer=kind,
        learning_rate=0.1,
        pooling_mode=PoolingMode.MEAN if mean else PoolingMode.SUM,
        gradient_clipping=max_gradient is not None,
        max_gradient=max_gradient or 1.0,
    )
    generator = torch.Generator().manual_seed(0)
    for own, weights in zip(ours.bank.weights(), theirs.split_embedding_weights(), strict=True):
        weights.copy_(torch.randn(weights.shape, generator=generator))
        own.copy_(weights)
    for _ in range(5):
        counts = torch.randint(5, (15,), generator=generator)
        offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        ids = torch.randint(8, (int(offsets[-1]),), generator=generator)
        factors = torch.rand(len(ids), generator=generator) if weighted else None
        grad = torch.randn(5, 16, generator=generator)
        found, wanted = ours.pooled(ids, offsets, 5, factors, mean=mean), theirs(ids, offsets, per_sample_weights=factors)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        found.backward(grad)  # type: ignore[no-untyped-call]
        wanted.backward(grad.clone())
    for own, weights in zip(ours.bank.weights(), theirs.split_embedding_weights(), strict=True):
        torch.testing.assert_close(own, weights, rtol=1e-5, atol=1e-6)
    for own_moments, moments in zip(ours.moments(), theirs.split_optimizer_states() or [(), ()], strict=True):
        for moment, other in zip(own_moments, moments, strict=True):
            torch.testing.assert_close(moment, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_held_gradients_are_one_large_step(optimizer: RowOptimizer) -> None:
    gate = UpdateGate(hold=True, scale=64.0)
    tables = make(optimizer, gate=gate)
    expected = by_hand(tables)
    before = [weights.clone() for weights in tables.bank.weights()]
    for seed in range(3):
        batch = unweighted(draw(seed))
        grad = gradient(seed, batch.num_rows)
        expected.hold(batch, grad.double().numpy())
        call(tables, batch).backward(grad * gate.scale)  # type: ignore[no-untyped-call]
    assert all(torch.equal(weights, own) for weights, own in zip(before, tables.bank.weights(), strict=True))
    tables.apply_held()
    expected.apply()
    assert tables.step == 1
    assert_same(tables, expected, 1e-4)
    tables.apply_held()  # nothing is held any more
    assert tables.step == 1
    gate.hold = False
    batch = unweighted(draw(7))
    expected.hold(batch, gradient(7, batch.num_rows).double().numpy())
    expected.apply()
    call(tables, batch).backward(gradient(7, batch.num_rows) * gate.scale)  # type: ignore[no-untyped-call]
    assert_same(tables, expected, 1e-4)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_gradients_that_are_not_finite_can_be_dropped(value: float) -> None:
    tables = make(Adam(), gate=UpdateGate(hold=True))
    before = [weights.clone() for weights in tables.bank.weights()]
    batch = Batch([[[(0, 1.0)]] for _ in READS])
    grad = gradient(0, 1)
    call(tables, batch).backward(grad)  # type: ignore[no-untyped-call]
    grad[0, 5] = value
    call(tables, batch).backward(grad)  # type: ignore[no-untyped-call]
    tables.drop_held()
    tables.apply_held()
    assert tables.step == 0
    assert all(torch.equal(weights, own) for weights, own in zip(before, tables.bank.weights(), strict=True))


def test_clipping_is_by_number_and_knows_the_scale() -> None:
    for scale in (1.0, 8.0):
        tables = FusedTables(TableBank([Table("t", 2, 2)], [0]), Sgd(lr=1.0), max_gradient=0.5, gate=UpdateGate(scale=scale))
        found = tables.pooled(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2, 3]), 3)
        found.backward(scale * torch.tensor([[3.0, 0.25], [-4.0, 1.0], [0.125, -9.0]]))  # type: ignore[no-untyped-call]
        assert tables.bank.weights()[0].tolist() == [[0.0, -0.75], [-0.125, 0.5]]


def test_the_rate_can_change_between_steps() -> None:
    tables = FusedTables(TableBank([Table("t", 1, 1)], [0]), Sgd(lr=1.0))
    for lr in (1.0, 0.25, 4.0):
        tables.lr = lr
        tables.pooled(torch.tensor([0]), torch.tensor([0, 1]), 1).backward(torch.ones(1, 1))  # type: ignore[no-untyped-call]
    assert tables.bank.weights()[0].tolist() == [[-5.25]]


@pytest.mark.parametrize("in_graph", [False, True])
def test_frozen_tables_stay_as_they_are(in_graph: bool) -> None:
    tables = make(Sgd(lr=0.0), frozen_in_graph=in_graph)
    before = [weights.clone() for weights in tables.bank.weights()]
    found = call(tables, unweighted(draw(1)))
    assert found.requires_grad == in_graph
    if in_graph:
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert tables.step == 0
    assert all(torch.equal(weights, own) for weights, own in zip(before, tables.bank.weights(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("optimizer", [Sgd(lr=0.1), Adagrad(lr=0.1), RowWiseAdagrad(lr=0.1), Adam(lr=0.1)], ids=repr)
def test_half_tables_are_updated_in_float32_and_rounded_to_the_nearest(dtype: torch.dtype, optimizer: RowOptimizer) -> None:
    half, whole = make(optimizer, dtype=dtype), make(optimizer)
    batch = unweighted(draw(3))
    for own, weights in zip(half.bank.weights(), whole.bank.weights(), strict=True):
        weights.copy_(own)
    outputs = [call(tables, batch) for tables in (half, whole)]
    assert outputs[0].dtype == torch.float32
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-6, atol=1e-6)
    for output in outputs:
        output.backward(gradient(3, batch.num_rows))  # type: ignore[no-untyped-call]
    for own, weights in zip(half.bank.weights(), whole.bank.weights(), strict=True):
        assert torch.equal(own, weights.to(dtype))
    for own_moments, moments in zip(half.moments(), whole.moments(), strict=True):
        assert all(moment.dtype == torch.float32 for moment in own_moments)
        assert all(torch.equal(moment, other) for moment, other in zip(own_moments, moments, strict=True))


def test_half_gradients_are_taken_as_float32() -> None:
    tables = FusedTables(TableBank([Table("t", 2, 2)], [0]), Sgd(lr=1.0))
    tables.pooled(torch.tensor([1]), torch.tensor([0, 1]), 1).half().sum().backward()  # type: ignore[no-untyped-call]
    assert tables.bank.weights()[0].tolist() == [[0, 0], [-1, -1]]


def test_no_graph_where_none_is_asked_for() -> None:
    with torch.no_grad():
        assert not call(make(Adam()), draw(0)).requires_grad


def test_ids_are_checked() -> None:
    with pytest.raises(DataError, match="table 'd' has rows 0 to 3, but row 4 is asked for"):
        call(make(Sgd()), Batch([[[]], [[]], [[]], [[(4, 1.0)]], [[]]]))
    tables = FusedTables(TableBank([Table("t", 2, 2)], [0]), Sgd())
    with pytest.raises(DataError, match="table 't' has rows 0 to 1, but row -1 is asked for"):
        tables.per_position(torch.tensor([-1]), [1])


def test_the_same_bits_for_any_number_of_threads() -> None:
    threads, found = torch.get_num_threads(), []
    for number in (1, 2):
        torch.set_num_threads(number)
        tables = FusedTables(TableBank([Table("t", 5000, 16)], [0]), Adam())
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            ids = torch.randint(5000, (40_000,), generator=generator)
            tables.pooled(ids, torch.arange(0, 40_001, 4), 10_000).backward(torch.randn(10_000, 16, generator=generator))  # type: ignore[no-untyped-call]
        found.append(tables.bank.weights()[0])
        assert torch.get_num_threads() == number
    torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])


def test_a_copy_learns_by_itself() -> None:
    tables = make(Adam())
    copied, untouched = copy.deepcopy(tables), copy.deepcopy(tables)
    batch = unweighted(draw(1))
    expected = by_hand(tables)
    expected.hold(batch, gradient(1, batch.num_rows).double().numpy())
    expected.apply()
    call(copied, batch).backward(gradient(1, batch.num_rows))  # type: ignore[no-untyped-call]
    assert_same(copied, expected, 1e-4)
    assert all(torch.equal(one, other) for one, other in zip(tables.bank.weights(), untouched.bank.weights(), strict=True))
