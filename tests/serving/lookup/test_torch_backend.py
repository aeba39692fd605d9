"""Pooled lookups against torch's own embedding bag and by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given
from hypothesis import strategies as st

from emberline.schema import HashEncoder, LookupSpec, ModelSchema, Pooling
from emberline.serving.lookup import Bags, RowFinder, TorchLookup
from emberline.serving.quantized import STORED_DTYPES, decode_rows, encode_rows
from emberline.serving.request import PackedRequest, RequestValidator
from tests.serving.conftest import make_lookup_model, sparse

CPU = torch.device("cpu")
TABLE = torch.arange(10, dtype=torch.float32)[:, None].repeat(1, 2)


def schema_of(pooling: Pooling, *, weighted: bool, dim: int = 2) -> ModelSchema:
    lookup = LookupSpec(key="f", feature="f", table="t", pooling=pooling, dim=dim, weighted=weighted)
    return make_lookup_model((lookup,), (sparse("f", HashEncoder(rows=10), weighted=weighted),), {"t": TABLE.new_zeros(10, dim)}).schema


def pool(
    schema: ModelSchema, table: torch.Tensor, ids: list[int], lengths: list[int], weights: list[float] | None = None, dtype: str = "fp32"
) -> torch.Tensor:
    request = PackedRequest(np.array(ids, np.int64), np.array(lengths, np.int32), None if weights is None else np.array(weights, np.float32))
    bags = Bags.cut(RequestValidator(schema).check(request), 1, CPU)
    return TorchLookup(schema, {"t": table}, {"t": dtype}).pooled(RowFinder(schema, {})(bags))


@given(
    lengths=st.lists(st.integers(0, 4), max_size=6),
    pooling=st.sampled_from(Pooling),
    weighted=st.booleans(),
    dim=st.sampled_from([1, 2, 3, 4, 16]),
    seed=st.integers(0, 999),
)
def test_equals_torch(lengths: list[int], pooling: Pooling, weighted: bool, dim: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    table = torch.from_numpy(draw.normal(size=(10, dim)).astype(np.float32))
    ids = draw.integers(0, 10, sum(lengths))
    weights = (draw.normal(size=ids.size) + 3).astype(np.float32) if weighted else None
    found = pool(schema_of(pooling, weighted=weighted, dim=dim), table, ids.tolist(), lengths, None if weights is None else weights.tolist())
    offsets = torch.tensor([0, *np.cumsum(lengths, dtype=np.int64)])
    if weights is None:
        want = nnf.embedding_bag(torch.from_numpy(ids), table, offsets, mode=pooling.value, include_last_offset=True)
    else:
        sums = nnf.embedding_bag(
            torch.from_numpy(ids), table, offsets, mode="sum", include_last_offset=True, per_sample_weights=torch.from_numpy(weights)
        )
        totals = torch.tensor([float(part.sum()) for part in np.split(weights, offsets[1:-1])]) if lengths else torch.empty(0)
        want = torch.where(totals[:, None] != 0, sums / totals[:, None], 0) if pooling is Pooling.MEAN else sums
    torch.testing.assert_close(found, want[: len(lengths)], rtol=1e-6, atol=1e-6)


def test_weights_apply_where_the_lookup_says_so() -> None:
    assert pool(schema_of(Pooling.SUM, weighted=True), TABLE, [1, 2], [2], [10, 100]).tolist() == [[210.0, 210.0]]
    assert pool(schema_of(Pooling.SUM, weighted=False), TABLE, [1, 2], [2]).tolist() == [[3.0, 3.0]]


def test_a_weighted_mean_divides_by_the_sum_of_weights() -> None:
    schema = schema_of(Pooling.MEAN, weighted=True)
    assert pool(schema, TABLE, [1, 2], [2], [10, 100])[0].tolist() == pytest.approx([210 / 110] * 2, abs=1e-6)
    assert pool(schema, TABLE, [1, 2], [2], [1.5, -1.5]).tolist() == [[0.0, 0.0]]
    assert pool(schema, TABLE, [1, 2], [0, 2, 0], [0, 0]).tolist() == [[0.0, 0.0]] * 3
    assert pool(schema, TABLE, [1, 2], [2]).tolist() == [[1.5, 1.5]]


def test_weights_that_cancel_only_in_float32_are_summed_in_float64() -> None:
    """0.1 + 0.2 - 0.3 is 0 in float32 sums, but -7.45e-9 for those three float32 numbers exactly."""
    weights = np.array([0.1, 0.2, -0.3], np.float32)
    total = float(weights.astype(np.float64).sum())
    assert total != 0
    found = pool(schema_of(Pooling.MEAN, weighted=True), TABLE, [1, 2, 3], [3], weights.tolist())
    want = float((weights.astype(np.float64) * [1, 2, 3]).sum()) / total
    assert found[0].tolist() == pytest.approx([want] * 2, rel=1e-6)


@pytest.mark.parametrize("dtype", sorted(STORED_DTYPES))
@given(
    lengths=st.lists(st.integers(0, 4), max_size=6),
    pooling=st.sampled_from(Pooling),
    weighted=st.booleans(),
    dim=st.sampled_from([1, 2, 3, 4, 5, 16, 17]),
    seed=st.integers(0, 999),
)
def test_any_number_type_pools_as_its_decoded_rows_do_to_the_bit(
    dtype: str, lengths: list[int], pooling: Pooling, weighted: bool, dim: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    stored = encode_rows(torch.from_numpy(draw.normal(size=(10, dim)).astype(np.float32)), dtype)
    ids = draw.integers(0, 10, sum(lengths))
    weights = draw.normal(size=ids.size).astype(np.float32).tolist() if weighted else None
    schema = schema_of(pooling, weighted=weighted, dim=dim)
    found = pool(schema, stored, ids.tolist(), lengths, weights, dtype)
    assert torch.equal(found, pool(schema, decode_rows(stored, dim, dtype), ids.tolist(), lengths, weights))
    assert found.shape == (len(lengths), dim)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("weighted", [True, False])
def test_narrow_rows_are_pooled_in_float32(dtype: str, weighted: bool) -> None:
    """A sum of 300 halves: in float16 itself it would stick at 2048."""
    table = torch.full((10, 2), 8.0, dtype=STORED_DTYPES[dtype])
    found = pool(schema_of(Pooling.SUM, weighted=weighted), table, [3] * 300, [300, 0], [1.0] * 300 if weighted else None, dtype)
    assert found.dtype == torch.float32
    assert found.tolist() == [[2400.0, 2400.0], [0.0, 0.0]]


def test_an_array_that_may_not_be_written_is_copied() -> None:
    ids = np.frombuffer(np.array([1, 2], np.int64).tobytes(), np.int64)
    lengths = np.frombuffer(np.array([2], np.int32).tobytes(), np.int32)
    schema = schema_of(Pooling.SUM, weighted=False)
    bags = Bags.cut(RequestValidator(schema).check(PackedRequest(ids, lengths)), 1, CPU)
    assert TorchLookup(schema, {"t": TABLE}).pooled(RowFinder(schema, {})(bags)).tolist() == [[3.0, 3.0]]
