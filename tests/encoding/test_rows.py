from typing import Any

import numpy as np
import pytest

from emberline.encoding import columns_from_rows, encode, required_columns
from emberline.errors import RequestError
from emberline.schema import BucketEncoder, CrossEncoder, Encoder, FeatureKind, FeatureSpec, HashEncoder, NumericEncoder, RawIdEncoder


def _sparse(name: str, encoder: Encoder, *columns: str, weighted: bool = False) -> FeatureSpec:
    return FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=columns or (name,), encoder=encoder, weighted=weighted)


USER, CROSS = _sparse("user", RawIdEncoder()), _sparse("pair", CrossEncoder(rows=7), "user", "city")
AGE = FeatureSpec(name="age", kind=FeatureKind.DENSE, columns=("age",), encoder=NumericEncoder(), value_dim=1)


def _ids(*values: object, feature: FeatureSpec = USER) -> list[int]:
    columns, num_rows = columns_from_rows([feature], [{feature.columns[0]: value} for value in values])
    return list(encode([feature], columns, num_rows).sparse[feature.name].values.tolist())


def test_columns_in_first_seen_order() -> None:
    assert required_columns([USER, CROSS, AGE]) == {"user": "user", "city": "pair", "age": "age"}


@pytest.mark.parametrize("value", [9007199254740993, -(2**63), 2**63 - 1, 2**63 - 2, 0, -1])
def test_64_bits_stay_exact(value: int) -> None:
    assert _ids(value) == [value]
    assert _ids(str(value)) == [value]
    assert _ids([value, str(value)]) == [value, value]
    assert _ids(value, "other", 2.0)[0] == value
    assert _ids(*[value] * 40, "x")[:40] == [value] * 40


def test_whole_floats_are_the_number() -> None:
    assert _ids(5.0, 1e3, -0.0, 2.0**53 - 1) == [5, 1000, 0, 2**53 - 1]
    assert _ids(np.int32(5), np.float32(7.0), np.str_("8")) == [5, 7, 8]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (5.5, "5.5 is not a whole number"),
        (2.0**53, "9007199254740992.0 is too large for a float"),
        (1e300, "is too large for a float"),
        (float("inf"), "inf is not a whole number"),
        (2**63, "9223372036854775808 does not fit 64 bits"),
        (-(2**63) - 1, "-9223372036854775809 does not fit 64 bits"),
        pytest.param(10**5000, "a whole number of 16610 bits does not fit 64 bits", id="huge"),
        (True, "True is neither text nor a number"),
        (np.False_, "False is neither text nor a number"),
        ([[1]], r"\[1\] is neither text nor a number"),
        ([1, {"a": 1}], "{'a': 1} is neither text nor a number"),
        (object(), "is neither text nor a number"),
        (b"\xff", "is not UTF-8 text"),
        ("\ud800", "half of a surrogate pair"),
        (["ok", "\ud800"], "half of a surrogate pair"),
    ],
)
def test_what_is_refused(value: object, problem: str) -> None:
    for before in ([], [1], ["x"], [1.0, "x"], [None, 4]):
        with pytest.raises(RequestError, match=problem) as caught:
            _ids(*before, value)
        assert str(caught.value).startswith("feature 'user': ")
        assert caught.value.row in (None, len(before))


def test_weights_for_a_feature_that_is_not_weighted() -> None:
    with pytest.raises(RequestError, match="feature 'user': the values have weights, but the feature is not weighted"):
        _ids(None, {"1": 0.5})


def test_missing_values() -> None:
    columns, num_rows = columns_from_rows([USER, AGE], [{}, {"user": None, "age": None}, {"user": "", "age": ""}, {"user": []}, {"user": [None, ""]}])
    encoded = encode([USER, AGE], columns, num_rows)
    assert encoded.sparse["user"].lengths.tolist() == [0] * 5
    assert encoded.dense["age"].tolist() == [[0.0]] * 5


def test_a_missing_column_can_be_an_error() -> None:
    with pytest.raises(RequestError, match="feature 'age': row 1: column 'age' is missing"):
        columns_from_rows([USER, AGE], [{"user": 1, "age": 2}, {"user": 1}], missing="error")


def test_an_unknown_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError, match="row 1 has an unknown column 'usr'; did you mean 'user'"):
        columns_from_rows([USER, AGE], [{"user": 1}, {"usr": 1}])
    with pytest.raises(RequestError, match="unknown column 'zzz'; there are: user, age"):
        columns_from_rows([USER, AGE], [{"zzz": 1}])
    columns, num_rows = columns_from_rows([USER], [{"usr": 1}], surplus="ignore")
    assert (columns, num_rows) == ({"user": [None]}, 1)


@pytest.mark.parametrize("row", [None, [1, 2], "text", 5])
def test_a_row_that_is_no_object(row: object) -> None:
    with pytest.raises(RequestError, match=r"row 1 is .*, not an object"):
        columns_from_rows([USER], [{"user": 1}, row])  # type: ignore[list-item]


def test_weights_from_objects_and_text() -> None:
    feature = _sparse("tags", HashEncoder(rows=1000), weighted=True)
    for rows in ([{"tags": {"a": 1, "b:c": -0.5}}, {}, {"tags": {"7": 2.5}}], [{"tags": "a:1\x03b:c:-0.5"}, {}, {"tags": "7:2.5"}]):
        bag = encode([feature], *columns_from_rows([feature], rows)).sparse["tags"]
        plain = _sparse("tags", HashEncoder(rows=1000))
        want = encode([plain], *columns_from_rows([plain], [{"tags": ["a", "b:c"]}, {}, {"tags": 7}])).sparse["tags"]
        assert bag.values.tolist() == want.values.tolist()
        assert bag.lengths.tolist() == [2, 0, 1]
        assert bag.weights is not None
        assert bag.weights.tolist() == [1.0, -0.5, 2.5]


def test_ids_without_weight_weigh_one() -> None:
    feature = _sparse("tags", BucketEncoder(rows=10), weighted=True)
    for value in ([1, 2], "1\x032", ["1", "2"], ["1:1", 2]):
        bag = encode([feature], *columns_from_rows([feature], [{"tags": value}])).sparse["tags"]
        assert (bag.values.tolist(), bag.weights.tolist() if bag.weights is not None else None) == ([1, 2], [1.0, 1.0])


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"1": float("nan")}, "weight nan of '1' is not a finite float32"),
        ({"1": float("inf")}, "weight inf"),
        ({"1": 1e39}, "is not a finite float32"),
        pytest.param({"1": 10**5000}, "a whole number of 16610 bits is too large", id="huge"),
        ({"1": None}, "weight None is not a number"),
        ({"1": "2"}, "weight '2' is not a number"),
        ({"1": True}, "weight True is not a number"),
        ("1:x", "'1:x' does not end in ':' and a number"),
        ("1:", "'1:' does not end in ':' and a number"),
        ("1:nan", "weight nan"),
        ("1:inf", "does not end in"),
    ],
)
def test_weights_that_are_refused(value: object, problem: str) -> None:
    feature = _sparse("tags", RawIdEncoder(), weighted=True)
    rows: list[dict[str, object]] = [{"tags": None}, {"tags": value}]
    with pytest.raises(RequestError, match=problem) as caught:
        encode([feature], *columns_from_rows([feature], rows))
    assert (caught.value.feature, caught.value.row) == ("tags", 1)


def test_objects_and_lists_do_not_mix_in_one_column() -> None:
    feature = _sparse("tags", RawIdEncoder(), weighted=True)
    with pytest.raises(RequestError, match=r"feature 'tags': row 1: {'2': 1.0} has weights, but another row has none"):
        encode([feature], *columns_from_rows([feature], [{"tags": [1]}, {"tags": {"2": 1.0}}]))


def test_items_of_lists_are_not_split() -> None:
    feature = FeatureSpec(name="f", kind=FeatureKind.SPARSE, columns=("f",), encoder=HashEncoder(rows=10**9), separator=",")
    bag = encode([feature], *columns_from_rows([feature], [{"f": "a,b"}, {"f": ["a,b"]}, {"f": ["a", "b"]}])).sparse["f"]
    assert bag.lengths.tolist() == [2, 1, 2]
    assert bag.values[:2].tolist() == bag.values[3:].tolist()


def test_rows_are_not_changed() -> None:
    rows: list[dict[str, Any]] = [{"user": [1, None, "x"], "age": np.array([3.0])}, {"user": {}, "age": "5"}]
    before = [dict(row) for row in rows]
    encode([USER, AGE], *columns_from_rows([USER, AGE], rows))
    assert rows[0]["user"] == [1, None, "x"]
    assert all(row[key] is old[key] for row, old in zip(rows, before, strict=True) for key in row)


def test_no_rows() -> None:
    encoded = encode([USER, AGE, CROSS], *columns_from_rows([USER, AGE, CROSS], []))
    assert encoded.num_rows == 0
    assert encoded.dense["age"].shape == (0, 1)
    assert encoded.sparse["pair"].lengths.shape == (0,)
