"""Raw columns on their way to an encoder, and what comes out of it.

Letters used in shapes: B rows, N items (values) of one column over all rows.

    rows            "a", None, ["b", "c"]        items    a  b  c
    lengths         1    0     2
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding.texts import Bools, Texts, concatenate_texts
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
class EncodedColumns:
    """What `encode` makes of B rows: ids for every sparse feature, float32 [B, value_dim] for every dense one, in the features' order."""

    num_rows: int
    sparse: dict[str, Jagged]
    dense: dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Column:
    """One raw column of B rows.

    Args:
        items: N values: texts, numbers (int64, uint64, float32 or float64), or Python scalars where a column mixes kinds.
        lengths: int32 [B], items of each row; None where every row has exactly one.
        valid: bool [N], False where an item is missing; None where all are there.
        weights: float64 [N] from a map of id to weight; None where the column has none.
        whole: text items that a separator does not split: all (True), none (False), or bool [N]. Items of lists and maps are whole.
    """

    items: Texts | Numbers | list[object]
    lengths: Lengths | None = None
    valid: Bools | None = None
    weights: npt.NDArray[np.float64] | None = None
    whole: bool | Bools = False

    @property
    def num_rows(self) -> int:
        """B."""
        return len(self.items) if self.lengths is None else self.lengths.shape[0]

    def row_of(self, item: int) -> int:
        """The row that holds an item."""
        return item if self.lengths is None else int(np.searchsorted(self.lengths.cumsum(), item, side="right"))


ColumnData = Column | Jagged | npt.NDArray[Any] | Sequence[object]
"""What `encode` takes as a column: a `Column`, ids with lengths, an array [B] or [B, d], or one Python value for each row."""


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
