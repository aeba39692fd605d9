"""A table with more rows than its share of a device's memory: the others are in the host's.

HYBRID    rows on the device: constant ones, and the first that are given        on the host: the others
CACHING   rows on the device: constant ones, and copies of those used last       on the host: all that ids own

Numbers are those of a table that is all on the device, bit for bit. Rows are numbered as there everywhere outside of this module, so it matters to
nobody where one is, nor when it moves. The host gathers its rows into a buffer, which is pinned for CUDA, and that is copied; so which rows a batch
needs comes to the host, once for a lookup and once for an update.
"""

import numpy as np
import torch
from torch import Tensor

from emberline.errors import CapacityError
from emberline.train.dynamic.bank import lazy_memory
from emberline.train.dynamic.device.ahead import Ahead, gathered
from emberline.train.dynamic.device.rows import CONSTANTS, DeviceRows, Numbers
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tiers.blocks import TierCounters, Tiers
from emberline.train.dynamic.tiers.cache import Plane
from emberline.train.dynamic.tiers.prefetch import Prefetcher
from emberline.train.dynamic.tiers.recency import Region, SlotMap, Swap

_NOWHERE = -1
_BATCHES_AHEAD = 2
"""Rows are copied for so many batches at a time: a job asks for those of the next one just before it trains this one."""
_COPIED_ROWS = 1 << 16
"""So many rows are copied out at a time, so that a dump takes little of the device's memory."""


class TwoTiers:
    """The rows of one table.

    Args:
        grown: what it is; some of its rows are on the host.
        tiers: how many, and what is kept of each.
        device: where the others are.

    Raises:
        CapacityError: the device has no room for the copies, or there are not so many addresses.
    """

    def __init__(self, grown: DynamicTable, tiers: Tiers, device: torch.device) -> None:
        self.grown, self.device, self.fast, self._row_bytes = grown, device, tiers.fast_rows(grown), tiers.row_bytes(grown.dim)
        moves, most = grown.options.caching, grown.max_rows
        self._slots = SlotMap(most, [Region(0, most, 0, self.fast)] if self.fast else []) if moves else None
        self._first_of_host = CONSTANTS + (0 if moves else self.fast)
        at_first = CONSTANTS + (self.fast if moves else min(grown.options.init_capacity_per_rank or 0, self.fast))
        planes = tiers.planes(grown.dim)
        try:
            self.rows = [TieredRows(self, place, plane, at_first) for place, plane in enumerate(planes)]
        except torch.OutOfMemoryError as error:
            reason = f"table {grown.name!r}: there is no memory on {device} for copies of {self.fast:,} rows of {grown.dim} numbers"
            raise CapacityError(f"{reason}; lower cache_load_factor, or use more ranks") from error
        self._host = [_host_rows(CONSTANTS + most - self._first_of_host, plane, grown.name) for plane in planes]
        self._reads, self._fast_reads = 0, 0
        self._known: tuple[Tensor, Numbers] | None = None
        self._brought: tuple[Tensor, Numbers] | None = None
        self._ahead: list[Ahead] = []
        self._prefetcher = Prefetcher()

    def source(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Bring rows, int64 [n], to the device -> weights there, and where each row is in them; None where not all can be there at once."""
        slots = self._bring(rows)
        return (self.rows[0].tensor, self._here(slots)) if not len(slots) or slots.min() >= 0 else None

    def read(self, plane: int, rows: Tensor, *, moving: bool = True) -> Tensor:
        """A plane of rows, int64 [n] in any order, to where these are.

        Args:
            plane: which.
            rows: which must exist.
            moving: whether copies come to the device, and others leave it; else each is read where it is.
        """
        slots = self._bring(rows) if moving else self._find(rows)
        hot, is_hot = self.rows[plane].tensor, slots >= 0
        if is_hot.all():
            return hot.index_select(0, self._here(slots)).to(rows.device)
        found = hot.new_empty(len(rows), *hot.shape[1:], device=rows.device)
        cold, places = np.unique(self._numbers(rows)[~is_hot], return_inverse=True)
        fetched = self._fetch(plane, cold, rows.device).index_select(0, _there(places, rows.device))
        found.index_copy_(0, _there(np.flatnonzero(is_hot), rows.device), hot.index_select(0, self._here(slots[is_hot])).to(rows.device))
        return found.index_copy_(0, _there(np.flatnonzero(~is_hot), rows.device), fetched)

    def write(self, plane: int, rows: Tensor, values: Tensor) -> None:
        """Overwrite a plane of rows, int64 [n], all distinct, where they are."""
        slots = self._find(rows)
        hot, is_hot = self.rows[plane].tensor, slots >= 0
        if self._slots is not None:
            self._slots.note_changed(slots - CONSTANTS)
        if is_hot.all():
            hot.index_copy_(0, self._here(slots), values.to(self.device))
            return
        chosen = values.index_select(0, _there(np.flatnonzero(is_hot), values.device))
        hot.index_copy_(0, self._here(slots[is_hot]), chosen.to(self.device))
        self._put(plane, self._numbers(rows)[~is_hot], values.index_select(0, _there(np.flatnonzero(~is_hot), values.device)))

    def count(self, rows: Tensor) -> None:
        """Take note that rows, int64 [n], are looked up."""
        owned = self._numbers(rows) >= CONSTANTS
        self._reads += int(owned.sum())
        self._fast_reads += int((self._find(rows)[owned] >= 0).sum())

    def prefetch(self, rows: Numbers) -> None:
        """Let a thread copy rows, int64 [n], that are on the host to the device, for reads to come.

        Raises:
            Exception: what went wrong the last time.
        """
        slow = np.unique(rows[self._slots_of(rows) < 0])
        self._ahead = self._ahead[1 - _BATCHES_AHEAD :]
        if len(slow):
            ahead = Ahead(slow, self._host, self._first_of_host, self.device)
            ahead.begin(self._prefetcher)
            self._ahead.append(ahead)  # from here on it is told which rows are written to

    def room(self, held: int) -> int:
        """Rows that keys may own, of so many that all else has room for: fewer, where the device's part is still to grow."""
        on_device = min(len(rows.tensor) for rows in self.rows) - CONSTANTS
        return min(held, on_device) if on_device < self.fast else held

    def counters(self, capacity: int) -> TierCounters:
        """Of the table, which has room for so many rows now."""
        return TierCounters(
            mode="HYBRID" if self._slots is None else "CACHING",
            fast_rows=self.fast,
            fast_bytes=self.fast * self._row_bytes,
            slow_bytes=max(0, CONSTANTS + capacity - self._first_of_host) * self._row_bytes,
            fast_reads=self._fast_reads,
            slow_reads=self._reads - self._fast_reads,
        )

    def _numbers(self, rows: Tensor) -> Numbers:
        """Rows on the host; of those asked for last, without asking the device again."""
        if self._known is None or self._known[0] is not rows:
            self._known = (rows, rows.cpu().numpy())
        return self._known[1]

    def _find(self, rows: Tensor) -> Numbers:
        """Where rows are on the device, int64 [n]; -1: on the host."""
        return self._brought[1] if self._brought is not None and self._brought[0] is rows else self._slots_of(self._numbers(rows))

    def _slots_of(self, numbers: Numbers) -> Numbers:
        if self._slots is None:
            return np.where(numbers < self._first_of_host, numbers, _NOWHERE)
        slots = self._slots.find(np.maximum(numbers - CONSTANTS, 0))
        return np.where(numbers < CONSTANTS, numbers, np.where(slots < 0, _NOWHERE, slots + CONSTANTS))

    def _bring(self, rows: Tensor) -> Numbers:
        """The same, once copies of as many as can be there are there."""
        if self._brought is not None and self._brought[0] is rows:
            return self._brought[1]
        numbers, self._brought = self._numbers(rows), None
        if self._slots is not None:
            self._slots.bring(numbers[numbers >= CONSTANTS] - CONSTANTS, self._move)
        self._brought = (rows, self._slots_of(numbers))
        return self._brought[1]

    def _move(self, swap: Swap) -> None:
        coming = [self._fetch(plane, swap.rows + CONSTANTS, self.device) for plane in range(len(self.rows))]
        leaving, slots = self._here(swap.changed_slots + CONSTANTS), self._here(swap.slots + CONSTANTS)
        if len(leaving):
            for plane, rows in enumerate(self.rows):
                self._put(plane, swap.changed_rows + CONSTANTS, rows.tensor.index_select(0, leaving))
        for rows, values in zip(self.rows, coming, strict=True):
            rows.tensor.index_copy_(0, slots, values)

    def _fetch(self, plane: int, rows: Numbers, device: torch.device) -> Tensor:
        """A plane of rows of the host, int64 [n], ascending and distinct."""
        for ahead in self._ahead if device.type == self.device.type else ():
            places, is_there = ahead.find(rows)
            if is_there.any() and ahead.is_to_come:
                found = ahead.read(plane, self._here(places[is_there]))
                if is_there.all():
                    return found
                others = gathered(self._host[plane], rows[~is_there] - self._first_of_host, device)
                whole = found.new_empty(len(rows), *found.shape[1:])
                whole.index_copy_(0, self._here(np.flatnonzero(is_there)), found)
                return whole.index_copy_(0, self._here(np.flatnonzero(~is_there)), others)
        return gathered(self._host[plane], rows - self._first_of_host, device)

    def _put(self, plane: int, rows: Numbers, values: Tensor) -> None:
        """Overwrite a plane of rows of the host, int64 [n], distinct."""
        for ahead in self._ahead:
            ahead.forget(rows)
        self._host[plane].index_copy_(0, torch.from_numpy(rows - self._first_of_host), values.cpu())

    def _here(self, numbers: Numbers) -> Tensor:
        return _there(numbers, self.device)


class TieredRows(DeviceRows):
    """One plane of a table in two tiers; its tensor is what the device has.

    Args:
        both: the tiers.
        place: of the plane among theirs.
        plane: what it is.
        rows: on the device at first.
    """

    def __init__(self, both: TwoTiers, place: int, plane: Plane, rows: int) -> None:
        super().__init__(plane.shape, plane.dtype, both.device, rows)
        self._both, self._place = both, place

    def reserve(self, rows: int, most: int | None = None) -> None:
        """See `DeviceRows.reserve`: those beyond the device's share take memory of the host once they are written to."""
        super().reserve(min(rows, CONSTANTS + self._both.fast), CONSTANTS + self._both.fast)

    def read(self, rows: Tensor) -> Tensor:
        """See `DeviceRows.read`."""
        return self._both.read(self._place, rows)

    def copy(self, rows: Tensor) -> Tensor:
        """The same, of rows that may be most of a table, int64 [n]; nothing moves."""
        copied = self.tensor.new_empty(len(rows), *self.tensor.shape[1:], device=rows.device)
        for into, own in zip(torch.split(copied, _COPIED_ROWS), torch.split(rows, _COPIED_ROWS), strict=True):
            into.copy_(self._both.read(self._place, own, moving=False))
        return copied

    def write(self, rows: Tensor, values: Tensor) -> None:
        """See `DeviceRows.write`."""
        self._both.write(self._place, rows, values)


def _host_rows(rows: int, plane: Plane, name: str) -> Tensor:
    """Zeros that take memory once they are written to."""
    return torch.frombuffer(lazy_memory(rows * plane.row_bytes, repr(name)), dtype=plane.dtype).view(rows, *plane.shape)


def _there(numbers: Numbers, device: torch.device) -> Tensor:
    return torch.from_numpy(numbers).to(device)
