"""Raw columns on their way to an encoder, and what comes out of it.

Letters used in shapes: B rows, N items (values) of one column over all rows.

    rows            "a", None, ["b", "c"]        items    a  b  c
    lengths         1    0     2
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding.texts import Bools, Texts
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


ColumnData = Column | Jagged | npt.NDArray[np.generic] | list[object] | tuple[object, ...]
"""What `encode` takes as a column: a `Column`, ids with lengths, an array [B] or [B, d], or one Python value for each row."""


def show(value: object) -> str:
    """A value as it is quoted in messages, cut where long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def check_jagged(feature: str, values: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> None:
    """Refuse lengths that do not describe the values.

    Raises:
        RequestError: lengths that aren't whole numbers in one dimension, a negative one, or a sum that isn't the number of values.
    """
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise RequestError(f"lengths are {lengths.dtype} {list(lengths.shape)}, not whole numbers [rows]", feature=feature)
    if values.ndim != 1:
        raise RequestError(f"values have shape {list(values.shape)}, not [ids]", feature=feature)
    negative = np.flatnonzero(lengths < 0) if lengths.size else lengths
    if negative.size:
        raise RequestError(f"length {lengths[negative[0]]} is negative", feature=feature, row=int(negative[0]))
    total = int(lengths.sum(dtype=np.float64)) if lengths.size else 0
    if total != values.shape[0]:
        raise RequestError(f"lengths sum to {total}, but there are {values.shape[0]} values", feature=feature)
