"""Small requests: straight to what programs take, or not at all, and always as the long way answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import RequestError
from emberline.schema import BucketEncoder, HashEncoder, LookupSpec, ModelSchema, Pooling, RawIdEncoder
from emberline.serving import Engine
from emberline.serving.inputs import InputMaker
from emberline.serving.lookup import Bags, DirectReader, RowFinder, TorchLookup, native
from emberline.serving.lookup.direct import MOST_IDS
from emberline.serving.lookup.native import NativeLookup
from emberline.serving.request import PackedRequest, RequestValidator
from tests.serving.conftest import Arrays, dense, make_lookup_model, make_steps_toy, make_toy, random_request, sparse

pytestmark = pytest.mark.skipif(native.KERNEL.get() is None, reason="there is no C compiler here")
CPU = torch.device("cpu")


def make_schema(*, with_dense: bool, weighted: bool) -> ModelSchema:
    reads = (("user", Pooling.SUM, 4), ("item", Pooling.MEAN, 5), ("city", Pooling.SUM, 3), ("item", Pooling.SUM, 4))
    lookups = tuple(
        LookupSpec(key=f"{place}", feature=name, table=f"t{dim}", pooling=pooling, dim=dim, weighted=weighted and name == "item")
        for place, (name, pooling, dim) in enumerate(reads)
    )
    features = (
        sparse("user", HashEncoder(rows=9)),
        sparse("item", BucketEncoder(rows=9), weighted=weighted),
        sparse("city", BucketEncoder(rows=7, oov_row=6), value_dim=3),
    )
    tables = {"t4": torch.randn(9, 4), "t5": torch.randn(9, 5), "t3": torch.randn(7, 3)}
    schema = make_lookup_model(lookups, features, tables).schema
    return replace(schema, features=(*features, dense("numbers", 2))) if with_dense else schema


def reader_of(schema: ModelSchema) -> tuple[DirectReader, NativeLookup]:
    library = native.KERNEL.get()
    assert library is not None
    draw = torch.Generator().manual_seed(1)
    lookup = NativeLookup(schema, {table.name: torch.randn(table.rows, table.dim, generator=draw) for table in schema.tables}, None, library)
    reader = DirectReader.of(schema, lookup, ())
    assert reader is not None
    return reader, lookup


def the_long_way(schema: ModelSchema, lookup: NativeLookup, arrays: Arrays) -> dict[str, torch.Tensor]:
    request = RequestValidator(schema).check(PackedRequest(**arrays))
    return InputMaker(schema)(lookup, RowFinder(schema, {})(Bags.cut(request, len(schema.sparse_features), CPU)), request)


@settings(max_examples=40)
@given(
    num_rows=st.integers(1, 40), with_dense=st.booleans(), weighted=st.booleans(), told=st.booleans(), checked=st.booleans(), seed=st.integers(0, 99)
)
def test_it_gives_what_the_long_way_gives(num_rows: int, with_dense: bool, weighted: bool, told: bool, checked: bool, seed: int) -> None:
    schema = make_schema(with_dense=with_dense, weighted=weighted)
    reader, lookup = reader_of(schema)
    arrays = random_request(schema, num_rows=num_rows, seed=seed, weights=told)
    request = PackedRequest(**arrays)
    found = reader(RequestValidator(schema).check(request) if checked else request)
    want = the_long_way(schema, lookup, arrays)
    assert found is not None
    assert list(found) == list(want)
    assert all(torch.equal(found[name], want[name]) for name in want)


def ids(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def lengths(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


GOOD: dict[str, Any] = {
    "ids": ids([1, 2, 3]),
    "lengths": lengths([1, 1, 1]),
    "weights": np.ones(3, np.float32),
    "dense": np.zeros(2, np.float32),
}
ODD: list[dict[str, Any]] = [
    {"ids": ids([1, 2, 3]).astype(np.int32)},
    {"ids": ids([1, 2, 3]).astype(np.uint64)},
    {"ids": [1, 2, 3]},
    {"ids": None},
    {"ids": ids([1, 2, 3])[None]},
    {"ids": np.ma.MaskedArray(ids([1, 2, 3]), mask=[True, False, False])},  # type: ignore[no-untyped-call]
    {"ids": ids([1, 2])},
    {"ids": ids([1, 2, 3, 4]), "weights": np.ones(4, np.float32)},
    {"ids": ids([1, 9, 3])},
    {"ids": ids([1, -1, 3])},
    {"ids": ids([1, 2, 7])},
    {"lengths": lengths([1, 1, 1]).astype(np.int64)},
    {"lengths": lengths([2, -1, 2])},
    {"lengths": lengths([-(2**31), 1, 2])},
    {"lengths": lengths([2**31 - 1, 1, 2])},
    {"lengths": lengths([0, 0, 4]), "ids": ids([1, 1, 1, 1]), "weights": np.ones(4, np.float32)},
    {"lengths": lengths([1, 1]), "ids": ids([1, 2]), "weights": None},
    {"lengths": lengths([]), "ids": ids([]), "weights": None, "dense": np.empty(0, np.float32)},
    {"weights": np.ones(2, np.float32)},
    {"weights": np.ones(3, np.float64)},
    {"weights": np.array([1, np.nan, 1], np.float32)},
    {"weights": np.array([1, 1, -np.inf], np.float32)},
    {"dense": None},
    {"dense": np.zeros(3, np.float32)},
    {"dense": np.zeros(2)},
    {"dense": np.array([0, np.inf], np.float32)},
    {"dense": np.zeros(2, np.float32)[::-1]},
    {"dense": np.zeros(2, [("number", np.float32), ("gap", np.int8)])["number"]},
    {"steps": lengths([1])},
    {"rows_per_user": lengths([1])},
    {"ids": np.zeros(MOST_IDS + 1, np.int64), "lengths": lengths([MOST_IDS - 1, 1, 1]), "weights": None},
]


@pytest.mark.parametrize("change", ODD, ids=lambda change: "-".join(f"{name}" for name in change))
def test_what_is_out_of_the_ordinary_goes_the_long_way(change: dict[str, Any]) -> None:
    schema = make_schema(with_dense=True, weighted=True)
    reader, _ = reader_of(schema)
    assert reader(PackedRequest(**GOOD)) is not None
    assert reader(PackedRequest(**(GOOD | change))) is None


def test_a_model_without_weights_or_numbers_gets_none() -> None:
    reader, _ = reader_of(make_schema(with_dense=False, weighted=False))
    plain = {"ids": GOOD["ids"], "lengths": GOOD["lengths"]}
    assert reader(PackedRequest(**plain)) is not None
    assert reader(PackedRequest(**plain, weights=GOOD["weights"])) is None
    for surplus in (GOOD["dense"], [0.0, 0.0], np.empty((2, 0), np.float32)):
        assert reader(PackedRequest(**plain, dense=surplus)) is None  # type: ignore[arg-type]
    assert reader(PackedRequest(**plain, dense=np.empty(0, np.float32))) is not None


def test_numbers_that_may_not_be_written_to() -> None:
    reader, _ = reader_of(make_schema(with_dense=True, weighted=True))
    sealed = {name: array.copy() for name, array in GOOD.items()}
    for array in sealed.values():
        array.flags.writeable = False
    found = reader(PackedRequest(**sealed))
    assert found is not None
    assert found["dense"].tolist() == [[0.0, 0.0]]


def test_models_that_always_go_the_long_way() -> None:
    library = native.KERNEL.get()
    assert library is not None
    schema = make_schema(with_dense=False, weighted=False)
    tables = {table.name: torch.zeros(table.rows, table.dim) for table in schema.tables}
    assert DirectReader.of(schema, TorchLookup(schema, tables), ()) is None
    assert DirectReader.of(schema, NativeLookup(schema, tables, None, library), ["t4"]) is None
    none = replace(schema, lookups=())
    assert DirectReader.of(none, NativeLookup(none, tables, None, library), ()) is None
    steps = make_steps_toy()
    assert DirectReader.of(steps.schema, NativeLookup(steps.schema, steps.tables, None, library), ()) is None


def test_an_engine_answers_alike_either_way(tmp_path: Path) -> None:
    """One request is answered directly, two together are not; an id that is replaced, and one that is refused, too."""
    toy = make_toy()
    schema = replace(
        toy.schema, features=tuple(replace(f, encoder=HashEncoder(rows=8)) if isinstance(f.encoder, RawIdEncoder) else f for f in toy.schema.features)
    )
    schema = replace(schema, tables=tuple(replace(table, kind=schema.tables[1].kind) for table in schema.tables))
    model = replace(toy, schema=schema, remaps={})
    engine = Engine.open(model.write(tmp_path), lookup="native")
    assert engine.lookup_backend == "native"
    for seed in range(5):
        arrays = random_request(schema, num_rows=1 + seed, seed=seed)
        if seed == 4:
            features, counts = [feature.name for feature in schema.sparse_features], arrays["lengths"].reshape(4, 5).sum(axis=1)
            arrays["ids"][counts[: features.index("city")].sum()] = 77
        request = PackedRequest(**arrays)
        (alone,) = engine.predict_many([request], [engine.answer_names[:-1]])
        both = engine.predict_many([request, request], [engine.answer_names[:-1]] * 2)
        single = {**engine.predict(request), **{f"lookup.{name}": value for name, value in engine.lookup(request).items()}}
        assert not isinstance(alone, Exception)
        assert not isinstance(both[0], Exception)
        (backwards,) = engine.predict_many([request], [engine.answer_names[-2::-1]])
        assert not isinstance(backwards, Exception)
        assert list(backwards) == list(alone) == list(both[0])
        for name, value in both[0].items():
            torch.testing.assert_close(alone[name], value, rtol=1e-6, atol=1e-6)
            assert torch.equal(alone[name], single[name])
        assert torch.equal(alone["lookup.deep"], both[0]["lookup.deep"])
    arrays = random_request(schema, num_rows=1, seed=3)
    arrays["lengths"][0] = -1
    with pytest.raises(RequestError, match="lengths: -1 is negative"):
        engine.predict(PackedRequest(**arrays))
    (refused,) = engine.predict_many([request], [["nothing"]])
    assert str(refused).startswith("the model has no output 'nothing'")
