"""How often ids were read that have no row yet: those read often enough get one."""

from typing import Any

import numpy as np

from emberline.train.dynamic.lots import LOT
from emberline.train.dynamic.slots import KERNEL, SlotCounter

Numbers = np.ndarray[Any, np.dtype[Any]]


def new_counter(threshold: int, capacity: int) -> "SlotCounter | DictCounter":
    """A counter; compiled, where that can be had."""
    library = KERNEL.get()
    return DictCounter(threshold, capacity) if library is None else SlotCounter(library, threshold, capacity)


class DictCounter:
    """Counts up to a bound; when it is full, those counted least go, of equal ones the smallest first.

    Args:
        threshold: reads after which an id is admitted; at least 1.
        capacity: most ids that are counted; at least 1.
    """

    def __init__(self, threshold: int, capacity: int) -> None:
        self.threshold, self.capacity, self.forgotten = threshold, capacity, 0
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, keys: Numbers) -> Numbers:
        """Count ids, int64 [n], in order -> bool [n]: whether each is admitted when it is read. Admitted ids are counted no more."""
        admitted: set[int] = set()
        return np.fromiter((self._count(key, admitted) for key in keys.tolist()), dtype=bool, count=len(keys))

    def _count(self, key: int, admitted: set[int]) -> bool:
        if key in admitted:
            return True
        count = self._counts.get(key, 0) + 1
        if count >= self.threshold:
            self._counts.pop(key, None)
            admitted.add(key)
            return True
        if count == 1 and len(self._counts) >= self.capacity:
            self._forget(max(1, self.capacity // LOT))
        self._counts[key] = count
        return False

    def _forget(self, number: int) -> None:
        for key in sorted(self._counts, key=lambda key: (self._counts[key], key))[:number]:
            del self._counts[key]
            self.forgotten += 1

    def copy(self) -> "DictCounter":
        """Another that begins with the same counts."""
        other = DictCounter(self.threshold, self.capacity)
        other._counts = dict(self._counts)
        return other

    def drop(self, keys: Numbers) -> None:
        """Forget what is known of ids, int64 [n]."""
        for key in keys.tolist():
            self._counts.pop(key, None)

    def items(self) -> tuple[Numbers, Numbers]:
        """Ids, int64 [C] ascending, and the count of each, int64 [C]."""
        keys = np.array(sorted(self._counts), dtype=np.int64)
        return keys, np.array([self._counts[key] for key in keys.tolist()], dtype=np.int64)

    def replace(self, keys: Numbers, counts: Numbers) -> None:
        """Begin with these counts; of too many, the lowest are forgotten."""
        self._counts = dict(zip(keys.tolist(), counts.tolist(), strict=True))
        if len(self._counts) > self.capacity:
            self._forget(len(self._counts) - self.capacity)
