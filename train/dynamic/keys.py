"""Which row each key has, and when training last read it."""

from typing import Any

import numpy as np

from emberline.train.dynamic.lots import Read
from emberline.train.dynamic.slots import KERNEL, SlotIndex

Numbers = np.ndarray[Any, np.dtype[Any]]


def new_index(max_rows: int, first_rows: int) -> "SlotIndex | DictIndex":
    """An index of so many rows, with room for the first ones; compiled, where that can be had."""
    library = KERNEL.get()
    return DictIndex(max_rows) if library is None else SlotIndex(library, max_rows, first_rows)


class DictIndex:
    """Keys of any 64 bits, each with a row of its own.

    Args:
        max_rows: rows there are.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._rows: dict[int, int] = {}
        self._last_steps: dict[int, int] = {}
        self._free: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, keys: Numbers, first: int = 0, missing: int = -1) -> Numbers:
        """Rows, int64 [n], and `first`, of keys, int64 [n]; `missing` where there is none."""
        rows = np.fromiter((self._rows.get(key, -1) for key in keys.tolist()), dtype=np.int64, count=len(keys))
        return np.where(rows < 0, missing, rows + first)

    def read(self, keys: Numbers, step: int) -> Read:
        """Find keys, int64 [n], and give rows to those that have none; there must be room for them. All are marked as read in this step."""
        size = len(self._rows)
        rows = np.empty(len(keys), dtype=np.int64)
        new: list[int] = []
        num_hits = 0
        fresh: set[int] = set()
        for place, key in enumerate(keys.tolist()):
            row = self._rows.get(key, -1)
            if row < 0:
                row = self._add(key)
                new.append(key)
                fresh.add(key)
            elif key not in fresh:
                num_hits += 1
            self._last_steps[key] = step
            rows[place] = row
        assert len(self._rows) == size + len(new)
        new_keys = np.array(new, dtype=np.int64)
        return Read(rows, new_keys, self.find(new_keys), num_hits)

    def add(self, keys: Numbers, last_steps: Numbers) -> Numbers:
        """Give rows, int64 [n], to distinct keys that have none; there must be room for them."""
        rows = []
        for key, step in zip(keys.tolist(), last_steps.tolist(), strict=True):
            rows.append(self._add(key))
            self._last_steps[key] = step
        return np.array(rows, dtype=np.int64)

    def remove(self, keys: Numbers) -> Numbers:
        """Take distinct keys out, all of which have a row; returns the rows, int64 [n], which are given again."""
        rows = [self._rows.pop(key) for key in keys.tolist()]
        for key in keys.tolist():
            del self._last_steps[key]
        self._free += rows
        return np.array(rows, dtype=np.int64)

    def lowest(self, wanted: int, own_rows: Numbers, scores: Numbers | None) -> Numbers:
        """The keys of the lowest score, of equal ones the smallest, int64: so many, or all.

        Args:
            wanted: how many.
            own_rows: int64, of keys that stay.
            scores: int64 [max_rows], of each row; None: the last step.
        """
        own = set(own_rows.tolist())
        ranked = sorted((self._last_steps[key] if scores is None else int(scores[row]), key) for key, row in self._rows.items() if row not in own)
        return np.array([key for _, key in ranked[:wanted]], dtype=np.int64)

    def clear(self) -> None:
        """Take all keys out; rows are given from the first on."""
        self._rows, self._last_steps, self._free, self._next = {}, {}, [], 0

    def items(self) -> tuple[Numbers, Numbers, Numbers]:
        """All keys in any order, the row and the last step of each, int64 [K]."""
        keys = list(self._rows)
        steps = [self._last_steps[key] for key in keys]
        return np.array(keys, dtype=np.int64), np.fromiter(self._rows.values(), dtype=np.int64, count=len(keys)), np.array(steps, dtype=np.int64)

    def _add(self, key: int) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row = self._next
            self._next += 1
        assert row < self.max_rows
        self._rows[key] = row
        return row
