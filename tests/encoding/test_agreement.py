"""One input, one answer: JSON rows, parquet columns, row by row or all at once, and a plain per-row oracle must agree exactly."""

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.encoding import EncodedColumns, columns_from_arrow, columns_from_rows, encode
from emberline.schema import (
    BoundaryEncoder,
    BucketEncoder,
    CrossEncoder,
    Encoder,
    FeatureKind,
    FeatureSpec,
    HashEncoder,
    Normalizer,
    NumericEncoder,
    RawIdEncoder,
    VocabEncoder,
)

SEPARATOR = "|"
VOCABULARY = VocabEncoder(words=("3", "a", "ä", "", "-7"), word_rows=(2, 3, 4, 5, 9), oov_row=1, rows=10)


@dataclass(frozen=True)
class _Kind:
    """A kind of column: its values as JSON has them, and the Arrow types that may hold them."""

    values: st.SearchStrategy[Any]
    types: tuple[Any, ...]
    is_text: bool = False


WORDS = st.sampled_from(["a", "b", "ä", "3", "-7", "007", "x:y", "9223372036854775807", "long " * 9]) | st.text(alphabet="ab3|:é", max_size=5)
INTS = st.sampled_from([0, 1, 3, -7, 123, 2**63 - 1, -(2**63), 2**53 + 1]) | st.integers(-50, 50)
SMALL = st.integers(-128, 127)
WHOLE = st.integers(-1000, 1000).map(float)
WEIGHTS = st.floats(-8, 8, width=32)
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
KINDS = [
    _Kind(WORDS, (pa.string(), pa.large_string(), DICTIONARY, pa.binary()), is_text=True),
    _Kind(INTS, (pa.int64(), pa.dictionary(pa.int8(), pa.int64()))),
    _Kind(SMALL, (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(9, 0))),
    _Kind(WHOLE, (pa.float64(), pa.float32())),
    _Kind(st.lists(WORDS | st.none(), max_size=3), (pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(DICTIONARY)), is_text=True),
    _Kind(st.lists(INTS | st.none(), max_size=3), (pa.list_(pa.int64()), pa.large_list(pa.int64()))),
]
WEIGHTED_KINDS = [
    *KINDS[1:3],
    _Kind(st.dictionaries(WORDS, WEIGHTS, max_size=3), (pa.map_(pa.string(), pa.float32()), pa.map_(pa.string(), pa.float64())), is_text=True),
    _Kind(st.dictionaries(st.integers(-9, 9).map(str), WEIGHTS, max_size=3), (pa.map_(pa.int64(), pa.float32()),)),
    _Kind(
        st.lists(st.tuples(INTS, WEIGHTS), max_size=3).map(lambda pairs: SEPARATOR.join(f"{id_}:{weight!r}" for id_, weight in pairs)), (pa.string(),)
    ),
]
ID_ENCODERS: list[Encoder] = [HashEncoder(rows=97), RawIdEncoder(), BucketEncoder(rows=20, oov_row=19), VOCABULARY]


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) else str(value)


def _tokens(feature: FeatureSpec, value: object) -> list[tuple[str, float]]:
    """One row's tokens with weights, as the rules tell, for one value of one column."""
    if isinstance(value, Mapping):
        return [(_text(key), weight) for key, weight in value.items() if _text(key)]
    if isinstance(value, list):
        pieces = [_text(item) for item in value if item is not None]
    else:
        pieces = [] if value is None else value.split(feature.separator) if isinstance(value, str) else [_text(value)]
    pairs: list[tuple[str, float]] = []
    for piece in filter(None, pieces):
        id_, colon, weight = piece.rpartition(":") if feature.weighted else ("", "", "")
        pairs.append((id_, float(weight)) if colon else (piece, 1.0))
    return [(id_, weight) for id_, weight in pairs if id_]


def _hash(text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode())


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"0|-?[1-9][0-9]*", text) and -(2**63) <= int(text) < 2**63 else None


def _id(encoder: Encoder, text: str) -> int:
    if isinstance(encoder, HashEncoder):
        return _hash(text) % encoder.rows
    number = _integer(text)
    if isinstance(encoder, RawIdEncoder):
        return _hash(text) % (2**63 - 1) if number is None else number
    if isinstance(encoder, BucketEncoder):
        assert encoder.oov_row is not None
        return number if number is not None and 0 <= number < encoder.rows else encoder.oov_row
    assert isinstance(encoder, VocabEncoder)
    return dict(zip(encoder.words, encoder.word_rows, strict=True)).get(text, encoder.oov_row)


def _bag(feature: FeatureSpec, values: Sequence[object]) -> list[tuple[int, float]]:
    columns = [_tokens(feature, value) for value in values]
    if isinstance(feature.encoder, CrossEncoder):
        crossed = itertools.product(*columns)
        rows = feature.encoder.rows or 2**63 - 1
        return [
            (xxhash.xxh64_intdigest(b"".join(_hash(text).to_bytes(8, "little") for text, _ in combination)) % rows, 1.0) for combination in crossed
        ]
    return [(_id(feature.encoder, text), weight) for text, weight in columns[0]]


def _oracle(feature: FeatureSpec, rows: Sequence[Mapping[str, object]]) -> list[list[tuple[int, float]]]:
    bags = []
    for row in rows:
        bag = _bag(feature, [row.get(column) for column in feature.columns])
        bags.append(bag or (_bag(feature, [feature.default] * len(feature.columns)) if feature.default else []))
    return bags


def _bags(encoded: EncodedColumns, name: str) -> list[list[tuple[int, float]]]:
    jagged = encoded.sparse[name]
    weights = np.ones(jagged.values.size, np.float32) if jagged.weights is None else jagged.weights
    pairs = iter(list(zip(jagged.values.tolist(), weights.tolist(), strict=True)))
    return [[next(pairs) for _ in range(length)] for length in jagged.lengths.tolist()]


def _arrow(values: Sequence[object], kind: Any) -> Any:
    if pa.types.is_map(kind):
        as_key = int if pa.types.is_integer(kind.key_type) else str
        return pa.array([None if value is None else [(as_key(key), weight) for key, weight in value.items()] for value in values], kind)  # type: ignore[attr-defined]
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else str(value).encode() for value in values], kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    if pa.types.is_list(kind) and pa.types.is_dictionary(kind.value_type):
        return pa.array(values, pa.list_(pa.string())).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.int64()).cast(pa.decimal128(19, 0)).cast(kind)
    return pa.array(values, kind)


def _same(left: EncodedColumns, right: EncodedColumns) -> None:
    assert left.num_rows == right.num_rows
    assert list(left.sparse) == list(right.sparse)
    assert list(left.dense) == list(right.dense)
    for name, bag in left.sparse.items():
        other = right.sparse[name]
        for mine, theirs in ((bag.values, other.values), (bag.lengths, other.lengths), (bag.weights, other.weights)):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert mine.dtype == theirs.dtype
                assert mine.tolist() == theirs.tolist()
    for name, matrix in left.dense.items():
        assert matrix.dtype == right.dense[name].dtype == np.float32
        assert matrix.tobytes() == right.dense[name].tobytes()
        assert matrix.shape == right.dense[name].shape


def _through_parquet(table: Any, row_group_size: int) -> Any:
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=row_group_size)
    return pq.read_table(io.BytesIO(stream.getvalue()))


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[FeatureSpec], list[dict[str, object]], dict[str, Any]]:
    """Features, JSON rows, and the Arrow type of each column."""
    num_rows = draw(st.integers(0, 12))
    features: list[FeatureSpec] = []
    types: dict[str, Any] = {}
    rows: list[dict[str, object]] = [{} for _ in range(num_rows)]
    for number in range(draw(st.integers(1, 4))):
        encoder = draw(st.sampled_from([*ID_ENCODERS, CrossEncoder(rows=1009), CrossEncoder()]))
        weighted = not isinstance(encoder, CrossEncoder) and draw(st.booleans())
        columns = [f"c{number}_{part}" for part in range(2 if isinstance(encoder, CrossEncoder) else 1)]
        for column in columns:
            kind = draw(st.sampled_from(WEIGHTED_KINDS if weighted else KINDS))
            types[column] = draw(st.sampled_from(kind.types))
            for row in rows:
                row[column] = draw(st.none() | kind.values)
        default = draw(st.sampled_from([None, "", "3", "a"]))
        features.append(
            FeatureSpec(
                name=f"f{number}",
                kind=FeatureKind.SPARSE,
                columns=tuple(columns),
                encoder=encoder,
                weighted=weighted,
                separator=SEPARATOR,
                default=default,
            )
        )
    return features, rows, types


@settings(deadline=None, max_examples=80)
@given(_cases(), st.integers(1, 13), st.integers(0, 12))
def test_sparse_features(case: tuple[list[FeatureSpec], list[dict[str, object]], dict[str, Any]], row_group_size: int, cut: int) -> None:
    features, rows, types = case
    encoded = encode(features, *columns_from_rows(features, rows))
    for feature in features:
        assert _bags(encoded, feature.name) == _oracle(feature, rows)
    table = pa.table({column: _arrow([row[column] for row in rows], kind) for column, kind in types.items()})
    stored = _through_parquet(table, row_group_size)
    _same(encode(features, columns_from_arrow(features, stored), len(rows)), encoded)
    for batch in table.to_batches():
        sliced = batch.slice(min(cut, batch.num_rows))
        _same(
            encode(features, columns_from_arrow(features, sliced)), encode(features, *columns_from_rows(features, rows[min(cut, batch.num_rows) :]))
        )


@settings(deadline=None, max_examples=30)
@given(_cases())
def test_a_row_encodes_alike_alone_and_among_many(case: tuple[list[FeatureSpec], list[dict[str, object]], dict[str, Any]]) -> None:
    features, rows, _ = case
    alone = [encode(features, *columns_from_rows(features, [row])) for row in rows]
    many = encode(features, *columns_from_rows(features, rows * 100))
    for feature in features:
        assert _bags(many, feature.name) == [bag for encoded in alone for bag in _bags(encoded, feature.name)] * 100


NUMBERS = st.none() | st.integers(-(2**53), 2**53) | st.floats(-1e30, 1e30) | st.sampled_from([0.1, 1, -2.5, float("nan"), 16777217, 1e-45])
NORMALIZERS = [
    None,
    Normalizer(method="log10", parameters=(("fill", -3.0), ("threshold", 0.001))),
    Normalizer(method="zscore", parameters=(("mean", 0.5), ("std", 3.0))),
    Normalizer(method="minmax", parameters=(("high", 7.0), ("low", -1.0))),
]


def _float_of(value: object) -> float:
    return float("nan") if value is None or value == "" else float(value)  # type: ignore[arg-type]


def _normal(normalizer: Normalizer | None, value: float) -> float:
    if normalizer is None:
        return value
    number = dict(normalizer.parameters)
    if normalizer.method == "log10":
        return float(np.log10(np.float64(value))) if value > number["threshold"] else number["fill"]
    if normalizer.method == "zscore":
        return (value - number["mean"]) / number["std"]
    return (value - number["low"]) / (number["high"] - number["low"])


@settings(deadline=None, max_examples=80)
@given(st.lists(NUMBERS, max_size=40), st.sampled_from(NORMALIZERS), st.sampled_from([None, "0.25"]), st.booleans())
def test_numbers(values: list[object], normalizer: Normalizer | None, default: str | None, as_text: bool) -> None:
    boundaries = BoundaryEncoder(boundaries=(-1.0, 0.1, 2.0, 16777216.0), normalizer=normalizer)
    dense = FeatureSpec(
        name="dense", kind=FeatureKind.DENSE, columns=("x",), encoder=NumericEncoder(normalizer=normalizer), value_dim=1, default=default
    )
    bucket = FeatureSpec(name="bucket", kind=FeatureKind.SPARSE, columns=("x",), encoder=boundaries, default=default)
    features = [dense, bucket]
    given_values = [None if value is None else repr(value) for value in values] if as_text else values
    encoded = encode(features, *columns_from_rows(features, [{"x": value} for value in given_values]))
    filled = [float(default or 0) if np.isnan(_float_of(value)) else _float_of(value) for value in values]
    want = np.array([_normal(normalizer, value) for value in filled]).astype(np.float32)
    assert encoded.dense["dense"][:, 0].tobytes() == want.tobytes()
    edges = np.array(boundaries.boundaries, np.float32)
    buckets = [[int((edges <= number).sum())] for number in want]
    missing = [np.isnan(_float_of(value)) and default is None for value in values]
    assert [[id_ for id_, _ in bag] for bag in _bags(encoded, "bucket")] == [[] if gone else bag for gone, bag in zip(missing, buckets, strict=True)]
    array = pa.array(given_values, pa.string()) if as_text else pa.array([None if value is None else float(value) for value in values], pa.float64())  # type: ignore[arg-type]
    stored = _through_parquet(pa.table({"x": array}), 5)
    _same(encode(features, columns_from_arrow(features, stored)), encoded)


VECTORS = st.none() | st.lists(st.floats(-100, 100, width=32) | st.just(float("nan")), min_size=3, max_size=3)


@settings(deadline=None)
@given(st.lists(VECTORS, max_size=12))
def test_vectors(values: list[list[float] | None]) -> None:
    feature = FeatureSpec(
        name="v", kind=FeatureKind.DENSE, columns=("v",), encoder=NumericEncoder(), value_dim=3, default="7|8|9", separator=SEPARATOR
    )
    encoded = encode([feature], *columns_from_rows([feature], [{"v": value} for value in values]))
    want = [[default if np.isnan(number) else number for number, default in zip(value or [np.nan] * 3, (7, 8, 9), strict=True)] for value in values]
    assert encoded.dense["v"].tolist() == [list(map(float, vector)) for vector in want]
    texts = [None if value is None else SEPARATOR.join("" if np.isnan(number) else repr(number) for number in value) for value in values]
    _same(encode([feature], *columns_from_rows([feature], [{"v": text} for text in texts])), encoded)
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 3)):
        table = pa.table({"v": pa.array(values, kind)})
        _same(encode([feature], columns_from_arrow([feature], table)), encoded)
        if not pa.types.is_fixed_size_list(kind):  # pyarrow reads no nulls of those back
            _same(encode([feature], columns_from_arrow([feature], _through_parquet(table, 5))), encoded)
    _same(encode([feature], columns_from_arrow([feature], pa.table({"v": pa.array(texts, pa.string())}))), encoded)
