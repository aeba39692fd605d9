import numpy as np
import pyarrow as pa
import pytest

from emberline.encoding import columns_from_arrow, encode
from emberline.errors import RequestError
from emberline.schema import FeatureKind, FeatureSpec, HashEncoder, NumericEncoder, RawIdEncoder

IDS = FeatureSpec(name="f", kind=FeatureKind.SPARSE, columns=("c",), encoder=RawIdEncoder())
WEIGHTED = FeatureSpec(name="f", kind=FeatureKind.SPARSE, columns=("c",), encoder=RawIdEncoder(), weighted=True)
NUMBER = FeatureSpec(name="f", kind=FeatureKind.DENSE, columns=("c",), encoder=NumericEncoder(), value_dim=1)


def _bag(array: pa.Array, feature: FeatureSpec = IDS) -> tuple[list[int], list[int], list[float] | None]:
    bag = encode([feature], columns_from_arrow([feature], pa.record_batch({"c": array}))).sparse["f"]
    return bag.values.tolist(), bag.lengths.tolist(), None if bag.weights is None else bag.weights.tolist()


@pytest.mark.parametrize(
    "array",
    [
        pa.array([5, None, -7], pa.int8()),
        pa.array([5, None, -7], pa.int64()),
        pa.array([5, None, -7], pa.float64()),
        pa.array([5, None, -7], pa.float32()),
        pa.array([5, None, -7], pa.float16()) if hasattr(pa, "float16") else None,
        pa.array([5.0, float("nan"), -7.0]),
        pa.array(["5", None, "-7"]),
        pa.array(["5", "", "-7"], pa.large_string()),
        pa.array(["5", None, "-7"], pa.string_view()),
        pa.array([b"5", None, b"-7"], pa.binary()),
        pa.array(["5", None, "-7"]).dictionary_encode(),
        pa.array([5, None, -7]).dictionary_encode(),
        pa.array([5, None, -7], pa.int64()).cast(pa.decimal128(19, 0)),
        pa.array([[5], None, [-7]]),
        pa.array([[5], [], [None, -7]], pa.large_list(pa.int32())),
        pa.array([["5"], [""], ["-7"]]),
        pa.array([["5"], None, ["-7"]]).cast(pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        pa.array(["9", "5", None, "-7", "9"]).slice(1, 3),
        pa.array([[9], [5], None, [-7], [9]]).slice(1, 3),
        pa.array(["9", "5", None, "-7", "9"]).dictionary_encode().slice(1, 3),
    ],
    ids=lambda array: str(array.type),
)
def test_types_that_hold_ids(array: pa.Array) -> None:
    assert _bag(array) == ([5, -7], [1, 0, 1], None)


def test_a_column_of_nulls() -> None:
    assert _bag(pa.nulls(2)) == ([], [0, 0], None)
    assert _bag(pa.array([[None], None], pa.list_(pa.null()))) == ([], [0, 0], None)


def test_unsigned_ids() -> None:
    assert _bag(pa.array([2**63 - 1, 0], pa.uint64())) == ([2**63 - 1, 0], [1, 1], None)
    with pytest.raises(RequestError, match="feature 'f': row 1: 9223372036854775808 does not fit 64 bits"):
        _bag(pa.array([1, 2**63], pa.uint64()))


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.float32()), pa.map_(pa.int64(), pa.float64()), pa.map_(pa.int32(), pa.int64())])
def test_maps(kind: pa.DataType) -> None:
    key = str if pa.types.is_string(kind.key_type) else int
    array = pa.array([[(key(1), 9)], [(key(5), 2), (key(-7), 0)], None, [], [(key(6), -1)]], kind)
    assert _bag(array, WEIGHTED) == ([1, 5, -7, 6], [1, 2, 0, 0, 1], [9.0, 2.0, 0.0, -1.0])
    assert _bag(array.slice(1), WEIGHTED) == ([5, -7, 6], [2, 0, 0, 1], [2.0, 0.0, -1.0])
    with pytest.raises(RequestError, match="the values have weights, but the feature is not weighted"):
        _bag(array)


def test_a_null_map_has_no_entries_whatever_lies_below() -> None:
    whole = pa.array([[("1", 1.0)], [("2", 2.0)], [("3", 3.0)]], pa.map_(pa.string(), pa.float32()))
    mask = pa.array([True, False, True]).buffers()[1]
    entries = pa.StructArray.from_arrays([whole.keys, whole.items], fields=[whole.type.key_field, whole.type.item_field])
    hidden = pa.Array.from_buffers(whole.type, 3, [mask, whole.buffers()[1]], children=[entries])
    assert _bag(hidden, WEIGHTED) == ([1, 3], [1, 0, 1], [1.0, 3.0])


def test_a_null_weight_is_refused() -> None:
    with pytest.raises(RequestError, match="feature 'f': row 1: weight nan of '2' is not a finite float32"):
        _bag(pa.array([[("1", 1.0)], [("2", None)]], pa.map_(pa.string(), pa.float32())), WEIGHTED)


def test_structs_are_bags() -> None:
    array = pa.array([{"1": 0.5, "2": None}, None, {"1": 2.0, "2": 3.0}])
    assert _bag(array, WEIGHTED) == ([1, 1, 2], [1, 0, 2], [0.5, 2.0, 3.0])
    assert _bag(pa.array([{}, {}], pa.struct([])), WEIGHTED) == ([], [0, 0], [])


@pytest.mark.parametrize(
    "array",
    [
        pa.array([True]),
        pa.array([1], pa.timestamp("us")),
        pa.array([1], pa.date32()),
        pa.array([[[1]]]),
        pa.array([[True]]),
    ],
    ids=lambda array: str(array.type),
)
@pytest.mark.parametrize("feature", [IDS, NUMBER])
def test_types_that_are_refused(array: pa.Array, feature: FeatureSpec) -> None:
    with pytest.raises(RequestError, match=r"feature 'f': column 'c' has type .*, which holds neither text nor numbers; cast it"):
        columns_from_arrow([feature], pa.record_batch({"c": array}))


def test_weights_that_are_no_numbers() -> None:
    with pytest.raises(RequestError, match="column 'c' has weights of type string"):
        _bag(pa.array([[("1", "x")]], pa.map_(pa.string(), pa.string())), WEIGHTED)


def test_bytes_that_are_not_utf8() -> None:
    with pytest.raises(RequestError, match="column 'c' has bytes that are not UTF-8"):
        _bag(pa.array([b"\xff"]))


def test_missing_and_repeated_columns() -> None:
    with pytest.raises(RequestError, match="feature 'f': column 'c' is missing; there are: a, b"):
        columns_from_arrow([IDS], pa.record_batch({"a": [1], "b": [1]}))
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["c", "c"])
    with pytest.raises(RequestError, match="column 'c' comes 2 times"):
        columns_from_arrow([IDS], twice)


def test_chunked_tables() -> None:
    table = pa.table({"c": pa.chunked_array([["1"], [], ["2", "3"]])})
    assert encode([IDS], columns_from_arrow([IDS], table)).sparse["f"].values.tolist() == [1, 2, 3]
    empty = pa.table({"c": pa.chunked_array([], pa.string())})
    assert encode([IDS], columns_from_arrow([IDS], empty)).num_rows == 0


def test_no_rows() -> None:
    for kind in (pa.string(), pa.int64(), pa.list_(pa.string()), pa.map_(pa.string(), pa.float32()), pa.null()):
        assert _bag(pa.array([], kind), WEIGHTED) == ([], [], [])


def test_text_buffers_are_shared() -> None:
    array = pa.array(["some", "words"])
    column = columns_from_arrow([IDS], pa.record_batch({"c": array}))["c"]
    assert np.shares_memory(column.items.buffer, np.frombuffer(array.buffers()[2], np.uint8))  # type: ignore[union-attr]


def test_wide_slices_hash_like_fresh_arrays() -> None:
    feature = FeatureSpec(name="f", kind=FeatureKind.SPARSE, columns=("c",), encoder=HashEncoder(rows=10**9))
    words = [f"word{number}" * (number % 9) for number in range(500)]
    sliced = pa.record_batch({"c": pa.array(words)}).slice(137, 201)
    fresh = pa.record_batch({"c": pa.array(words[137:338])})
    want = encode([feature], columns_from_arrow([feature], fresh)).sparse["f"]
    got = encode([feature], columns_from_arrow([feature], sliced)).sparse["f"]
    assert (got.values.tolist(), got.lengths.tolist()) == (want.values.tolist(), want.lengths.tolist())
