"""Where an id may lie in a map by hashes, and who gets a slot: the rule of fbgemm's `zero_collision_hash`, for CPUs, where that only reads.

An id's *home* is one of the slots of its bucket, by a hash. It lies there, or in one of the slots behind it, the first after the last:

    bucket of 5 slots, homes a 3, b 3, c 4      slot  0  1  2  3  4         looked for from its home on, at most `max_probe` slots
                                                      c  .  .  a  b

A slot that was taken never becomes free again, it only changes owner. So there is no free slot between an id's home and the id, and one that meets a
free slot on its way is not there.

All ids of a batch go on their way at once, a slot at a time; where several want one slot, the first of the batch gets it.

Letters: N ids, Z slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.schema import INT64_MAX

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
FREE = -1
"""The id that marks a free slot."""
_ROWS_AT_A_TIME = 1 << 14


@dataclass(frozen=True)
class Slots:
    """The memory of a map, which `insert` writes.

    Args:
        ids: int64 [Z], who has each slot.
        kept_until: int32 [Z]: the last hour in which the slot is its owner's, whoever wants it; None: owners keep their slots for ever.
    """

    ids: Ids
    kept_until: npt.NDArray[np.int32] | None


@dataclass(frozen=True)
class Ways:
    """The slots that each id may have, in the order in which they are tried.

    Args:
        first: int64 [N], the first slot of the id's bucket.
        sizes: int64 [N], slots of the bucket; at least 1.
        homes: int64 [N], within the bucket.
        length: slots that are tried, at most.
    """

    first: Ids
    sizes: Ids
    homes: Ids
    length: int

    @classmethod
    def of(cls, ids: Ids, first: Ids, sizes: Ids, max_probe: int) -> "Ways":
        """The ways of ids by their hashes."""
        homes = (hash_of(ids) % sizes.astype(np.uint64)).astype(np.int64)
        return cls(first, sizes, homes, min(max_probe, int(sizes.max(initial=0))))

    def at(self, which: Ids, step: int | Ids) -> Ids:
        """The slots of some of the ids after so many steps."""
        found: Ids = self.first[which] + (self.homes[which] + step) % self.sizes[which]
        return found


def insert(slots: Slots, ids: Ids, ways: Ways, *, hour: int, kept_until: int, is_lru: bool) -> tuple[Ids, Ids]:
    """Give slots to ids that have none.

    An id gets the first slot on its way that is free, or whose owner is no longer kept; with `is_lru`, the first free one, and where there is none,
    among those whose owners are no longer kept the one of the oldest. Ids that find none are left out.

    Args:
        slots: the map.
        ids: int64 [N], each once, none of which has a slot, none `FREE`.
        ways: theirs.
        hour: now.
        kept_until: what is written into the slots that are given, where owners can lose them.
        is_lru: see above.

    Returns:
        the slots that were given, and those of them that had another owner before: int64, int64.
    """
    left = np.arange(len(ids))
    given, lost = [left[:0]], [left[:0]]
    for step in range(ways.length):
        if not len(left):
            break
        wanted = ways.at(left, step)
        is_free = slots.ids[wanted] == FREE
        is_open = is_free if is_lru or slots.kept_until is None else is_free | (slots.kept_until[wanted] < hour)
        left = _take(slots, ids, left, wanted, is_open, is_free, kept_until, given, lost)
    while is_lru and len(left):
        oldest = np.concatenate(list(_oldest(slots, ways, left, hour)))
        left, oldest = left[oldest >= 0], oldest[oldest >= 0]
        is_open = np.ones(len(left), dtype=bool)
        left = _take(slots, ids, left, oldest, is_open, ~is_open, kept_until, given, lost)
    return np.concatenate(given), np.concatenate(lost)


def exchanged(ids: Tensor) -> Tensor:
    """-1 for 2^63-1, and the reverse: slots have ids so, as -1 marks those that are free, and 2^63-1 is no id anywhere else."""
    return torch.where((ids == FREE) | (ids == INT64_MAX), ids ^ (INT64_MAX ^ FREE), ids)


def _take(slots: Slots, ids: Ids, left: Ids, wanted: Ids, is_open: Flags, is_free: Flags, kept_until: int, given: list[Ids], lost: list[Ids]) -> Ids:
    """Give each open slot to the first that wants it; returns those that are left."""
    at, asking = wanted[is_open], ids[left[is_open]]
    slots.ids[at[::-1]] = asking[::-1]  # of several the last one is written
    won = slots.ids[at] == asking
    given.append(at[won])
    lost.append(at[won & ~is_free[is_open]])
    if slots.kept_until is not None:
        slots.kept_until[at[won]] = kept_until
    stays = np.ones(len(left), dtype=bool)
    stays[np.flatnonzero(is_open)[won]] = False
    rest: Ids = left[stays]
    return rest


def _oldest(slots: Slots, ways: Ways, left: Ids, hour: int) -> Iterator[Ids]:
    """For each id the slot on its way whose owner is no longer kept since longest, the first of several, or -1."""
    assert slots.kept_until is not None
    steps = np.arange(ways.length)
    for start in range(0, len(left), _ROWS_AT_A_TIME):
        which = left[start : start + _ROWS_AT_A_TIME]
        way = ways.first[which, None] + (ways.homes[which, None] + steps) % ways.sizes[which, None]
        until = slots.kept_until[way]
        best = until.argmin(axis=1)
        places = np.arange(len(which))
        yield np.where(until[places, best] < hour, way[places, best], -1)


def hash_of(ids: Ids) -> npt.NDArray[np.uint64]:
    """The two halves of MurmurHash3 (x64, 128 bits, seed 0) of an id and 8 bytes of zeros, one upon the other (Appleby, 2011; public domain)."""
    first = _turned(ids.view(np.uint64) * np.uint64(0x87C37B91114253D5), 31) * np.uint64(0x4CF5AD432745937F)
    first = _turned(first, 27) * np.uint64(5) + np.uint64(0x52DCE729)
    second = first * np.uint64(5) + np.uint64(0x38495AB5)
    first, second = first ^ np.uint64(16), second ^ np.uint64(16)
    first = first + second
    second = second + first
    first, second = _mixed(first), _mixed(second)
    first = first + second
    return first ^ (second + first)


def _turned(numbers: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return (numbers << np.uint64(bits)) | (numbers >> np.uint64(64 - bits))


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(33))
