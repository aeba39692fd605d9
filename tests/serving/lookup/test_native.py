"""The kernel against torch's backend, to the bit, and against loops in float64."""

import ctypes
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.compiled import COMPILERS, Kernel
from emberline.schema import HashEncoder, LookupSpec, ModelSchema, Pooling
from emberline.serving.lookup import Bags, RowFinder, StepCutter, TorchLookup, native
from emberline.serving.lookup.native import KERNEL, NativeLookup
from emberline.serving.lookup.rows import BagRows
from emberline.serving.quantized import STORED_DTYPES, decode_rows, encode_rows
from emberline.serving.request import PackedRequest, RequestValidator
from emberline.serving.rows_on_disk import RowsOnDisk
from emberline.serving.tables import write_table
from tests.serving.conftest import Arrays, make_lookup_model, make_steps_toy, one_sequence_schema, random_request, sparse

CPU = torch.device("cpu")
DTYPES = sorted(STORED_DTYPES)
PLAIN = Kernel(Path(native.__file__).with_name("kernel.c"), native._declare, stand_in="", without="", flags=lambda: native.compiler_flags()[:2])
"""Compiled for any processor."""
pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C compiler here")


@pytest.fixture(scope="module", params=[KERNEL, PLAIN], ids=["this processor", "any processor"])
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    found: ctypes.CDLL | None = request.param.get()
    assert found is not None
    return found


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def schema_of(dims: list[int], *, weighted: bool, rows: int = 10) -> ModelSchema:
    """Two features; each reads a table of every dim by sum, and of the odd places by mean too."""
    features = tuple(sparse(name, HashEncoder(rows=rows), weighted=weighted) for name in "fg")
    reads = [(name, place, pooling) for name in "fg" for place in range(len(dims)) for pooling in list(Pooling)[: 1 + place % 2]]
    lookups = tuple(
        LookupSpec(key=f"{name}{place}{pooling}", feature=name, table=f"t{place}", pooling=pooling, dim=dims[place], weighted=weighted)
        for name, place, pooling in reads
    )
    return make_lookup_model(lookups, features, {f"t{place}": torch.zeros(rows, dim) for place, dim in enumerate(dims)}).schema


def stored_tables(schema: ModelSchema, dtypes: list[str], seed: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    draw = torch.Generator().manual_seed(seed)
    types = {table.name: dtypes[place % len(dtypes)] for place, table in enumerate(schema.tables)}
    return {table.name: encode_rows(torch.randn(table.rows, table.dim, generator=draw), types[table.name]) for table in schema.tables}, types


def spread(table: Tensor, gap: int) -> Tensor:
    """The same rows, with so many numbers between them as nobody may read."""
    memory = torch.full((table.shape[0], table.shape[1] + gap), 119 if table.dtype == torch.uint8 else torch.nan, dtype=table.dtype)
    memory[:, : table.shape[1]] = table
    return memory[:, : table.shape[1]]


def rows_of(schema: ModelSchema, arrays: Arrays) -> BagRows:
    request = RequestValidator(schema).check(PackedRequest(**arrays))
    return RowFinder(schema, {})(Bags.cut(request, len(schema.sparse_features), CPU))


def by_loops(schema: ModelSchema, tables: dict[str, Tensor], types: dict[str, str], arrays: Arrays) -> Tensor:
    plain = {table.name: decode_rows(tables[table.name], table.dim, types[table.name]) for table in schema.tables}
    model = make_lookup_model(schema.lookups, schema.sparse_features, plain)
    return model.pooled(arrays["ids"], arrays["lengths"], arrays.get("weights"))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dims=st.lists(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 63, 64, 65, 130]), min_size=1, max_size=4),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3),
    num_rows=st.integers(0, 70),
    weighted=st.booleans(),
    told=st.booleans(),
    gap=st.integers(0, 5),
    seed=st.integers(0, 999),
)
def test_pools_as_torch_does(
    library: ctypes.CDLL, dims: list[int], dtypes: list[str], num_rows: int, weighted: bool, told: bool, gap: int, seed: int
) -> None:
    schema = schema_of(dims, weighted=weighted)
    tables, types = stored_tables(schema, dtypes, seed)
    arrays = random_request(schema, num_rows=num_rows, seed=seed, most=4, weights=told)
    rows = rows_of(schema, arrays)
    found = NativeLookup(schema, tables, types, library).pooled(rows)
    assert (found.shape, found.dtype) == ((num_rows, schema.pooled_dim), torch.float32)
    torch.testing.assert_close(found, by_loops(schema, tables, types, arrays), rtol=1e-5, atol=1e-5)
    want = TorchLookup(schema, tables, types).pooled(rows)
    apart = {name: spread(table, gap) for name, table in tables.items()}
    assert torch.equal(NativeLookup(schema, apart, types, library).pooled(rows), found)
    assert torch.equal(TorchLookup(schema, apart, types).pooled(rows), want)
    if library is KERNEL.get() and native.compiler_flags()[2:]:
        assert torch.equal(found, want)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.usefixtures("two_threads")
def test_a_bag_gets_the_same_bits_in_any_company(library: ctypes.CDLL, dtype: str, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, in the last rows of a table, and among many by several threads."""
    monkeypatch.setattr(native, "IDS_PER_THREAD", 16)
    schema = schema_of([5, 16, 70], weighted=weighted, rows=6)
    tables, types = stored_tables(schema, [dtype], 3)
    lookup = NativeLookup(schema, tables, types, library)
    arrays = random_request(schema, num_rows=150, seed=5, most=9)
    together = lookup.pooled(rows_of(schema, arrays))
    lengths = arrays["lengths"].reshape(2, 150)
    ends = np.concatenate([[0], arrays["lengths"].cumsum()])
    for row in (0, 31, 32, 149):
        places = np.concatenate([np.arange(ends[bag], ends[bag + 1]) for bag in (row, 150 + row)])
        alone = {name: arrays[name][places] for name in ("ids", "weights") if name in arrays} | {"lengths": lengths[:, row]}
        assert torch.equal(lookup.pooled(rows_of(schema, alone))[0], together[row]), row


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("value_dim", [0, 1])
@pytest.mark.parametrize("pooling", list(Pooling))
def test_steps_as_torch_has_them(library: ctypes.CDLL, dtype: str, weighted: bool, value_dim: int, pooling: Pooling) -> None:
    schema = one_sequence_schema(weighted=weighted, value_dim=value_dim, pooling=pooling)
    tables, types = stored_tables(schema, [dtype], 1)
    arrays = {name: values for name, values in random_request(schema, num_rows=6, seed=3).items() if name != "dense_steps"}
    rows, steps = rows_of(schema, arrays), StepCutter(schema)(RequestValidator(schema).check(PackedRequest(**arrays)), CPU)
    found = NativeLookup(schema, tables, types, library).stepped(rows, steps)["f"]
    want = TorchLookup(schema, tables, types).stepped(rows, steps)["f"]
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)
    apart = {"t": spread(tables["t"], 2)}
    assert torch.equal(NativeLookup(schema, apart, types, library).stepped(rows, steps)["f"], found)
    assert torch.equal(TorchLookup(schema, apart, types).stepped(rows, steps)["f"], want)
    plain = {"t": decode_rows(tables["t"], 5, dtype)}
    model = replace(make_steps_toy(), schema=schema, tables=plain, remaps={})
    torch.testing.assert_close(found, model.stepped(arrays)["steps.f"], rtol=1e-5, atol=1e-5)


def test_tables_on_disk(library: ctypes.CDLL, tmp_path: Path) -> None:
    schema = schema_of([3, 8, 5], weighted=True)
    tables, types = stored_tables(schema, ["fp32", "int8"], 1)
    write_table(tmp_path / "t1", tables["t1"])
    mixed = tables | {"t1": RowsOnDisk.find(tmp_path / "t1")}
    rows = rows_of(schema, random_request(schema, num_rows=40, seed=2))
    lookup = NativeLookup(schema, mixed, types, library)
    assert torch.equal(lookup.pooled(rows), NativeLookup(schema, tables, types, library).pooled(rows))
    first = replace(schema, features=schema.features[:1], lookups=schema.lookups[:4])
    part = BagRows(replace(rows.bags, ids=rows.bags.ids[:1], offsets=rows.bags.offsets[:1]), {})
    assert torch.equal(lookup.part(first).pooled(part), lookup.pooled(rows)[:, : first.pooled_dim])


def test_no_rows_no_lookups_no_ids(library: ctypes.CDLL) -> None:
    schema = schema_of([3], weighted=False)
    tables, types = stored_tables(schema, ["fp32"], 0)
    lookup = NativeLookup(schema, tables, types, library)
    assert lookup.pooled(rows_of(schema, {"ids": np.empty(0, np.int64), "lengths": np.empty(0, np.int32)})).shape == (0, 6)
    assert lookup.pooled(rows_of(schema, {"ids": np.empty(0, np.int64), "lengths": np.zeros(4, np.int32)})).tolist() == [[0.0] * 6] * 2
    none = replace(schema, lookups=())
    assert NativeLookup(none, tables, types, library).pooled(rows_of(schema, {"ids": np.array([1]), "lengths": np.array([1, 0])})).shape == (1, 0)


@pytest.mark.parametrize("bad", [10, -1, 2**63 - 1, -(2**63)])
def test_a_row_that_the_table_lacks_is_refused(library: ctypes.CDLL, bad: int) -> None:
    """Whoever asks has checked; a damaged index of raw ids must not read other memory."""
    schema = schema_of([3, 4], weighted=False)
    tables, types = stored_tables(schema, ["fp32", "int8"], 0)
    rows = rows_of(schema, {"ids": np.array([1, 2]), "lengths": np.array([0, 2])})
    broken = BagRows(rows.bags, {(1, "t1"): (torch.tensor([3, bad]), torch.tensor([True, True]))})
    with pytest.raises(RuntimeError, match=r"^lookup [45]: an id reads a row that its table lacks$"):
        NativeLookup(schema, tables, types, library).pooled(broken)


def test_halves_of_every_kind(library: ctypes.CDLL) -> None:
    """All float16 and bfloat16 numbers, those below the least normal one, infinite ones and no numbers among them."""
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)[:, None].repeat(1, 3)
    for dtype in ("fp16", "bf16"):
        table = bits.view(STORED_DTYPES[dtype])
        schema = schema_of([3], weighted=False, rows=2**16)
        ids = np.arange(2**16)
        rows = rows_of(schema, {"ids": ids, "lengths": np.concatenate([np.ones(2**16, np.int32), np.zeros(2**16, np.int32)])})
        found = NativeLookup(schema, {"t0": table}, {"t0": dtype}, library).pooled(rows)[:, :3]
        torch.testing.assert_close(found, table.float(), rtol=0, atol=0, equal_nan=True)
