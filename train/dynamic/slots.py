"""The compiled form of the index of keys and of admission's counter: `keys.c`. Without a compiler Python gives the same answers, more slowly."""

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emberline.compiled import Kernel
from emberline.memory import aligned_memory
from emberline.train.dynamic.lots import LOT, Read

Numbers = np.ndarray[Any, np.dtype[Any]]
SLOT_BYTES = 16
FEWEST_SLOTS = 64
THREADED_IDS = 1 << 12
"""Fewer ids are not worth a thread."""
_FRESH = 2**32 - 1
_DIGIT = 16
_ADDRESS, _INT64, _UINT64, _INT32, _UINT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint32


class _Keys(ctypes.Structure):
    _fields_ = (
        ("slots", _ADDRESS),
        ("num_slots", _UINT64),
        ("limit", _UINT64),
        ("size", _UINT64),
        ("free", _ADDRESS),
        ("num_free", _UINT64),
        ("next_row", _UINT64),
    )


class BagsOfRead(ctypes.Structure):
    """One read of a table; see `keys.c`."""

    _fields_ = (("keys", _ADDRESS), ("rows", _ADDRESS), ("unknown", _ADDRESS), ("dim", _INT64), ("column", _INT64))


class Spread(ctypes.Structure):
    """How first vectors are spread: `is_normal`; the part of (0, 1), or of the uniform numbers, that is drawn from: `first` to `last`.

    A normal number is taken times `scale`, `centre` is added, and it is kept within `lower` and `upper`.
    """

    _fields_ = (
        ("is_normal", _INT32),
        ("first", ctypes.c_double),
        ("last", ctypes.c_double),
        ("centre", ctypes.c_double),
        ("scale", ctypes.c_double),
        ("lower", ctypes.c_double),
        ("upper", ctypes.c_double),
    )


def _declare(library: ctypes.CDLL) -> None:
    keys = ctypes.POINTER(_Keys)
    types: dict[str, tuple[tuple[Any, ...], Any]] = {
        "find": ((keys, _ADDRESS, _INT64, _INT64, _INT64, _ADDRESS, _INT32), None),
        "read": ((keys, _ADDRESS, _INT64, _INT64, _UINT32, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS), _INT64),
        "settle": ((keys, _ADDRESS, _INT64, _UINT32), None),
        "add": ((keys, _ADDRESS, _INT64, _ADDRESS, _ADDRESS), None),
        "remove": ((keys, _ADDRESS, _INT64, _ADDRESS, _INT32), None),
        "rehash": ((_ADDRESS, _UINT64, keys), None),
        "items": ((keys, _ADDRESS, _ADDRESS, _ADDRESS), None),
        "lowest": ((keys, _ADDRESS, _ADDRESS, _INT64, _ADDRESS, _ADDRESS), _INT64),
        "count": ((keys, _ADDRESS, _INT64, _INT64, _UINT32, _UINT64, _ADDRESS, _ADDRESS, _ADDRESS), _INT64),
        "pool": ((ctypes.POINTER(BagsOfRead), _INT64, _INT64, _INT64, _ADDRESS, _ADDRESS, _ADDRESS, _INT32), None),
        "vectors": ((_ADDRESS, _INT64, _INT64, _UINT64, ctypes.POINTER(Spread), _ADDRESS, _ADDRESS), None),
    }
    for name, (arguments, result) in types.items():
        function = getattr(library, f"emberline_keys_{name}")
        function.argtypes, function.restype = arguments, result


KERNEL = Kernel(
    Path(__file__).with_name("keys.c"),
    _declare,
    stand_in="Python's dictionaries",
    without="ids of tables that grow are looked up in Python's dictionaries, which is much slower",
    flags=lambda: ("-ffp-contract=off",),
)


def compiled_vectors(library: ctypes.CDLL, spread: Spread, polynomials: Numbers, stream: int, keys: Numbers, dim: int) -> Numbers:
    """See `initial_values.first_vectors`."""
    vectors = np.empty((len(keys), dim), dtype=np.float32)
    library.emberline_keys_vectors(keys.ctypes.data, len(keys), dim, stream, spread, polynomials.ctypes.data, vectors.ctypes.data)
    return vectors


class _Slots:
    """Slots, which there are more of as keys come: at most 4 of 5 are taken."""

    def __init__(self, library: ctypes.CDLL, first_keys: int, most_keys: int | None) -> None:
        self.library, self.most_slots = library, None if most_keys is None else _slots_for(most_keys)
        self.keys = _Keys()
        self._free = np.empty(0, dtype=np.uint32)
        self._memory = self._new(max(FEWEST_SLOTS, _slots_for(first_keys)))

    def __len__(self) -> int:
        return int(self.keys.size)

    @property
    def num_bytes(self) -> int:
        """Of the index."""
        return int(self.keys.num_slots) * SLOT_BYTES + self._free.nbytes

    def call(self, name: str, *arguments: Any) -> Any:
        """One of the compiled functions, with these keys first."""
        values = [argument.ctypes.data if isinstance(argument, np.ndarray) else argument for argument in arguments]
        return getattr(self.library, f"emberline_keys_{name}")(self.keys, *values)

    def grow(self, num_keys: int) -> None:
        """Have slots for so many keys, and for some more."""
        slots = max(_slots_for(num_keys), self.keys.num_slots * 3 // 2)
        if self.most_slots is not None:
            slots = max(_slots_for(num_keys), min(slots, self.most_slots))
        if slots <= self.keys.num_slots:
            return
        old, num_old, at = self._memory, int(self.keys.num_slots), self.keys.slots
        self._memory = self._new(slots)
        self.library.emberline_keys_rehash(at, num_old, self.keys)
        del old

    def lowest(self, scores: Numbers | None, kept: Numbers | None, wanted: int) -> Numbers:
        """Keys of the lowest score, of equal ones the smallest; see `keys.c`."""
        found = np.empty(min(wanted, len(self)), dtype=np.int64)
        if not len(found):
            return found
        counts = np.empty(1 << _DIGIT, dtype=np.int64)
        number: int = self.call("lowest", scores, kept, len(found), counts, found)
        return found[:number]

    def remove(self, keys: Numbers, *, gives: bool) -> Numbers:
        """Take distinct keys out that are there; returns their rows."""
        if gives and len(self._free) < self.keys.num_free + len(keys):
            free = np.empty(max(int(self.keys.num_free) + len(keys), 2 * len(self._free)), dtype=np.uint32)
            free[: self.keys.num_free] = self._free[: self.keys.num_free]
            self._free, self.keys.free = free, free.ctypes.data
        rows = np.empty(len(keys), dtype=np.int64)
        self.call("remove", keys, len(keys), rows, int(gives))
        return rows

    def items(self) -> tuple[Numbers, Numbers, Numbers]:
        """All keys in any order, the row and the step of each."""
        found, rows, steps = (np.empty(len(self), dtype=np.int64) for _ in range(3))
        self.call("items", found, rows, steps)
        return found, rows, steps

    def clear(self) -> None:
        """Take all keys out; rows are given from the first on."""
        self.keys.size = self.keys.num_free = self.keys.next_row = 0
        self._memory = self._new(int(self.keys.num_slots))

    def _new(self, num_slots: int) -> Numbers:
        memory = np.frombuffer(aligned_memory(num_slots * SLOT_BYTES), dtype=np.uint8)
        self.keys.slots, self.keys.num_slots, self.keys.limit = memory.ctypes.data, num_slots, num_slots * 4 // 5
        return memory


class SlotIndex:
    """See `DictIndex`.

    Args:
        library: the compiled functions.
        max_rows: rows there are, fewer than 2^32 - 1.
        first_rows: keys to have slots for at first.
    """

    def __init__(self, library: ctypes.CDLL, max_rows: int, first_rows: int) -> None:
        self.max_rows, self._slots = max_rows, _Slots(library, first_rows, max_rows)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def num_bytes(self) -> int:
        """Of memory, values aside."""
        return self._slots.num_bytes

    def find(self, keys: Numbers, first: int = 0, missing: int = -1) -> Numbers:
        """See `DictIndex.find`."""
        keys, rows = _plain(keys), np.empty(len(keys), dtype=np.int64)
        threads = torch.get_num_threads() if len(keys) >= THREADED_IDS else 1
        self._slots.call("find", keys, len(keys), first, missing, rows, threads)
        return rows

    @property
    def library(self) -> ctypes.CDLL:
        """The compiled functions."""
        return self._slots.library

    @property
    def address(self) -> int:
        """Where the compiled functions find it; it stays there."""
        return ctypes.addressof(self._slots.keys)

    def read(self, keys: Numbers, step: int) -> Read:
        """See `DictIndex.read`."""
        keys = _plain(keys)
        rows, new_keys, new_rows = (np.empty(len(keys), dtype=np.int64) for _ in range(3))
        counts, start = np.zeros(2, dtype=np.int64), 0
        while (start := self._slots.call("read", keys, start, len(keys), step, rows, new_keys, new_rows, counts)) < len(keys):
            self._slots.grow(len(self) + 1)
        num_new = int(counts[0])
        self._slots.call("settle", new_keys, num_new, step)
        assert len(self) <= self.max_rows
        return Read(rows, new_keys[:num_new].copy(), new_rows[:num_new].copy(), int(counts[1]))

    def add(self, keys: Numbers, last_steps: Numbers) -> Numbers:
        """See `DictIndex.add`."""
        assert len(self) + len(keys) <= self.max_rows
        self._slots.grow(len(self) + len(keys)) if len(self) + len(keys) > self._slots.keys.limit else None
        rows = np.empty(len(keys), dtype=np.int64)
        self._slots.call("add", _plain(keys), len(keys), _plain(last_steps), rows)
        return rows

    def remove(self, keys: Numbers) -> Numbers:
        """See `DictIndex.remove`."""
        return self._slots.remove(_plain(keys), gives=True)

    def lowest(self, wanted: int, own_rows: Numbers, scores: Numbers | None) -> Numbers:
        """See `DictIndex.lowest`."""
        kept = np.zeros(self.max_rows, dtype=np.uint8)
        kept[own_rows] = 1
        return self._slots.lowest(scores, kept, wanted)

    def clear(self) -> None:
        """See `DictIndex.clear`."""
        self._slots.clear()

    def items(self) -> tuple[Numbers, Numbers, Numbers]:
        """See `DictIndex.items`."""
        return self._slots.items()


class SlotCounter:
    """See `DictCounter`.

    Args:
        library: the compiled functions.
        threshold: reads after which an id is admitted, fewer than 2^32 - 1.
        capacity: most ids that are counted.
    """

    def __init__(self, library: ctypes.CDLL, threshold: int, capacity: int) -> None:
        self.threshold, self.capacity, self.forgotten = threshold, capacity, 0
        self._slots = _Slots(library, 0, None)

    def __len__(self) -> int:
        return len(self._slots)

    def count(self, keys: Numbers) -> Numbers:
        """See `DictCounter.count`."""
        keys = _plain(keys)
        flags, admitted = np.empty(len(keys), dtype=bool), np.empty(len(keys), dtype=np.int64)
        number, start, slots = np.zeros(1, dtype=np.int64), 0, self._slots
        while True:
            start = slots.call("count", keys, start, len(keys), self.threshold, self.capacity, flags, admitted, number)
            if start == len(keys):
                break
            if len(slots) - int(number[0]) >= self.capacity:
                self._forget(max(1, self.capacity // LOT))
            else:
                slots.grow(len(slots) + 1)
        slots.remove(admitted[: int(number[0])], gives=False)
        return flags

    def copy(self) -> "SlotCounter":
        """See `DictCounter.copy`."""
        other = SlotCounter(self._slots.library, self.threshold, self.capacity)
        other.replace(*self.items())
        return other

    def drop(self, keys: Numbers) -> None:
        """See `DictCounter.drop`."""
        self._slots.remove(np.intersect1d(keys, self._slots.items()[0]), gives=False)

    def items(self) -> tuple[Numbers, Numbers]:
        """See `DictCounter.items`."""
        keys, _, counts = self._slots.items()
        order = np.argsort(keys)
        return keys[order], counts[order]

    def replace(self, keys: Numbers, counts: Numbers) -> None:
        """See `DictCounter.replace`."""
        slots = self._slots
        slots.clear()
        slots.grow(len(keys)) if len(keys) > slots.keys.limit else None
        slots.call("add", _plain(keys), len(keys), _plain(counts), np.empty(len(keys), dtype=np.int64))
        slots.keys.next_row = 0
        if len(slots) > self.capacity:
            self._forget(len(slots) - self.capacity)

    def _forget(self, number: int) -> None:
        going = self._slots.lowest(None, None, number)
        self._slots.remove(going, gives=False)
        self.forgotten += len(going)


def _plain(numbers: Numbers) -> Numbers:
    """As the compiled functions read them: int64, one after the other."""
    return np.ascontiguousarray(numbers, dtype=np.int64)


def _slots_for(keys: int) -> int:
    return keys * 5 // 4 + 2


if __name__ == "__main__":
    sys.exit(KERNEL.main())
