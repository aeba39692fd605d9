"""Which row each key has, as tensors on any device: many keys are looked for at once, with PyTorch's operators alone.

A key's place is the first free slot from the one that its hash names, one after the other, around the end. Keys are never taken out one by one: the
index is built again without them, and so many leave at once that it costs each of them little.
"""

import torch
from torch import Tensor

_WINDOW = 8
"""Slots that are looked at in one go: a table at most half full seldom has longer chains."""
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
_LEAST_SLOTS = 16


class DeviceIndex:
    """Keys of any 64 bits, each with a row, which is not negative.

    Args:
        device: where.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._size = 0
        self._clear(_LEAST_SLOTS)

    def __len__(self) -> int:
        return self._size

    @property
    def num_bytes(self) -> int:
        """Of its tensors."""
        return 2 * 8 * len(self._keys)

    def find(self, keys: Tensor) -> Tensor:
        """Rows, int64 [n], of keys, int64 [n] in any order; -1 where there is none. The host waits for the device once a round, mostly one."""
        found = torch.full_like(keys, -1)
        waiting, slots = None, _hash(keys) & self._mask
        while len(keys):
            window = (slots.unsqueeze(1) + self._window) & self._mask
            rows = self._rows[window]
            is_here = (self._keys[window] == keys.unsqueeze(1)) & (rows >= 0)
            best = torch.where(is_here, rows, -1).amax(1)
            if waiting is None:
                found = best
            else:
                found[waiting] = best
            (left,) = ((best < 0) & (rows >= 0).all(1)).nonzero(as_tuple=True)
            waiting = left if waiting is None else waiting[left]
            keys, slots = keys[left], (slots[left] + _WINDOW) & self._mask
        return found

    def add(self, keys: Tensor, rows: Tensor) -> None:
        """Give distinct keys that have no row, int64 [n], these rows, int64 [n], all distinct, which no other key has."""
        if 2 * (self._size + len(keys)) > len(self._keys):
            is_used = self._rows >= 0
            self.build(torch.cat([self._keys[is_used], keys]), torch.cat([self._rows[is_used], rows]))
            return
        self._size += len(keys)
        self._put(keys, rows)

    def build(self, keys: Tensor, rows: Tensor) -> None:
        """Begin again with these distinct keys and rows, int64 [n]."""
        self._clear(max(_LEAST_SLOTS, 1 << (4 * len(keys) - 1).bit_length() if len(keys) else 0))
        self._size = len(keys)
        self._put(keys, rows)

    def items(self) -> tuple[Tensor, Tensor]:
        """All keys, in any order, and their rows, int64 [K]."""
        is_used = self._rows >= 0
        return self._keys[is_used], self._rows[is_used]

    def _clear(self, slots: int) -> None:
        self._mask = slots - 1
        self._keys = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self._rows = torch.full((slots,), -1, dtype=torch.int64, device=self.device)
        self._window = torch.arange(_WINDOW, device=self.device)

    def _put(self, keys: Tensor, rows: Tensor) -> None:
        slots = _hash(keys) & self._mask
        while len(keys):
            is_free = self._rows[slots] < 0
            self._rows[slots[is_free]] = rows[is_free]  # of several that want one slot, any gets it
            has_won = is_free & (self._rows[slots] == rows)
            self._keys[slots[has_won]] = keys[has_won]
            left = ~has_won
            keys, rows, slots = keys[left], rows[left], (slots[left] + 1) & self._mask


def _hash(keys: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, 2014): int64 [n], any bits."""
    mixed = (keys ^ _shifted(keys, 30)) * _FACTORS[0]
    mixed = (mixed ^ _shifted(mixed, 27)) * _FACTORS[1]
    return mixed ^ _shifted(mixed, 31)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """To the right, zeros coming in."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
