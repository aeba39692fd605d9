"""Which rows a cache holds: those used last. Where rows lie, and how they are copied, is for others to know."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from emberline.train.dynamic.tiers.memory import Span, TieredMemory

_Ints = np.ndarray[Any, np.dtype[np.int64]]
_SHARE_FREED = 32
"""A search for slots used longest ago finds at least this part of them, so that it is a small part of the work."""


@dataclass(frozen=True)
class Swap:
    """Rows that come into slots, and what must be saved before that.

    Args:
        rows: int64 [n], which come.
        slots: int64 [n], where to.
        changed_rows: int64 [m], of those that were in these slots, the ones whose copies were written to.
        changed_slots: int64 [m], where they are.
    """

    rows: _Ints
    slots: _Ints
    changed_rows: _Ints
    changed_slots: _Ints


class SlotMap:
    """The slot of each row of some tables, where it has one.

    A batch with more rows to bring than a table has slots for drives nobody out: rows come into slots that are empty, the others stay where they are.

    Args:
        rows: of all tables.
        regions: of tables that have slots, in order.
    """

    def __init__(self, rows: int, regions: Sequence["Region"]) -> None:
        memory = TieredMemory(4, [Span("slots", 0, rows, rows)])
        self._slots = memory.tensor((rows,), torch.int32).numpy()  # of each row, from 1; 0: it is in none
        self._regions = tuple(regions)

    def find(self, rows: _Ints) -> _Ints:
        """The slots, int64 [n], of rows, integers [n]; -1 where there is none. Nothing moves."""
        slots: _Ints = self._slots[rows].astype(np.int64) - 1
        return slots

    def bring(self, rows: _Ints, move: Callable[[Swap], None]) -> _Ints:
        """The same of rows that are used now, and come in: `move` copies them, and where it raises, nothing is changed here."""
        slots = self.find(rows)
        for region in self._regions:
            region.use(slots)
        absent = np.unique(rows[slots < 0])
        if not len(absent):
            return slots
        for region in self._regions:
            own = absent[slice(*np.searchsorted(absent, (region.first, region.stop)))]
            if len(own):
                self._swap(region, own, move)
        return self.find(rows)

    def note_changed(self, slots: _Ints) -> None:
        """Take note that what is in these slots, int64 [n], was written to; -1: in none."""
        for region in self._regions:
            region.is_changed[slots[(slots >= region.first_slot) & (slots < region.stop_slot)] - region.first_slot] = True

    def _swap(self, region: "Region", rows: _Ints, move: Callable[[Swap], None]) -> None:
        """Rows come in, as many as slots can be had for; who was there leaves, but not for more than would fit."""
        slots = region.oldest(len(rows)) if len(rows) <= len(region.rows) else region.empty(len(rows))
        if not len(slots):
            return
        rows, own = rows[: len(slots)], slots - region.first_slot
        leaving, is_changed = region.rows[own], region.is_changed[own]
        move(Swap(rows, slots, leaving[is_changed], slots[is_changed]))
        self._slots[leaving[leaving >= 0]] = 0
        self._slots[rows] = slots + 1
        region.take(own, rows)


class Region:
    """The slots of one table: which row is in each, and when it was last used.

    Args:
        first: the table's first row.
        stop: the first row that is not its own.
        first_slot: likewise of its slots.
        stop_slot: likewise.
    """

    def __init__(self, first: int, stop: int, first_slot: int, stop_slot: int) -> None:
        self.first, self.stop, self.first_slot, self.stop_slot = first, stop, first_slot, stop_slot
        size = stop_slot - first_slot
        self.rows = np.full(size, -1, dtype=np.int64)
        self.is_changed = np.zeros(size, dtype=bool)
        self._used = np.zeros(size, dtype=np.int64)
        self._now = 0
        self._waiting, self._waiting_since = np.arange(size), 0
        """Slots that were used longest ago when they were last looked for, the oldest first; none was in use after this time."""

    def use(self, slots: _Ints) -> None:
        """A new moment, at which these slots (and others, of other tables, or none) are used."""
        self._now += 1
        self._used[slots[(slots >= self.first_slot) & (slots < self.stop_slot)] - self.first_slot] = self._now

    def oldest(self, wanted: int) -> _Ints:
        """The slots used longest ago, none of them now: as many as wanted, or all there are."""
        found = self._unused()
        if len(found) < wanted:
            size = len(self._used)
            count = min(size, max(wanted, size // _SHARE_FREED))
            part = np.argpartition(self._used, count - 1)[:count]
            self._waiting = part[np.lexsort((part, self._used[part]))]
            self._waiting_since = self._now - 1
            found = self._unused()
        self._waiting = found[wanted:]
        return found[:wanted] + self.first_slot

    def empty(self, wanted: int) -> _Ints:
        """Slots with no row: as many as wanted, or all there are."""
        return np.flatnonzero(self.rows < 0)[:wanted] + self.first_slot

    def take(self, own: _Ints, rows: _Ints) -> None:
        """Rows come into slots, counted from the region's first."""
        self.rows[own], self.is_changed[own], self._used[own] = rows, False, self._now

    def _unused(self) -> _Ints:
        unused: _Ints = self._waiting[self._used[self._waiting] <= self._waiting_since]
        return unused
