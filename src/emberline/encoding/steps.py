"""Sequences: rows of steps. Each step is read as a row of another feature is, so that every family has steps by the same code.

    "1;2|3;4"       [1, "2|3", 4]       [[1], [2, 3], [4]]          three steps, of which the second has two values

A text is split into steps, then each step into values; an item of a list is a step, a number is one step, an object is one step. A row that
is missing or empty has no steps. A step that is missing stays a step, without values or with the default's.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from emberline.encoding.columns import Column, DenseSteps, JaggedSteps, StepColumn, rows_at, take_rows
from emberline.encoding.derive import Raw, derive, is_map, read_rows
from emberline.encoding.lookup import read_entries
from emberline.encoding.numeric import dense_matrix
from emberline.encoding.rows import decode
from emberline.encoding.sparse import Prepared, encode_sparse
from emberline.encoding.texts import Ints, Texts, split_texts
from emberline.errors import RequestError
from emberline.schema import FeatureKind, FeatureSpec, Keep

Steps = tuple[Column | list[object], Ints]
"""Steps of all rows, as a raw column of S rows, and int64 [B], steps of each row."""


def split_steps(feature: FeatureSpec, raw: Raw) -> Steps:
    """Cut a raw column into steps.

    Raises:
        RequestError: names feature and row.
    """
    if isinstance(raw, StepColumn):
        return raw.steps, raw.lengths.astype(np.int64)
    if isinstance(raw, list):
        return _value_steps(feature, raw)
    if isinstance(raw.items, list):
        return _value_steps(feature, _values(raw))
    if raw.lengths is not None and (raw.map_values is not None or (raw.weights is not None and raw.whole is True)):
        there = raw.lengths > 0
        return take_rows(raw, np.flatnonzero(there)), there.astype(np.int64)
    if raw.lengths is not None:
        ones = None if raw.weights is None else np.ones(len(raw.items), dtype=np.int32)
        return Column(raw.items, ones, raw.valid, raw.weights), raw.lengths.astype(np.int64)
    if isinstance(raw.items, Texts):
        return _text_steps(feature, raw.items, raw)
    missing = np.isnan(raw.items) if raw.items.dtype.kind == "f" else np.zeros(raw.num_rows, dtype=np.bool_)
    there = ~missing if raw.valid is None else raw.valid & ~missing
    return take_rows(raw, np.flatnonzero(there)), there.astype(np.int64)


def _text_steps(feature: FeatureSpec, texts: Texts, column: Column) -> Steps:
    there = texts.sizes > 0 if column.valid is None else column.valid & (texts.sizes > 0)
    steps, counts = split_texts(texts.take(there), feature.step_separator)
    lengths = np.zeros(there.size, dtype=np.int64)
    lengths[there] = counts
    return Column(steps), lengths


def _values(column: Column) -> list[object]:
    """A column of mixed Python values, one a row or several, as one Python value a row."""
    assert isinstance(column.items, list)
    items = column.items if column.valid is None else [item if there else None for item, there in zip(column.items, column.valid, strict=True)]
    if column.lengths is None:
        return items
    ends = column.lengths.cumsum().tolist()
    return [items[end - length : end] for end, length in zip(ends, column.lengths.tolist(), strict=True)]


def _value_steps(feature: FeatureSpec, values: Sequence[object]) -> Steps:
    kinds = set(map(type, values))
    if kinds == {str} or kinds == {str, type(None)}:
        column = read_rows(feature, -1, list(values))
        assert isinstance(column.items, Texts)
        return _text_steps(feature, column.items, column)
    steps: list[object] = []
    lengths = np.zeros(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        before = len(steps)
        if isinstance(value, bytes):
            value = decode(feature.name, value, row)
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
            steps.extend(value)
        elif isinstance(value, str):
            steps.extend(value.split(feature.step_separator) if value else ())
        elif isinstance(value, Mapping):
            steps.extend([value] if value else ())
        elif value is not None and value == value:
            steps.append(value)
        lengths[row] = len(steps) - before
    return steps, lengths


def encode_steps(feature: FeatureSpec, raws: Sequence[Raw], prepared: Prepared) -> JaggedSteps | DenseSteps:
    """One sequence. Columns without steps of their own hold for all steps of a row.

    Raises:
        RequestError: columns of which a row has not equally many steps, or a wrong value; names feature and row.
    """
    found = {name: split_steps(feature, raw) for name, raw in zip(feature.columns, raws, strict=True) if name not in feature.row_columns}
    assert found, "no column has steps"
    kept, rows, lengths = _kept(feature, _equal_lengths(feature, found), fill=feature.encoded and bool(feature.default))
    held = {name: read_rows(feature, number, raw) for number, (name, raw) in enumerate(zip(feature.columns, raws, strict=True)) if name not in found}
    first, *_ = feature.columns
    entries = read_entries(feature, held.pop(first)) if first in held and is_map(feature, 0) else None
    inner = prepared.inner or feature
    with rows_at(rows):
        columns = [
            _take(feature, number, found[name][0], kept) if name in found else take_rows(held[name], rows)
            for number, name in enumerate(feature.columns)
            if name in found or name in held
        ]
        columns = derive(feature, inner, columns, entries, rows)
        if feature.kind is FeatureKind.DENSE:
            return DenseSteps(dense_matrix(inner, columns[0], prepared.numbers), lengths)
        bags = encode_sparse(inner, columns, prepared)
    return JaggedSteps(bags.values, bags.lengths, lengths, bags.weights)


def _equal_lengths(feature: FeatureSpec, found: Mapping[str, Steps]) -> Ints:
    """Steps of each row."""
    (first, (_, lengths)), *others = found.items()
    for name, (_, other) in others:
        if other.size != lengths.size:
            raise RequestError(f"column {name!r} has {other.size} rows, but column {first!r} has {lengths.size}", feature=feature.name)
        wrong = other != lengths
        if wrong.any():
            row = int(wrong.argmax())
            problem = f"column {name!r} has {int(other[row])} steps, but column {first!r} has {int(lengths[row])}"
            raise RequestError(problem, feature=feature.name, row=row)
    return lengths


def _kept(feature: FeatureSpec, lengths: Ints, fill: bool) -> tuple[Ints | None, Ints, npt.NDArray[np.int32]]:
    """Which steps stay.

    Args:
        feature: has the most steps a row, and the end that is kept.
        lengths: int64 [B].
        fill: give rows without steps one without values.

    Returns:
        int64 [S], the steps that stay, -1 for one that is put in; None where all are as they were. int64 [S], the row of each. int32 [B].
    """
    most = feature.sequence_length
    kept = np.minimum(lengths, most) if most else lengths
    if fill:
        kept = np.maximum(kept, 1)
    rows = np.repeat(np.arange(lengths.size), kept)
    if np.array_equal(kept, lengths):
        return None, rows, lengths.astype(np.int32)
    ends = lengths.cumsum()
    firsts = ends - kept if feature.keep is Keep.NEWEST else ends - lengths
    places = np.arange(rows.size) - np.repeat(kept.cumsum() - kept, kept) + firsts[rows]
    return np.where(lengths[rows] == 0, -1, places), rows, kept.astype(np.int32)


def _take(feature: FeatureSpec, number: int, steps: Column | list[object], kept: Ints | None) -> Column:
    if kept is None:
        return read_rows(feature, number, steps)
    if isinstance(steps, list):
        return read_rows(feature, number, [steps[place] if place >= 0 else None for place in kept.tolist()])
    return take_rows(read_rows(feature, number, steps), kept)
