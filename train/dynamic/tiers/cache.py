"""Rows that are all in a file, and copies of those used last in memory: a table larger than memory, whose numbers are those of one that is not.

    row ──► slot of the fast tier (if it is there) ──► weights, moments, each in its own tensor
      └───► record of the file ──────────────────────► weights | moments, side by side: one page to read for a row

Rows of a batch come in, and those used longest ago, none of this batch, are written back and leave. A batch with more rows to bring than the fast
tier has room for, or somebody who reads the whole table, drives nobody out: what is not there is read and written in the file. Rows are numbered as
in the file everywhere outside of this module, so it matters to nobody where one is, nor when it moves: between a forward and its backward, or while
gradients wait.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emberline.train.dynamic.tiers.memory import KEPT_BYTES, Span, TieredMemory, are_first
from emberline.train.dynamic.tiers.recency import Region, SlotMap, Swap
from emberline.train.kernels.memory import table_memory
from emberline.train.kernels.rows import Rows

_Ints = np.ndarray[Any, np.dtype[np.int64]]
_ALIGNED = 16
"""Bytes that each plane of a record begins at a multiple of."""


@dataclass(frozen=True)
class Plane:
    """What is kept of every row: its weights, or a moment.

    Args:
        shape: of one row: (d,), or () for one number.
        dtype: of a number.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class RowCache:
    """The rows of some tables of one width.

    Args:
        planes: weights first.
        spans: the tables; `fast` is how many rows of each the fast tier has room for.
        caching: for each table, whether rows come and go; else its first rows are in memory for good, and the others in the file.
        folder: of the file; None: the system's temporary folder.
        kept_bytes: as of `TieredMemory`.
    """

    def __init__(
        self, planes: Sequence[Plane], spans: Sequence[Span], caching: Sequence[bool], folder: Path | None = None, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self.planes = tuple(planes)
        sizes = [_up(plane.row_bytes, _ALIGNED) for plane in planes]
        self.offsets = [0, *itertools.accumulate(sizes)]
        held = [Span(span.name, span.first, span.rows, 0 if moves else span.fast) for span, moves in zip(spans, caching, strict=True)]
        self.memory = TieredMemory(self.offsets[-1], held, folder, kept_bytes)
        rows = sum(span.rows for span in spans)
        self.whole = self.memory.tensor((rows, self.memory.row_bytes), torch.uint8)
        columns = zip(self.offsets, planes, strict=False)
        self._records = [_column(self.whole.numpy(), start, start + plane.row_bytes) for start, plane in columns]
        sizes = [span.fast if moves else 0 for span, moves in zip(spans, caching, strict=True)]
        firsts = [0, *itertools.accumulate(sizes)]
        self.hot = [table_memory((firsts[-1], *plane.shape), plane.dtype) for plane in planes]
        self._hot_rows = [Rows(tensor) for tensor in self.hot]
        pairs = zip(spans, itertools.pairwise(firsts), strict=True)
        self._slots = SlotMap(rows, [Region(span.first, span.first + span.rows, *slots) for span, slots in pairs if slots[1] > slots[0]])

    def plane(self, plane: int) -> Tensor:
        """What the file has of a plane, [rows, *shape], as a view: rows in the fast tier may differ."""
        held = self.planes[plane]
        column = self.whole[:, self.offsets[plane] : self.offsets[plane] + held.row_bytes]
        return column.view(held.dtype).view(len(column), *held.shape)

    def slots(self, rows: Tensor) -> Tensor | None:
        """Bring rows [n] in -> their slots int64 [n]; None where not all of them can be in at once."""
        slots = self._slots.bring(rows.numpy(), self._move)
        return torch.from_numpy(slots) if not len(slots) or slots.min() >= 0 else None

    def are_fast(self, rows: Tensor) -> Tensor:
        """Which rows, int32 or int64 [n], are in the fast tier now: bool [n]; nothing moves."""
        numbers = rows.numpy()
        return torch.from_numpy(self._slots.find(numbers) >= 0) | are_first(rows, self.memory.spans)

    def read(self, plane: int, rows: Tensor, *, moving: bool = True) -> Tensor:
        """A plane of rows, int32 or int64 [n], which must exist: a new tensor [n, width].

        Args:
            plane: which.
            rows: in any order.
            moving: whether rows come in, and others leave; else each is read where it is.
        """
        numbers = rows.numpy()
        slots = self._slots.bring(numbers, self._move) if moving else self._slots.find(numbers)
        is_hot = slots >= 0
        if len(slots) and is_hot.all():
            return self._hot_rows[plane].read(torch.from_numpy(slots))
        found = torch.empty(len(numbers), *self.planes[plane].shape, dtype=self.planes[plane].dtype)
        items = _items(found)
        items[is_hot] = _items(self.hot[plane])[slots[is_hot]]
        items[~is_hot] = self._records[plane][numbers[~is_hot]]
        self._touch(numbers[~is_hot])
        return found

    def write(self, plane: int, rows: Tensor, values: Tensor) -> None:
        """Overwrite a plane of rows, int64 [n], which must exist and be distinct, with contiguous values of its dtype, where they are."""
        numbers, items = rows.numpy(), _items(values)
        slots = self._slots.find(numbers)
        is_hot = slots >= 0
        self._slots.note_changed(slots)
        _items(self.hot[plane])[slots[is_hot]] = items[is_hot]
        self._records[plane][numbers[~is_hot]] = items[~is_hot]
        self._touch(numbers[~is_hot])

    def _move(self, swap: Swap) -> None:
        for hot, records in zip(self.hot, self._records, strict=True):
            items = _items(hot)
            records[swap.changed_rows] = items[swap.changed_slots]
            items[swap.slots] = records[swap.rows]
        self._touch(swap.rows, len(swap.changed_rows))

    def _touch(self, rows: _Ints, more: int = 0) -> None:
        if len(rows) + more:
            self.memory.touched(len(rows) + more)


class CachedRows(Rows):
    """One plane of a cache.

    Args:
        cache: which.
        plane: likewise.
    """

    def __init__(self, cache: RowCache, plane: int) -> None:
        self.tensor, self._cache, self._plane = cache.plane(plane), cache, plane

    def copy(self, rows: Tensor) -> Tensor:
        """See `Rows.copy`: in a file, where it is large; nothing moves."""
        return self._cache.memory.copy(lambda own: self._cache.read(self._plane, own, moving=False), rows, self.tensor)

    def __reduce__(self) -> Any:
        raise TypeError("rows whose second tier is a file cannot be copied or pickled: dump the table instead")

    def read(self, rows: Tensor) -> Tensor:
        """Copy rows, int32 or int64 [n], which must exist, into a new tensor [n, width] of the same dtype."""
        return self._cache.read(self._plane, rows)

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Overwrite rows, int64 [n], which must exist and be distinct, with contiguous values [n, width] of the same dtype."""
        self._cache.write(self._plane, rows, values)


def _column(records: np.ndarray[Any, np.dtype[np.uint8]], start: int, stop: int) -> np.ndarray[Any, Any]:
    """A part of each record, as one opaque item a row."""
    return records[:, start:stop].view(f"V{stop - start}")[:, 0] if len(records) else np.empty(0, dtype=f"V{stop - start}")


def _items(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A contiguous tensor's rows as one opaque item each."""
    width = int(np.prod(tensor.shape[1:], dtype=np.int64)) * tensor.element_size()
    if not len(tensor):
        return np.empty(0, dtype=f"V{width}")
    return tensor.view(len(tensor), -1).view(torch.uint8).numpy().view(f"V{width}").reshape(-1)


def _up(number: int, to: int) -> int:
    return -(-number // to) * to
