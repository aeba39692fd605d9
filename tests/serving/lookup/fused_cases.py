"""What `test_fused.py` runs in a process of its own, by Triton's interpreter on a CPU, or on a CUDA device."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from emberline.schema import LookupSpec, ModelSchema, Pooling, RawIdEncoder, TableKind, TableSpec
from emberline.serving import Engine, PackedRequest
from emberline.serving.lookup import BagRows, Bags, RowFinder, TorchLookup, choose_finder, choose_lookup, fused_kernel
from emberline.serving.lookup.fused import FusedFinder, PooledRows
from emberline.serving.overlaid_rows import OverlaidRows
from emberline.serving.quantized import STORED_DTYPES, encode_rows
from emberline.serving.remap import FallbackRows, RemapIndex, SortedRemap, build_index
from emberline.serving.request import RequestValidator
from tests.serving.conftest import Arrays, make_steps_toy, random_request, sparse
from tests.serving.lookup.test_native import by_loops, schema_of, stored_tables

DEVICE = torch.device("cpu" if fused_kernel.is_interpreted() else "cuda")
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
IDS = torch.tensor(sorted({INT64_MIN, -7, 0, 5, 2**62, 2**63 - 2, *range(1000, 4000, 2)}))
"""So many that some homes are full."""
ROWS = IDS.numel() + 3
FALLBACKS = {
    "one": FallbackRows(torch.tensor([INT64_MIN]), torch.tensor([ROWS - 1])),
    "ranges": FallbackRows(torch.tensor([INT64_MIN, 0, 2000]), torch.arange(ROWS - 3, ROWS)),
    "routed": FallbackRows(torch.tensor([INT64_MIN, 0, 2000]), torch.arange(ROWS - 3, ROWS), routing="range"),
    "mixed": FallbackRows(torch.tensor([INT64_MIN, 0, 2000]), torch.arange(ROWS - 3, ROWS), routing="mixed"),
}


def cut(schema: ModelSchema, arrays: Arrays, device: torch.device) -> Bags:
    return Bags.cut(RequestValidator(schema).check(PackedRequest(**arrays)), len(schema.sparse_features), device)


def fused_rows(
    schema: ModelSchema, tables: Mapping[str, Tensor], types: Mapping[str, str], maps: Mapping[str, RemapIndex], arrays: Arrays
) -> BagRows:
    lookup = choose_lookup(schema, {name: table.to(DEVICE) for name, table in tables.items()}, types, DEVICE, "fused")
    rows = choose_finder(schema, maps, lookup)(cut(schema, arrays, DEVICE))
    assert lookup.name == "fused"
    if isinstance(rows, PooledRows):
        assert lookup.pooled(rows) is rows.pooled
    return rows


@pytest.mark.parametrize(
    ("dims", "dtype", "weighted", "most"),
    [
        ([4, 16], "fp32", False, 1),
        ([1, 3], "fp32", True, 6),
        ([8, 5], "fp16", True, 3),
        ([6], "bf16", False, 3),
        ([7], "int8", True, 1),
        ([300], "int8", False, 2),
        ([5], "int4", True, 6),
    ],
)
def test_sums_are_those_of_loops_and_of_torch(dims: list[int], dtype: str, weighted: bool, most: int) -> None:
    schema = schema_of(dims, weighted=weighted)
    tables, types = stored_tables(schema, [dtype], 2)
    arrays = random_request(schema, num_rows=5, seed=len(dims) + most, most=most, weights=most > 1)
    found = fused_rows(schema, tables, types, {}, arrays)
    assert isinstance(found, PooledRows)
    torch.testing.assert_close(found.pooled.cpu(), by_loops(schema, tables, types, arrays), rtol=1e-5, atol=1e-5)
    rows = RowFinder(schema, {})(cut(schema, arrays, torch.device("cpu")))
    want = TorchLookup(schema, tables, types).pooled(rows)
    torch.testing.assert_close(found.pooled.cpu(), want, rtol=1e-6, atol=1e-6)
    if not weighted and DEVICE.type == "cpu":
        assert torch.equal(found.pooled, want)


def test_all_number_types_in_one_model_and_no_rows_at_all() -> None:
    schema = schema_of([4, 4, 4, 4, 4], weighted=True)
    tables, types = stored_tables(schema, sorted(STORED_DTYPES), 3)
    for num_rows, most in ((0, 3), (2, 0), (1, 1)):
        arrays = random_request(schema, num_rows=num_rows, seed=num_rows, most=most)
        found = fused_rows(schema, tables, types, {}, arrays)
        assert isinstance(found, PooledRows)
        assert found.pooled.shape == (num_rows, schema.pooled_dim)
        torch.testing.assert_close(found.pooled.cpu(), by_loops(schema, tables, types, arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_what_rows_are_filled_up_with_is_not_summed(dtype: str) -> None:
    schema = schema_of([5], weighted=False)
    tables, types = stored_tables(schema, [dtype], 4)
    filled = {}
    for name, table in tables.items():
        wide = torch.full((table.shape[0], 8), torch.nan, dtype=table.dtype, device=DEVICE)
        filled[name] = wide[:, :5].copy_(table)
    arrays = random_request(schema, num_rows=5, seed=7, most=6)
    found = fused_rows(schema, filled, types, {}, arrays)
    assert isinstance(found, PooledRows)
    torch.testing.assert_close(found.pooled.cpu(), by_loops(schema, tables, types, arrays), rtol=1e-5, atol=1e-5)


def raw_model() -> ModelSchema:
    """Two features of raw ids: one reads a table by sum and by mean, and another table; the other has a row for unknown ids in the first."""
    read = LookupSpec(key="f", feature="f", table="t", pooling=Pooling.SUM, dim=8)
    return ModelSchema(
        features=(sparse("f", RawIdEncoder()), sparse("g", RawIdEncoder())),
        tables=(TableSpec(name="t", rows=ROWS, dim=8, kind=TableKind.ZCH), TableSpec(name="u", rows=ROWS, dim=5, kind=TableKind.ZCH)),
        lookups=(
            read,
            replace(read, key="f@u", table="u", dim=5),
            replace(read, key="g", feature="g", unknown_row=4),
            replace(read, key="f@mean", pooling=Pooling.MEAN),
        ),
        groups=(),
    )


def strange_request(schema: ModelSchema) -> Arrays:
    known = (INT64_MIN, -7, 0, 2**62, 2**63 - 2, *range(1000, 1400, 2))
    arrays = random_request(schema, num_rows=3, seed=4, most=9, raw_ids=(*known, INT64_MAX, -1, 1001, 1999, 2001, 6))
    arrays["ids"][:6] = (INT64_MIN, INT64_MAX, -1, 2**63 - 2, 0, INT64_MIN + 1)
    return arrays


@pytest.mark.parametrize("name", FALLBACKS)
def test_raw_ids_find_the_rows_of_the_index(name: str) -> None:
    schema, fallback = raw_model(), FALLBACKS[name]
    order = torch.randperm(IDS.numel(), generator=torch.Generator().manual_seed(5))
    here = {table: build_index(IDS, order if table == "t" else order.flip(0), fallback, num_rows=ROWS) for table in "tu"}
    moved = FallbackRows(fallback.starts.to(DEVICE), fallback.rows.to(DEVICE), routing=fallback.routing)
    there = {table: build_index(IDS, order if table == "t" else order.flip(0), moved, num_rows=ROWS, device=DEVICE) for table in "tu"}
    draw = torch.Generator().manual_seed(1)
    tables = {"t": torch.randn(ROWS, 8, generator=draw), "u": encode_rows(torch.randn(ROWS, 5, generator=draw), "int8")}
    arrays, types = strange_request(schema), {"t": "fp32", "u": "int8"}
    want = RowFinder(schema, here)(cut(schema, arrays, torch.device("cpu")))
    found = fused_rows(schema, tables, types, there, arrays)
    assert isinstance(found, PooledRows)
    assert found.found.keys() == want.found.keys() == {(0, "t"), (0, "u"), (1, "t")}
    for key, (rows, known) in want.found.items():
        assert torch.equal(found.found[key][0].cpu(), rows)
        assert torch.equal(found.found[key][1].cpu(), known)
        assert 0 < int(known.sum()) < known.numel()
    assert torch.equal(found.known().cpu(), want.known())
    torch.testing.assert_close(found.pooled.cpu(), TorchLookup(schema, tables, types).pooled(want), rtol=1e-6, atol=1e-6)


def test_what_it_is_not_for_is_left_to_torch() -> None:
    """An index that cannot be hashed, and a table with rows beside it."""
    schema = raw_model()
    tables = {"t": torch.randn(ROWS, 8), "u": torch.randn(ROWS, 5)}
    fallback = FallbackRows(torch.tensor([INT64_MIN], device=DEVICE), torch.tensor([1], device=DEVICE))
    sorted_map = SortedRemap(IDS.to(DEVICE), torch.arange(IDS.numel(), device=DEVICE), fallback)
    arrays = strange_request(schema)
    assert type(fused_rows(schema, tables, {}, {"t": sorted_map, "u": sorted_map}, arrays)) is BagRows
    plain = schema_of([4], weighted=False)
    changed = OverlaidRows.over(torch.zeros(10, 4, device=DEVICE), torch.tensor([2]), torch.ones(1, 4))
    lookup = choose_lookup(plain, {"t0": changed}, {}, DEVICE, "fused")
    finder = choose_finder(plain, {}, lookup)
    assert not isinstance(finder, FusedFinder)
    ids: Arrays = {"ids": np.array([2, 1, 2], np.int64), "lengths": np.array([2, 1], np.int32)}
    assert lookup.pooled(finder(cut(plain, ids, DEVICE))).tolist() == [[1.0] * 8]


def test_an_engine_answers_as_the_model_does(tmp_path: Path) -> None:
    """Raw ids, which are read by a sequence too, and steps, which torch looks up."""
    toy = make_steps_toy()
    engine = Engine.open(toy.write(tmp_path), lookup="fused", device=str(DEVICE))
    arrays = [random_request(toy.schema, num_rows=rows, seed=rows, raw_ids=(100, -7, 5)) for rows in (0, 3)]
    for given, found in zip(arrays, engine.predict_many([PackedRequest(**given) for given in arrays]), strict=True):
        assert isinstance(found, dict)
        torch.testing.assert_close(found["score"].cpu(), toy.answers(given)["output.score"], rtol=1e-5, atol=1e-5)
    ids = arrays[1]["ids"][: int(arrays[1]["lengths"][:6].sum())].tolist()
    assert engine.known(PackedRequest(**arrays[1]))[: len(ids)].tolist() == [one in toy.remaps["user_emb"].rows for one in ids]
    counts = engine.id_counts()["user_emb"]
    assert 0 < counts.unknown < counts.asked
