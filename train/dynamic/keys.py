"""Which row each key has, and when training last read it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Read:
    """What a batch met.

    Args:
        rows: int64 [n], of each id.
        new_keys: int64 [m], those that had no row, in the order in which they came.
        new_rows: int64 [m], the rows that they got.
        num_hits: ids that had a row before, each time they were read.
    """

    rows: Numbers
    new_keys: Numbers
    new_rows: Numbers
    num_hits: int


class KeyIndex:
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

    def find(self, keys: Numbers) -> Numbers:
        """Rows, int64 [n], of keys, int64 [n]; -1 where there is none."""
        return np.fromiter((self._rows.get(key, -1) for key in keys.tolist()), dtype=np.int64, count=len(keys))

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

    def remove(self, keys: Numbers) -> None:
        """Take distinct keys out, all of which have a row. Their rows are given again."""
        for key in keys.tolist():
            self._free.append(self._rows.pop(key))
            del self._last_steps[key]

    def clear(self) -> None:
        """Take all keys out."""
        self.remove(np.fromiter(self._rows, dtype=np.int64, count=len(self._rows)))

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
