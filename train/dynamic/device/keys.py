"""One table's keys on any device: the rules of `KeyedRows`, number for number, with tensors that stay where they are.

A training batch makes the host wait for the device a few times, however many ids it has: for how many are distinct, are looked for again (once,
mostly), are new, were hits. Where ids are admitted by frequency, those without a row come to the host, which counts them. New ones always do: first
vectors are drawn there, so that they are the same on every device.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emberline.train.dynamic.device.index import DeviceIndex
from emberline.train.dynamic.device.rows import DeviceRows
from emberline.train.dynamic.keyed import NO_ROW, KeyedRows
from emberline.train.dynamic.options import ScoreStrategy
from emberline.train.dynamic.state import DynamicTable

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class DeviceGiven:
    """What a batch got of a table; see `Given`.

    Args:
        rows: int64 [n], within the table; `NO_ROW` for ids that are not admitted yet.
        new_keys: int64 [m].
        new_rows: int64 [m], which they got.
        lost: int64, rows that keys lost before that.
    """

    rows: Tensor
    new_keys: Tensor
    new_rows: Tensor
    lost: Tensor


class DeviceKeys:
    """What `KeyIndex` is, on any device; arrays come and go by the host, tensors stay on the device.

    Args:
        device: where.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self._index = device, DeviceIndex(device)
        self._last_steps = DeviceRows((), torch.int64, device)
        self._free, self._next = self._none(), 0

    def __len__(self) -> int:
        return len(self._index)

    @property
    def num_rows(self) -> int:
        """The first row that nobody had yet."""
        return self._next

    def find(self, keys: Numbers) -> Numbers:
        """Rows, int64 [n], of keys, int64 [n]; -1 where there is none."""
        return self.find_here(self._here(keys)).cpu().numpy()

    def find_here(self, keys: Tensor) -> Tensor:
        """The same."""
        return self._index.find(keys)

    def add(self, keys: Numbers, last_steps: Numbers) -> Numbers:
        """Give rows, int64 [n], to distinct keys that have none."""
        rows = self.add_here(self._here(keys))
        self.read_here(rows, self._here(last_steps))
        return rows.cpu().numpy()

    def add_here(self, keys: Tensor) -> Tensor:
        """The same; they must be marked as read afterwards."""
        again = min(len(keys), len(self._free))
        fresh = torch.arange(self._next, self._next + len(keys) - again, device=self.device)
        rows = torch.cat([self._free[:again], fresh])
        self._free, self._next = self._free[again:], self._next + len(fresh)
        self._last_steps.reserve(self._next)
        self._index.add(keys, rows)
        return rows

    def read_here(self, rows: Tensor, steps: Tensor | int) -> None:
        """Mark rows, int64 [n], as read in a step."""
        self._last_steps.tensor[rows] = steps

    def remove(self, keys: Numbers) -> Numbers:
        """Take distinct keys out, all of which have a row; returns the rows, which are given again."""
        rows = self._index.find(self._here(keys))
        self.remove_here(rows)
        return rows.cpu().numpy()

    def remove_here(self, rows: Tensor) -> None:
        """The same, of their rows, int64 [n]."""
        if not len(rows):
            return
        keys, own = self._index.items()
        leaves = torch.zeros(self._next, dtype=torch.bool, device=self.device)
        leaves[rows] = True
        stay = ~leaves[own]
        self._index.build(keys[stay], own[stay])
        self._free = torch.cat([rows, self._free])

    def clear(self) -> None:
        """Take all keys out."""
        self._index.build(self._none(), self._none())
        self._free, self._next = self._none(), 0

    def items(self) -> tuple[Numbers, Numbers, Numbers]:
        """All keys in any order, the row and the last step of each, int64 [K]."""
        keys, rows, steps = (values.cpu().numpy() for values in self.items_here())
        return keys, rows, steps

    def items_here(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same."""
        keys, rows = self._index.items()
        return keys, rows, self._last_steps.tensor[rows]

    def _here(self, numbers: Numbers) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int64)).to(self.device)

    def _none(self) -> Tensor:
        return torch.empty(0, dtype=torch.int64, device=self.device)


class DeviceKeyed(KeyedRows):
    """The keys of one table.

    Args:
        table: what it is.
        device: where.

    Raises:
        ConfigError: it has no rows, or counts ids and has no room for one.
    """

    index: Any

    def __init__(self, table: DynamicTable, device: torch.device) -> None:
        self._device = device
        self._own_scores: DeviceRows | None = None
        super().__init__(table)

    def _make(self, has_scores: bool) -> Any:
        """See `KeyedRows`."""
        if has_scores:
            self._own_scores = DeviceRows((), torch.int64, self._device)
        return DeviceKeys(self._device)

    def items(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """See `KeyedRows.items`."""
        keys, rows, steps, scores = (values.cpu().numpy() for values in self.items_here())
        return keys, rows, steps, scores

    def items_here(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same."""
        keys, rows, steps = self.index.items_here()
        keys, order = torch.sort(keys)
        rows, steps = rows[order], steps[order]
        return keys, rows, steps, steps if self._own_scores is None else self._own_scores.tensor[rows]

    def replace(self, keys: Numbers, last_steps: Numbers, scores: Numbers) -> Numbers:
        """See `KeyedRows.replace`."""
        rows = super().replace(keys, last_steps, scores)
        self._set(rows, scores)
        return rows

    def set_scores(self, keys: Numbers, scores: Numbers) -> None:
        """See `KeyedRows.set_scores`."""
        if self._strategy is not ScoreStrategy.CUSTOMIZED:
            super().set_scores(keys, scores)  # which refuses
        rows = self.index.find(keys)
        self._set(rows[rows >= 0], scores[rows >= 0])

    def check_here(self, keys: Tensor) -> None:
        """See `check`: the host looks closer only where the batch might not find room.

        Raises:
            CapacityError: new ids find no room.
        """
        if len(self.index) + len(keys) > self.table.max_rows:
            self.check(keys.cpu().numpy())

    def rows_after(self, keys: Tensor, room: int) -> int:
        """Most rows that will be in use once a batch of ids, int64 [n], is read, where they are more than there is room for now, else any number."""
        if self.index.num_rows + len(keys) <= room:
            return room
        found = self.index.find_here(keys)
        rows: int = len(self.index) + len(torch.unique(keys[found < 0]))
        most: int = min(self.table.max_rows, max(self.index.num_rows, rows))
        return most

    def read_here(self, keys: Tensor, step: int, now: int) -> DeviceGiven:
        """See `read`."""
        once, places, counts = torch.unique(keys, return_inverse=True, return_counts=True)
        rows = self.index.find_here(once)
        is_new, refused = rows < 0, None
        hits = counts[~is_new].sum()
        if self.admission is not None and len(keys):
            is_new, refused = self._admit(keys, places, is_new)
        new_keys = once[is_new]
        lost = self._make_room_here(len(new_keys), rows, step)
        new_rows = self.index.add_here(new_keys)
        rows[is_new] = new_rows
        self.index.read_here(rows[rows >= 0], step)
        found = rows[places]
        if refused is not None:
            found = torch.where(refused, NO_ROW, found)
        self._note_here(found, new_rows, int(hits), now)
        return DeviceGiven(found, new_keys, new_rows, lost)

    def _admit(self, keys: Tensor, places: Tensor, is_unknown: Tensor) -> tuple[Tensor, Tensor]:
        """Which distinct ids are admitted now, bool [U], and which ids are not when they are read, bool [n]."""
        refused = is_unknown[places]
        asked = keys[refused]
        if not len(asked):
            return is_unknown, refused
        is_admitted = torch.from_numpy(self._admitted(asked.cpu().numpy(), np.full(len(asked), NO_ROW))).to(self._device)
        is_new = torch.zeros_like(is_unknown)
        is_new[places[refused][is_admitted]] = True
        refused[refused.clone()] = ~is_admitted
        return is_new, refused

    def _make_room_here(self, wanted: int, rows: Tensor, step: int) -> Tensor:
        """See `_make_room`."""
        number = self._leaving(wanted)
        if not number:
            return rows[:0]
        keys, own, _, scores = self.items_here()
        is_free = torch.ones(self.index.num_rows, dtype=torch.bool, device=self._device)
        is_free[rows[rows >= 0]] = False
        is_free = is_free[own]
        order = torch.sort(scores[is_free], stable=True).indices[:number]  # keys ascend already
        lost = own[is_free][order]
        assert len(self.index) - len(lost) + wanted <= self.table.max_rows
        self.totals.evicted += len(lost)
        if self._tracked_from is not None:
            self._removed.append((step, keys[is_free][order].cpu().numpy()))
        self.index.remove_here(lost)
        return lost

    def _note_here(self, found: Tensor, new_rows: Tensor, hits: int, now: int) -> None:
        """See `_noted`."""
        read = len(found)
        if self.admission is not None:
            found = found[found >= 0]
        self._count(read, hits, len(new_rows), read - len(found))
        if self._own_scores is not None:
            self._own_scores.reserve(self.index.num_rows)
            scores = self._own_scores.tensor
            scores[new_rows] = 0
            if self._strategy is ScoreStrategy.LFU:
                scores.index_add_(0, found, torch.ones_like(found))
            elif self._strategy is ScoreStrategy.TIMESTAMP:
                scores[found] = now

    def _set(self, rows: Numbers, scores: Numbers) -> None:
        if self._own_scores is not None:
            self._own_scores.reserve(self.index.num_rows)
            self._own_scores.write(torch.from_numpy(rows), torch.from_numpy(scores.astype(np.int64)))
