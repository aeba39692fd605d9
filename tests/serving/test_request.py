"""The validator: what is refused, and how it says so."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.encoding import encode
from emberline.errors import RequestError
from emberline.schema import BucketEncoder, HashEncoder, LookupSpec, ModelSchema, Pooling, RawIdEncoder, TableKind, TableSpec
from emberline.serving.encoded import pack_encoded
from emberline.serving.request import CheckedRequest, PackedRequest, RequestValidator
from tests.serving.conftest import dense, make_toy, random_request, sparse


def schema_of(*names: str, weighted: bool = False, dense_dim: int = 0, rows: int = 10, value_dim: int = 0) -> ModelSchema:
    """Features with one static table of `rows` rows each."""
    features = tuple(sparse(name, HashEncoder(rows=rows), weighted=weighted, value_dim=value_dim) for name in names)
    return ModelSchema(
        features=features + ((dense("price", dense_dim),) if dense_dim else ()),
        tables=tuple(TableSpec(name=f"t_{name}", rows=rows, dim=2) for name in names),
        lookups=tuple(LookupSpec(key=name, feature=name, table=f"t_{name}", pooling=Pooling.SUM, dim=2, weighted=weighted) for name in names),
        groups=(),
    )


def check(schema: ModelSchema, ids: Any = None, lengths: Any = None, weights: Any = None, dense: Any = None) -> CheckedRequest:
    return RequestValidator(schema).check(PackedRequest(ids, lengths, weights, dense))


def i64(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


def i32(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def f32(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("features", "lengths", "message"),
    [
        (("f",), [1, 1], "ids holds 3 ids, but lengths add up to 2"),
        (("f",), [3, 1], "ids holds 3 ids, but lengths add up to 4"),
        (("f",), [4, -1], "feature 'f': row 1: lengths: -1 is negative"),
        (("f",), [3, -2, 2], "feature 'f': row 1: lengths: -2 is negative"),
        (("f",), [2**31 - 1, 2**31 - 1], "ids holds 3 ids, but lengths add up to 4294967294"),
        (("f", "g"), [1, 1, 1], r"lengths: 3 lengths are not a whole number for each of 2 features \(f, g\)"),
        (("f", "g"), [1, 1, 3, -2], "feature 'g': row 1: lengths: -2 is negative"),
        (("f",), [], "ids holds 3 ids, but lengths add up to 0"),
    ],
)
def test_lengths_that_do_not_fit_the_ids(features: tuple[str, ...], lengths: list[int], message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}$"):
        check(schema_of(*features), i64(1, 2, 3), i32(*lengths))


@pytest.mark.parametrize("lengths", [[0, 3, 1, 3], [1, 2, 3]])
def test_offsets_sent_as_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(RequestError, match=f"^ids holds 3 ids, but lengths add up to {sum(lengths)}$"):
        check(schema_of("f"), i64(1, 2, 3), i32(*lengths))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lengths": i32(1)}, "ids is missing"),
        ({"ids": i64(1)}, "lengths is missing"),
        ({"ids": i64(1), "lengths": i32(1), "weights": f32(1)}, "weights: the model takes none, found 1"),
        ({"ids": i64(1), "lengths": i32(1), "dense": f32(1, 2)}, "dense: the model takes none, found 2"),
        ({"ids": f32(1), "lengths": i32(1)}, "ids must be integers, found float32"),
        ({"ids": np.array([True]), "lengths": i32(1)}, "ids must be integers, found bool"),
        ({"ids": np.array(["1"]), "lengths": i32(1)}, "ids must be integers, found <U1"),
        ({"ids": np.array([2**63], np.uint64), "lengths": i32(1)}, "ids: 9223372036854775808 does not fit INT64"),
        ({"ids": i64(1), "lengths": f32(1)}, "lengths must be integers, found float32"),
        ({"ids": i64(1), "lengths": i64(2**31)}, "lengths: 2147483648 does not fit INT32"),
        ({"ids": i64(1), "lengths": i64(-(2**63))}, "lengths: -9223372036854775808 does not fit INT32"),
        ({"ids": i64(1).reshape(1, 1, 1), "lengths": i32(1)}, r"ids has shape \[1, 1, 1\]; send \[n\] or \[1, n\].*"),
        ({"ids": i64(1, 2).reshape(2, 1), "lengths": i32(1, 1).reshape(2, 1)}, r"lengths has shape \[2, 1\]; send \[n\] or \[1, n\].*"),
        ({"ids": i64(1), "lengths": np.int32(1)}, r"lengths has shape \[\]; send .*"),
    ],
)
def test_tensors_that_are_missing_or_of_a_wrong_kind(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}$"):
        check(schema_of("f"), **given)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (f32(1), "weights holds 1 weights for 2 ids"),
        (f32(1, np.nan), "weights: nan is not a finite number"),
        (f32(np.inf, 1), "weights: inf is not a finite number"),
        (np.array([1e300, 1]), "weights: inf is not a finite number"),
        (np.array(["1", "2"]), "weights must be numbers, found <U1"),
    ],
)
def test_weights_that_do_not_fit(weights: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}$"):
        check(schema_of("f", weighted=True), i64(1, 2), i32(2), weights)


def test_weights_are_cast_and_may_be_negative_or_absent() -> None:
    schema = schema_of("f", weighted=True)
    found = check(schema, i64(1, 2), i32(2), np.array([-0.5, 2.0], np.float64))
    assert found.weights is not None
    assert found.weights.dtype == np.float32
    assert found.weights.tolist() == [-0.5, 2.0]
    assert check(schema, i64(1, 2), i32(2)).weights is None


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        (f32(1, 2, 3), "dense: 3 numbers are not a whole number of rows of 2"),
        (f32(1, 2, 3, 4), "lengths tells of 1 rows, but dense of 2"),
        (f32(), "lengths tells of 1 rows, but dense of 0"),
        (f32(1, np.nan), "feature 'price': row 0: dense: nan is not a finite number"),
        (None, "dense is missing"),
    ],
)
def test_dense_that_does_not_fit(dense: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}$"):
        check(schema_of("f", dense_dim=2), i64(1), i32(1), None, dense)


def test_the_faulty_dense_feature_is_named() -> None:
    with pytest.raises(RequestError, match=r"^feature 'vector': row 1: dense: -inf is not a finite number$"):
        check(make_toy().schema, i64(), i32(*[0] * 8), None, f32(1, 2, 3, 4, 5, -np.inf))


def test_a_model_of_dense_features_only() -> None:
    schema = schema_of(dense_dim=2)
    found = check(schema, dense=f32(1, 2, 3, 4))
    assert (found.num_rows, found.ids.size, found.lengths.size) == (2, 0, 0)
    assert check(schema, dense=f32()).num_rows == 0
    with pytest.raises(RequestError, match=r"^lengths: the model takes none, found 1$"):
        check(schema, None, i32(1), None, f32(1, 2))


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.uint64, ">i8"])
def test_integers_of_any_width_are_widened(kind: Any) -> None:
    found = check(schema_of("f", "g"), np.array([[1, 9]], kind), np.array([[1, 1]], kind))
    assert (str(found.ids.dtype), str(found.lengths.dtype)) == ("int64", "int32")
    assert (found.ids.tolist(), found.lengths.tolist(), found.num_rows) == ([1, 9], [1, 1], 1)


def test_a_strided_view_is_laid_out_flat() -> None:
    found = check(schema_of("f"), i64(1, 0, 2, 0)[::-2], i32(1, 0, 1, 0)[::2])
    assert (found.ids.tolist(), found.lengths.tolist()) == ([0, 0], [1, 1])
    assert found.ids.flags.c_contiguous
    assert found.lengths.flags.c_contiguous


def test_more_ids_than_a_feature_takes() -> None:
    with pytest.raises(RequestError, match=r"^feature 'g': row 1: lengths: 3 ids, but it takes at most 2$"):
        check(schema_of("f", "g", value_dim=2), i64(0, 0, 0, 0, 0), i32(0, 1, 1, 3))


def test_the_row_of_a_bad_id_is_named() -> None:
    with pytest.raises(RequestError, match=r"^feature 'g': row 3: id 10 is outside \[0, 10\)$"):
        check(schema_of("f", "g"), i64(1, 2, 3, 10), i32(0, 1, 1, 0, 1, 0, 0, 1))


def test_the_given_arrays_are_not_changed() -> None:
    schema = ModelSchema(
        features=(sparse("f", BucketEncoder(rows=10, oov_row=3)),),
        tables=(TableSpec(name="t", rows=10, dim=2),),
        lookups=(LookupSpec(key="f", feature="f", table="t", pooling=Pooling.SUM, dim=2),),
        groups=(),
    )
    ids = i64(-5, 4)
    assert check(schema, ids, i32(2)).ids.tolist() == [3, 4]
    assert ids.tolist() == [-5, 4]


def test_a_feature_of_a_smaller_table_is_held_to_it() -> None:
    """Two tables, one feature: the id must be in both; raw ids of a ZCH table are not bounded by its rows."""
    tables = (TableSpec(name="a", rows=10, dim=2), TableSpec(name="b", rows=4, dim=2), TableSpec(name="z", rows=2, dim=2, kind=TableKind.ZCH))
    lookups = tuple(LookupSpec(key=f"f@{name}", feature="f", table=name, pooling=Pooling.SUM, dim=2) for name in "ab")
    raw = LookupSpec(key="r", feature="r", table="z", pooling=Pooling.SUM, dim=2)
    schema = ModelSchema(features=(sparse("f", HashEncoder(rows=10)), sparse("r", RawIdEncoder())), tables=tables, lookups=(*lookups, raw), groups=())
    assert check(schema, i64(3, -(2**63)), i32(1, 1)).ids.tolist() == [3, -(2**63)]
    with pytest.raises(RequestError, match=r"^feature 'f': row 0: id 4 is outside \[0, 4\)$"):
        check(schema, i64(4, 2**63 - 1), i32(1, 1))


def test_a_checked_request_is_not_checked_again_for_its_own_schema() -> None:
    validator = RequestValidator(schema_of("f"))
    once = validator.check(PackedRequest(i64(1), i32(1)))
    assert validator.check(once) is once
    with pytest.raises(RequestError, match="outside"):
        RequestValidator(schema_of("f", rows=1)).check(once)


@given(st.data())
def test_random_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever a request looks like: an error of ours, or a request whose sizes agree and whose ids are in their tables."""
    schema = make_toy().schema
    request = random_request(schema, num_rows=data.draw(st.integers(0, 4)), seed=data.draw(st.integers(0, 99)))
    name = data.draw(st.sampled_from(sorted(request)))
    values = request[name].astype(np.float64).tolist()
    change = data.draw(st.sampled_from(["cut", "grow", "replace"]))
    if change == "grow":
        values.append(data.draw(st.sampled_from([0.0, 1.0, -1.0])))
    elif values and change == "cut":
        values.pop()
    elif values:
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(st.sampled_from([-1.0, 3.0, 2.0**31, -(2.0**40)]))
    request[name] = np.array(values).astype(np.int64 if name in ("ids", "lengths") else np.float32)
    try:
        found = RequestValidator(schema).check(PackedRequest(**request))
    except RequestError:
        return
    assert found.lengths.size == 4 * found.num_rows
    assert found.dense.size == 3 * found.num_rows
    assert found.ids.size == found.lengths.sum()
    assert (found.lengths >= 0).all()
    parts = np.split(found.ids, found.lengths.reshape(4, -1).sum(axis=1).cumsum()[:-1])
    for part, rows in zip(parts[1:], (10, 6, 20), strict=True):
        assert ((part >= 0) & (part < rows)).all()


def test_columns_are_packed_feature_after_feature() -> None:
    schema = make_toy().schema
    columns: dict[str, list[object]] = {
        "user": [5, 6],
        "item": [[1], [2, 3]],
        "city": [0, 1],
        "tags": [{"1": 0.5}, None],
        "price": [1.0, 2.0],
        "vector": [[3.0, 4.0], [5.0, 6.0]],
    }
    encoded = encode(schema.features, columns, 2)
    request = pack_encoded(schema, encoded)
    found = RequestValidator(schema).check(request)
    assert found.lengths.tolist() == [1, 1, 1, 2, 1, 1, 1, 0]
    assert found.ids[:7].tolist() == [5, 6, 1, 2, 3, 0, 1]
    assert found.weights is not None
    assert found.weights.tolist() == [1, 1, 1, 1, 1, 1, 1, 0.5]
    assert found.dense.tolist() == [1, 3, 4, 2, 5, 6]
