"""Raw columns on their way to an encoder, and what comes out of it.

Letters used in shapes: B rows, N items (values) of one column over all rows.

    rows            "a", None, ["b", "c"]        items    a  b  c
    lengths         1    0     2
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding.texts import Bools, Ints, Texts, concatenate_texts, ranges
from emberline.errors import RequestError

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.uint64] | npt.NDArray[np.float32] | npt.NDArray[np.float64]
Lengths = npt.NDArray[np.int32]
MOST_IDS = 2**31 - 1
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Jagged:
    """One sparse feature of a batch.

    Args:
        values: int64 [N], the ids of row 0, then of row 1, and so on.
        lengths: int32 [B], ids of each row.
        weights: float32 [N], or None where the feature has none.
    """

    values: npt.NDArray[np.int64]
    lengths: Lengths
    weights: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class JaggedSteps:
    """One sparse sequence of a batch: rows of steps, steps of ids.

        row 0: [7 8] []       values        7 8 9
        row 1:                step_lengths  2 0 1
        row 2: [9]            lengths       2 0 1

    Args:
        values: int64 [N], the ids of the first step of row 0, then of its second, and so on.
        step_lengths: int32 [S], ids of each step.
        lengths: int32 [B], steps of each row.
        weights: float32 [N], or None where the feature has none.
    """

    values: npt.NDArray[np.int64]
    step_lengths: Lengths
    lengths: Lengths
    weights: npt.NDArray[np.float32] | None = None

    def bags(self) -> Jagged:
        """All ids of each row, its steps forgotten."""
        return Jagged(self.values, sums(self.step_lengths, self.lengths).astype(np.int32), self.weights)


@dataclass(frozen=True)
class DenseSteps:
    """One dense sequence of a batch.

    Args:
        values: float32 [S, value_dim], the steps of row 0, then of row 1, and so on.
        lengths: int32 [B], steps of each row.
    """

    values: npt.NDArray[np.float32]
    lengths: Lengths


@dataclass(frozen=True)
class EncodedColumns:
    """What `encode` makes of B rows, in the features' order.

    Args:
        num_rows: B.
        sparse: the ids of every sparse feature that is no sequence.
        dense: float32 [B, value_dim] of every dense feature that is no sequence.
        sparse_sequences: the ids of every sparse sequence.
        dense_sequences: the floats of every dense sequence.
    """

    num_rows: int
    sparse: dict[str, Jagged]
    dense: dict[str, npt.NDArray[np.float32]]
    sparse_sequences: dict[str, JaggedSteps] = field(default_factory=dict)
    dense_sequences: dict[str, DenseSteps] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """One raw column of B rows.

    Args:
        items: N values: texts, numbers (int64, uint64, float32 or float64), or Python scalars where a column mixes kinds.
        lengths: int32 [B], items of each row; None where every row has exactly one.
        valid: bool [N], False where an item is missing; None where all are there.
        weights: float64 [N] from a map of id to weight; None where the column has none.
        whole: text items that a separator does not split: all (True), none (False), or bool [N]. Items of lists and maps are whole.
        map_values: a column of N rows, what a map holds for each item; None where the column is no map.
    """

    items: Texts | Numbers | list[object]
    lengths: Lengths | None = None
    valid: Bools | None = None
    weights: npt.NDArray[np.float64] | None = None
    whole: bool | Bools = False
    map_values: "Column | None" = None

    @property
    def num_rows(self) -> int:
        """B."""
        return len(self.items) if self.lengths is None else self.lengths.shape[0]

    def row_of(self, item: int) -> int:
        """The row that holds an item."""
        return item if self.lengths is None else int(np.searchsorted(self.lengths.cumsum(), item, side="right"))


@dataclass(frozen=True)
class StepColumn:
    """One raw column of B rows of steps, each of which holds several values: a list of lists.

    Args:
        steps: S rows, the steps of row 0, then of row 1, and so on.
        lengths: int32 [B], steps of each row.
    """

    steps: Column
    lengths: Lengths

    @property
    def num_rows(self) -> int:
        """B."""
        return self.lengths.shape[0]


ColumnData = Column | StepColumn | Jagged | npt.NDArray[Any] | Sequence[object]
"""What `encode` takes as a column: a `Column` or `StepColumn`, ids with lengths, an array [B] or [B, d], or one Python value for each row."""


def sums(counts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Ints:
    """Sums of `counts` [N] over rows of `lengths` [B] items, int64 [B]."""
    if lengths.size == counts.size and (lengths == 1).all():
        return counts.astype(np.int64, copy=False)
    totals = np.concatenate([np.zeros(1, dtype=np.int64), counts.cumsum(dtype=np.int64)])
    ends = lengths.cumsum(dtype=np.int64)
    out: Ints = totals[ends] - totals[ends - lengths]
    return out


@contextmanager
def rows_at(rows: Ints) -> Iterator[None]:
    """While something else is encoded in place of rows: an error's row is what `rows` has at its place."""
    try:
        yield
    except RequestError as error:
        if error.row is None:
            raise
        raise RequestError(error.problem, feature=error.feature, row=int(rows[error.row])) from None


def take_rows(column: Column, index: Ints) -> Column:
    """The rows at `index`, in that order; -1 stands for a row without items."""
    if column.lengths is None:
        places = index
        lengths = None
        if index.size and index.min() < 0:
            places = index[index >= 0]
            lengths = (index >= 0).astype(np.int32)
    else:
        starts = column.lengths.cumsum(dtype=np.int64) - column.lengths
        counts = column.lengths[index] if column.lengths.size else np.zeros(index.size, dtype=np.int32)
        counts = np.where(index < 0, 0, counts).astype(np.int32)
        firsts = starts[index] if column.lengths.size else np.zeros(index.size, dtype=np.int64)
        lengths, places = counts, ranges(firsts, counts.astype(np.int64))
    items = column.items
    return Column(
        [items[place] for place in places.tolist()] if isinstance(items, list) else items.take(places),
        lengths,
        None if column.valid is None else column.valid[places],
        None if column.weights is None else column.weights[places],
        column.whole if isinstance(column.whole, bool) else column.whole[places],
        None if column.map_values is None else take_rows(column.map_values, places),
    )


def show(value: object) -> str:
    """A value as it is quoted in messages, cut where long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def check_jagged(feature: str, num_values: int, lengths: npt.NDArray[Any]) -> None:
    """Refuse lengths that do not describe `num_values` values.

    Raises:
        RequestError: lengths that aren't whole numbers in one dimension, a negative one, or a sum that isn't the number of values.
    """
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise RequestError(f"lengths are {lengths.dtype} {list(lengths.shape)}, not whole numbers [rows]", feature=feature)
    if not lengths.size:
        total = 0
    elif lengths.min() < 0:
        row = int((lengths < 0).argmax())
        raise RequestError(f"length {lengths[row]} is negative", feature=feature, row=row)
    else:
        total = int(lengths.max()) if lengths.size == 1 else int(lengths.sum(dtype=np.float64))
    if total != num_values:
        raise RequestError(f"lengths sum to {total}, but there are {num_values} values", feature=feature)


def concatenate_columns(columns: Sequence[Column]) -> Column:
    """The rows of all columns, one column after the other. All have items of one kind, and agree on `whole` and on having weights."""
    parts = [column.items for column in columns]
    if isinstance(parts[0], Texts):
        items: Texts | Numbers = concatenate_texts([part for part in parts if isinstance(part, Texts)])
    else:
        items = np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
    lengths, valid, weights = None, None, None
    if any(column.lengths is not None for column in columns):
        lengths = np.concatenate([np.ones(column.num_rows, dtype=np.int32) if column.lengths is None else column.lengths for column in columns])
    if any(column.valid is not None for column in columns):
        valid = np.concatenate([np.ones(len(column.items), dtype=np.bool_) if column.valid is None else column.valid for column in columns])
    if columns[0].weights is not None:
        weights = np.concatenate([column.weights for column in columns if column.weights is not None])
    return Column(items, lengths, valid, weights, columns[0].whole)
