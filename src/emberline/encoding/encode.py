"""The one entry: raw columns -> ids, weights and floats, for training and serving alike."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding.columns import (
    Column,
    ColumnData,
    DenseSteps,
    EncodedColumns,
    Jagged,
    JaggedSteps,
    Numbers,
    StepColumn,
    check_jagged,
    concatenate_columns,
    show,
)
from emberline.encoding.derive import Raw, derive, is_map, read_rows
from emberline.encoding.numeric import dense_matrix, dense_matrix_alike
from emberline.encoding.prepare import prepare
from emberline.encoding.rows import column_from_values
from emberline.encoding.sparse import Prepared, encode_sparse, encode_sparse_alike
from emberline.encoding.steps import encode_steps
from emberline.encoding.texts import Texts
from emberline.errors import RequestError
from emberline.schema import FeatureKind, FeatureSpec

Encoded = Jagged | JaggedSteps | DenseSteps | npt.NDArray[np.float32]
_SMALL_REQUEST = 1024
"""Up to so many values (rows times features), numpy's cost for each call outweighs that of copying columns together."""


def as_raw(feature: str, data: ColumnData) -> Raw:
    """Any of the forms that `encode` takes as one of three. Python values stay as they are.

    Raises:
        RequestError: not one of those forms, or lengths that do not fit; names the feature.
    """
    if isinstance(data, Column):
        if data.lengths is not None:
            check_jagged(feature, len(data.items), data.lengths)
        return data
    if isinstance(data, StepColumn):
        check_jagged(feature, data.steps.num_rows, data.lengths)
        as_raw(feature, data.steps)
        return data
    if isinstance(data, Jagged):
        if data.values.ndim != 1 or (data.weights is not None and data.weights.shape != data.values.shape):
            raise RequestError("values and weights are not two arrays [ids] of one size", feature=feature)
        check_jagged(feature, data.values.size, data.lengths)
        weights = None if data.weights is None else data.weights.astype(np.float64)
        return Column(_numbers(feature, data.values), data.lengths.astype(np.int32), weights=weights)
    if isinstance(data, np.ndarray):
        if data.dtype.kind in "OU" and data.ndim == 1:
            return list(data.tolist())
        if data.ndim not in (1, 2):
            raise RequestError(f"an array of shape {list(data.shape)} is not [rows] or [rows, values]", feature=feature)
        lengths = np.full(data.shape[0], data.shape[1], dtype=np.int32) if data.ndim == 2 else None
        return Column(_numbers(feature, data.reshape(-1)), lengths)
    if isinstance(data, list | tuple):
        return list(data)
    raise RequestError(f"a column is {show(data)}, not an array or a list with one value a row", feature=feature)


def _numbers(feature: str, values: npt.NDArray[Any]) -> Numbers:
    if values.dtype.kind not in "iuf":
        raise RequestError(f"values of type {values.dtype} are not numbers", feature=feature)
    if values.dtype == np.float32 or values.dtype == np.uint64:
        return values
    return values.astype(np.float64, copy=False) if values.dtype.kind == "f" else values.astype(np.int64, copy=False)


def _gather(features: Sequence[FeatureSpec], columns: Mapping[str, ColumnData], num_rows: int | None) -> tuple[dict[str, Raw], int]:
    """The columns that the features read, all of the same number of rows. Lists of Python values stay as they are for now."""
    ready: dict[str, Raw] = {}
    first = "num_rows is"
    for feature in features:
        for name in feature.columns:
            if name in ready:
                continue
            if name not in columns:
                there = ", ".join(map(str, columns)) or "none"
                raise RequestError(f"column {name!r} is missing; there are: {there}", feature=feature.name)
            data = columns[name]
            column = data if type(data) is list else as_raw(feature.name, data)
            rows = len(column) if isinstance(column, list) else column.num_rows
            if num_rows is None:
                num_rows, first = rows, f"column {name!r} has"
            elif rows != num_rows:
                raise RequestError(f"column {name!r} has {rows} rows, but {first} {num_rows}", feature=feature.name)
            ready[name] = column
    return ready, num_rows or 0


def _kind(column: Raw) -> object:
    """Columns of one kind can be laid end to end; None: not with any other."""
    if isinstance(column, list):
        return list
    if isinstance(column, StepColumn) or column.map_values is not None or isinstance(column.items, list) or not isinstance(column.whole, bool):
        return None
    return column.items.dtype if isinstance(column.items, np.ndarray) else Texts, column.whole, column.weights is None


def _join(feature: str, columns: Sequence[Raw]) -> Column:
    if isinstance(columns[0], list):
        return column_from_values(feature, list(chain.from_iterable(column for column in columns if isinstance(column, list))))
    return concatenate_columns([column for column in columns if isinstance(column, Column)])


def _encode_alike(
    features: Sequence[FeatureSpec], prepared: Sequence[Prepared], columns: Mapping[str, Raw], num_rows: int
) -> dict[str, Jagged | npt.NDArray[np.float32]]:
    """What can be encoded together, by feature name; features that cannot, or of which one has a wrong value, are not in it."""
    groups: dict[tuple[object, object], list[int]] = {}
    for number, (feature, one) in enumerate(zip(features, prepared, strict=True)):
        if one.alike is not None and (kind := _kind(columns[feature.columns[0]])) is not None:
            groups.setdefault((one.alike, kind), []).append(number)
    done: dict[str, Jagged | npt.NDArray[np.float32]] = {}
    for members in groups.values():
        if len(members) < 2:
            continue
        own, ready = [features[number] for number in members], [prepared[number] for number in members]
        try:
            column = _join(own[0].name, [columns[feature.columns[0]] for feature in own])
            if own[0].kind is FeatureKind.SPARSE:
                done.update(zip([feature.name for feature in own], encode_sparse_alike(own, column, ready, num_rows), strict=True))
            else:
                matrix = dense_matrix_alike(own, column, np.stack([one.numbers for one in ready]), num_rows)
                done.update({feature.name: matrix[number][:, None] for number, feature in enumerate(own)})
        except RequestError:
            continue
    return done


def _as_column(ready: Mapping[str, Raw], plain: dict[str, Raw], number: int, feature: FeatureSpec) -> Column:
    """A column as the feature reads it. Python values become a plain column once for all features that read one; `ready` has them as they came."""
    name = feature.columns[number]
    if is_map(feature, number):
        return read_rows(feature, number, ready[name])
    column = plain[name] = read_rows(feature, number, plain[name])
    return column


def _encode_rows(feature: FeatureSpec, columns: Sequence[Column], one: Prepared) -> Jagged | npt.NDArray[np.float32]:
    """One feature that is no sequence."""
    inner = one.inner or feature
    columns = derive(feature, inner, columns)
    return encode_sparse(inner, columns, one) if feature.kind is FeatureKind.SPARSE else dense_matrix(inner, columns[0], one.numbers)


def encode(features: Sequence[FeatureSpec], columns: Mapping[str, ColumnData], num_rows: int | None = None) -> EncodedColumns:
    """Encode raw columns; nothing that is handed in is changed.

    Rules, the same for every source of columns:

    - Hash: XXH64, seed 0, of the UTF-8 text. A whole number is its decimal text, so 123 and "123" are one id.
    - Raw ids (ZCH, dynamic): any int64, and text that `str` would print for one, is that number; other text is its hash modulo 2**63 - 1.
    - Bucket and already encoded ids: whole numbers or their text, in [0, rows), else the out-of-vocabulary row or an error.
    - Vocabulary: the row listed for the word, else the out-of-vocabulary row. Boundary: how many boundaries are at or below the number, as float32.
    - Cross: every combination of the columns' tokens of a row, in column order.
    - Missing (null, empty text, empty list, NaN): the feature's default, else an empty bag or zeros. Missing values within a list of ids are dropped.
    - Expression, lookup and match: the computed value, or the looked-up ones, are then read as those of any other feature.
    - Sequences: every step is read as a row is, after the steps over `sequence_length` at the end that is not kept are cut off.
    - Text is split at the separator; items of lists and maps are not. Floats are ids where they are whole and below 2**53 (float32: 2**24), so exact.

    Args:
        features: what to encode; sparse and dense features come out in this order.
        columns: raw columns by name; others than those read are ignored.
        num_rows: B, where known.

    Raises:
        RequestError: names feature and, where there is one, the first bad row.
    """
    ready, num_rows = _gather(features, columns, num_rows)
    prepared = [prepare(feature) for feature in features]
    small = 0 < num_rows * len(features) <= _SMALL_REQUEST
    done = _encode_alike(features, prepared, ready, num_rows) if small else {}
    out = EncodedColumns(num_rows, {}, {})
    plain: dict[str, Raw] = dict(ready)
    for feature, one in zip(features, prepared, strict=True):
        result: Encoded | None = done.get(feature.name)
        if result is None and feature.sequence:
            result = encode_steps(feature, [ready[name] for name in feature.columns], one)
        elif result is None:
            result = _encode_rows(feature, [_as_column(ready, plain, number, feature) for number in range(len(feature.columns))], one)
        if isinstance(result, Jagged):
            out.sparse[feature.name] = result
        elif isinstance(result, JaggedSteps):
            out.sparse_sequences[feature.name] = result
        elif isinstance(result, DenseSteps):
            out.dense_sequences[feature.name] = result
        else:
            out.dense[feature.name] = result
    return out
