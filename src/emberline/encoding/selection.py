"""Encoded columns, cut, reordered and joined by rows.

Letters: B rows, N ids, S steps.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from emberline.encoding.columns import DenseSteps, EncodedColumns, Jagged, JaggedSteps
from emberline.encoding.texts import ranges

Part = TypeVar("Part", Jagged, JaggedSteps, DenseSteps)
Places = npt.NDArray[np.int64] | slice
Lengths = npt.NDArray[np.int32]


def cut_columns(columns: EncodedColumns, start: int, stop: int) -> EncodedColumns:
    """Rows [start, stop), sharing memory."""

    def select(lengths: Lengths) -> Places:
        first = int(lengths[:start].sum(dtype=np.int64))
        return slice(first, first + int(lengths[start:stop].sum(dtype=np.int64)))

    return _selected(columns, slice(start, stop), stop - start, select)


def take_columns(columns: EncodedColumns, order: npt.NDArray[np.int64]) -> EncodedColumns:
    """The rows at `order`, in that order, copied."""
    return RowTaker(columns).take(order)


class RowTaker:
    """Takes rows of the same columns again and again, in the time that the taken ones need: where each row's items begin is found once.

    Sequences of several ids a step are looked at whole each time.

    Args:
        columns: held, not copied.
    """

    def __init__(self, columns: EncodedColumns) -> None:
        self._columns = columns
        counted: list[Jagged | JaggedSteps | DenseSteps] = [
            *columns.sparse.values(),
            *columns.sparse_sequences.values(),
            *columns.dense_sequences.values(),
        ]
        self._starts = {id(part.lengths): _starts(part.lengths) for part in counted}

    def take(self, order: npt.NDArray[np.int64]) -> EncodedColumns:
        """As `take_columns`."""

        def select(lengths: Lengths) -> Places:
            starts = self._starts_of(lengths)
            return order if starts is None else ranges(starts[order], lengths[order].astype(np.int64))

        return _selected(self._columns, order, order.size, select)

    def cut(self, start: int, stop: int) -> EncodedColumns:
        """As `cut_columns`."""

        def select(lengths: Lengths) -> Places:
            starts = self._starts_of(lengths)
            if starts is None or start >= stop:
                return slice(start, max(start, stop))
            return slice(int(starts[start]), int(starts[stop - 1]) + int(lengths[stop - 1]))

        return _selected(self._columns, slice(start, stop), stop - start, select)

    def _starts_of(self, lengths: Lengths) -> npt.NDArray[np.int64] | None:
        return self._starts[id(lengths)] if id(lengths) in self._starts else _starts(lengths)


def _starts(lengths: Lengths) -> npt.NDArray[np.int64] | None:
    """Where each row's items begin; None where each row has one."""
    if lengths.size and (lengths == 1).all():
        return None
    return lengths.cumsum(dtype=np.int64) - lengths


def _selected(columns: EncodedColumns, rows: Places, num_rows: int, select: Callable[[Lengths], Places]) -> EncodedColumns:
    """Some rows: `select` turns the items of each row into the places of the rows' items."""
    return EncodedColumns(
        num_rows,
        {name: _bag(bag, rows, select(bag.lengths)) for name, bag in columns.sparse.items()},
        {name: values[rows] for name, values in columns.dense.items()},
        {name: _steps(steps, rows, select) for name, steps in columns.sparse_sequences.items()},
        {name: DenseSteps(steps.values[select(steps.lengths)], steps.lengths[rows]) for name, steps in columns.dense_sequences.items()},
    )


def _bag(bag: Jagged, rows: Places, ids: Places) -> Jagged:
    return Jagged(bag.values[ids], bag.lengths[rows], None if bag.weights is None else bag.weights[ids])


def _steps(steps: JaggedSteps, rows: Places, select: Callable[[Lengths], Places]) -> JaggedSteps:
    ids = _bag(steps.bags(), rows, select(steps.bags().lengths))
    return JaggedSteps(ids.values, steps.step_lengths[select(steps.lengths)], steps.lengths[rows], ids.weights)


def only_features(columns: EncodedColumns, names: Collection[str]) -> EncodedColumns:
    """The columns of some features, sharing memory."""
    return EncodedColumns(
        columns.num_rows,
        {name: bag for name, bag in columns.sparse.items() if name in names},
        {name: values for name, values in columns.dense.items() if name in names},
        {name: steps for name, steps in columns.sparse_sequences.items() if name in names},
        {name: steps for name, steps in columns.dense_sequences.items() if name in names},
    )


def join_columns(parts: Sequence[EncodedColumns]) -> EncodedColumns:
    """The rows of all parts, one after the other."""
    first = parts[0]
    return EncodedColumns(
        sum(part.num_rows for part in parts),
        {name: _joined([part.sparse[name] for part in parts]) for name in first.sparse},
        {name: np.concatenate([part.dense[name] for part in parts]) for name in first.dense},
        {name: _joined([part.sparse_sequences[name] for part in parts]) for name in first.sparse_sequences},
        {name: _joined([part.dense_sequences[name] for part in parts]) for name in first.dense_sequences},
    )


def _joined(parts: Sequence[Part]) -> Part:
    """Each array of all parts end to end; what the first has none of, none has."""
    first = parts[0]
    names = [field.name for field in fields(first) if getattr(first, field.name) is not None]
    return replace(first, **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
