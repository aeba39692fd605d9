"""The one entry: raw columns -> ids, weights and floats, for training and serving alike."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from emberline.encoding.columns import Column, ColumnData, EncodedColumns, Jagged, check_jagged, show
from emberline.encoding.ids import Vocabulary, cross_ids, hash_ids, integer_ids, raw_ids, row_ids
from emberline.encoding.numeric import boundary_ids, default_numbers, dense_matrix
from emberline.encoding.rows import column_from_values
from emberline.encoding.texts import Ints, Texts, ranges
from emberline.encoding.tokens import Floats, Tokens, check_total, id_tokens
from emberline.errors import RequestError
from emberline.schema import (
    BoundaryEncoder,
    BucketEncoder,
    CrossEncoder,
    FeatureKind,
    FeatureSpec,
    HashEncoder,
    NumericEncoder,
    RawIdEncoder,
    VocabEncoder,
)


@dataclass(frozen=True)
class _Ready:
    """What is worked out once for each feature spec."""

    vocabulary: Vocabulary | None = None
    numbers: Floats = field(default_factory=lambda: np.zeros(0))
    ids: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    weights: Floats | None = None


_ready: dict[int, tuple["weakref.ref[FeatureSpec]", _Ready]] = {}


def _prepare(feature: FeatureSpec) -> _Ready:
    """The feature's vocabulary index and encoded default, made at the first use of this very object and dropped with it."""
    known = _ready.get(id(feature))
    if known is not None and known[0]() is feature:
        return known[1]
    ready = _build(feature)
    key = id(feature)
    _ready[key] = (weakref.ref(feature, lambda _, key=key: _ready.pop(key, None)), ready)  # type: ignore[misc]
    return ready


def _build(feature: FeatureSpec) -> _Ready:
    if feature.kind is FeatureKind.DENSE:
        return _Ready(numbers=default_numbers(feature))
    vocabulary = Vocabulary(feature.encoder) if isinstance(feature.encoder, VocabEncoder) and not feature.encoded else None
    ready = _Ready(vocabulary=vocabulary)
    if not feature.default:
        return ready
    ids, _, weights = _bags(feature, [Column(Texts.from_strings([feature.default]))] * len(feature.columns), ready)
    return _Ready(vocabulary=vocabulary, ids=ids, weights=weights)


def _bags(feature: FeatureSpec, columns: list[Column], ready: _Ready) -> tuple[Ints, Ints, Floats | None]:
    """Ids int64 [N], lengths int64 [B], weights float64 [N] of a sparse feature, before its default is filled in."""
    encoder = feature.encoder
    if isinstance(encoder, BoundaryEncoder) and not feature.encoded:
        return *boundary_ids(feature, encoder, columns[0]), None
    tokens = [id_tokens(feature, column) for column in columns]
    if isinstance(encoder, CrossEncoder) and not feature.encoded:
        return *cross_ids(feature, encoder, tokens), None
    only = tokens[0]
    return _ids(feature, only, ready), only.lengths, only.weights


def _ids(feature: FeatureSpec, tokens: Tokens, ready: _Ready) -> Ints:
    encoder = feature.encoder
    if feature.encoded or isinstance(encoder, BucketEncoder):
        rows = 0 if isinstance(encoder, RawIdEncoder | NumericEncoder) else encoder.rows
        if not rows:
            return integer_ids(feature, tokens)
        return row_ids(feature, tokens, rows, encoder.oov_row if isinstance(encoder, BucketEncoder | VocabEncoder) else None)
    if isinstance(encoder, HashEncoder):
        return hash_ids(encoder, tokens)
    if isinstance(encoder, RawIdEncoder):
        return raw_ids(tokens)
    assert ready.vocabulary is not None, feature
    return ready.vocabulary.rows_of(tokens)


def _fill_default(ids: Ints, lengths: Ints, weights: Floats | None, ready: _Ready) -> tuple[Ints, Ints, Floats | None]:
    """Put the default's ids into the rows that have none."""
    if not ready.ids.size:
        return ids, lengths, weights
    empty = np.flatnonzero(lengths == 0)
    if not empty.size:
        return ids, lengths, weights
    filled = lengths.copy()
    filled[empty] = ready.ids.size
    places = ranges((filled.cumsum() - filled)[empty], filled[empty])
    old = np.ones(ids.size + places.size, dtype=np.bool_)
    old[places] = False
    out = np.empty(old.size, dtype=np.int64)
    out[old], out[places] = ids, np.tile(ready.ids, empty.size)
    if weights is None or ready.weights is None:
        return out, filled, None
    both = np.empty(old.size)
    both[old], both[places] = weights, np.tile(ready.weights, empty.size)
    return out, filled, both


def _encode_sparse(feature: FeatureSpec, columns: list[Column]) -> Jagged:
    ready = _prepare(feature)
    ids, lengths, weights = _fill_default(*_bags(feature, columns, ready), ready)
    if feature.value_dim > 0 and lengths.size and lengths.max() > feature.value_dim:
        row = int(lengths.argmax())
        raise RequestError(f"{int(lengths[row])} values, more than value_dim {feature.value_dim}", feature=feature.name, row=row)
    check_total(feature, ids.size)
    return Jagged(ids, lengths.astype(np.int32), None if weights is None else weights.astype(np.float32))


def as_column(feature: str, data: ColumnData) -> Column:
    """Any of the forms that `encode` takes as a `Column`.

    Raises:
        RequestError: not one of those forms, or lengths that do not fit; names the feature.
    """
    if isinstance(data, Column):
        if data.lengths is not None:
            check_jagged(feature, np.broadcast_to(0, len(data.items)), data.lengths)
        return data
    if isinstance(data, Jagged):
        check_jagged(feature, data.values, data.lengths)
        if data.weights is not None and data.weights.shape != data.values.shape:
            raise RequestError(f"{data.weights.size} weights for {data.values.size} values", feature=feature)
        weights = None if data.weights is None else data.weights.astype(np.float64)
        return Column(_number_items(feature, data.values), data.lengths.astype(np.int32), weights=weights)
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "iuf" or data.ndim not in (1, 2):
            if data.dtype.kind not in "OU" or data.ndim != 1:
                raise RequestError(f"an array {data.dtype} {list(data.shape)} is neither numbers nor text", feature=feature)
            return column_from_values(feature, data.tolist())
        lengths = np.full(data.shape[0], data.shape[1], dtype=np.int32) if data.ndim == 2 else None
        return Column(_number_items(feature, data.reshape(-1)), lengths)
    if isinstance(data, list | tuple):
        return column_from_values(feature, data)
    raise RequestError(f"a column is {show(data)}, not an array or a list with one value a row", feature=feature)


def _number_items(feature: str, values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    if values.dtype.kind not in "iuf":
        raise RequestError(f"values of type {values.dtype} are not numbers", feature=feature)
    if values.dtype in (np.float32, np.uint64):
        return values
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64, copy=False)


def _gather(features: Sequence[FeatureSpec], columns: Mapping[str, ColumnData], num_rows: int | None) -> tuple[dict[str, Column], int]:
    """The columns that the features read, as `Column`, all of the same number of rows."""
    ready: dict[str, Column] = {}
    first = "num_rows" if num_rows is not None else ""
    for feature in features:
        for name in feature.columns:
            if name in ready:
                continue
            if name not in columns:
                there = ", ".join(map(str, columns)) or "none"
                raise RequestError(f"column {name!r} is missing; there are: {there}", feature=feature.name)
            column = as_column(feature.name, columns[name])
            if num_rows is None:
                num_rows, first = column.num_rows, name
            elif column.num_rows != num_rows:
                raise RequestError(f"column {name!r} has {column.num_rows} rows, but {first} {num_rows}", feature=feature.name)
            ready[name] = column
    return ready, num_rows or 0


def encode(features: Sequence[FeatureSpec], columns: Mapping[str, ColumnData], num_rows: int | None = None) -> EncodedColumns:
    """Encode raw columns; nothing that is handed in is changed.

    Rules, the same for every source of columns:

    - Hash: XXH64, seed 0, of the UTF-8 text. A whole number is its decimal text, so 123 and "123" are one id.
    - Raw ids (ZCH, dynamic): any int64, and text that `str` would print for one, is that number; other text is its hash modulo 2**63 - 1.
    - Bucket and already encoded ids: whole numbers or their text, in [0, rows), else the out-of-vocabulary row or an error.
    - Vocabulary: the row listed for the word, else the out-of-vocabulary row. Boundary: how many boundaries are at or below the number, as float32.
    - Cross: every combination of the columns' tokens of a row, in column order.
    - Missing (null, empty text, empty list, NaN): the feature's default, else an empty bag or zeros. Missing values within a list of ids are dropped.
    - Text is split at the separator; items of lists and maps are not. Floats are ids where they are whole and at most 2**53.

    Args:
        features: what to encode; sparse and dense features come out in this order.
        columns: raw columns by name; others than those read are ignored.
        num_rows: B, where known: needed for features that read no column.

    Raises:
        RequestError: names feature and, where there is one, the first bad row.
    """
    ready, num_rows = _gather(features, columns, num_rows)
    sparse, dense = {}, {}
    for feature in features:
        own = [ready[name] for name in feature.columns]
        if feature.kind is FeatureKind.SPARSE:
            sparse[feature.name] = _encode_sparse(feature, own)
        else:
            dense[feature.name] = dense_matrix(feature, own[0], _prepare(feature).numbers)
    return EncodedColumns(num_rows, sparse, dense)
