"""Raw ids in lines of 64 bytes, so that finding one reads one line of a processor's cache. In torch operators, for any device, and in numpy
where it reads most on a CPU.

    line    | id 0 | id 1 | id 2 | id 3 | id 4 | row 0, 1 | row 2, 3 | row 4, -1 - reach |      8 numbers of 64 bits; rows of 32

An id's *home* is one of the first H lines, by a hash of the id. Where its home is full it lies in the next line that has room, at most `reach` lines
on, which its home tells. So a lookup reads the home line, and more only where that one is full and the id is not in it: about one id in thirty.
A free slot holds 2^63-1 and row -1. Slots fill from the left, so that where this number is an id itself, the leftmost one that holds it counts.
Behind the last home lie `MOST_REACH` lines more.

`kernel.c` does the same in C, and gives the same bits.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.memory import aligned_memory
from emberline.schema import INT64_MAX

SLOTS = 5
NUMBERS = 8
"""int64 numbers of a line."""
MOST_REACH = 64
IDS_PER_HOME = 2.75
"""55 % of the slots are in use: 23.3 bytes an id."""
CHUNK = 4096
"""Ids looked up at a time on a CPU: their lines fit in its cache."""
Numbers = TypeVar("Numbers", Tensor, npt.NDArray[np.int64])
Ids = npt.NDArray[np.int64]
_PART_BITS = 14
_PART = 1 << _PART_BITS
"""Homes that are filled at a time: a megabyte of lines."""
_PIECE, _PIECE_OF_PART = 1 << 18, 1 << 9
"""Ids that are sorted by parts at a time: so many, or, where there are many parts, so many for each."""
_EMPTY = np.array([INT64_MAX] * SLOTS + [-1] * (NUMBERS - SLOTS))
"""A line without ids."""
_LOW = 2**32 - 1
FACTOR = 0xD6E8FEB86659FD93 - 2**64
"""Of the hash, as int64."""


def new_lines(num_ids: int) -> tuple[Tensor, int]:
    """Memory for the lines of so many ids, int64 [H + MOST_REACH, 8], and H."""
    num_homes = int(num_ids / IDS_PER_HOME) + 1
    shape = (num_homes + MOST_REACH, NUMBERS)
    return torch.frombuffer(aligned_memory(8 * shape[0] * shape[1]), dtype=torch.int64).view(shape), num_homes


def find_line_faults(lines: Tensor, num_ids: int, num_rows: int) -> list[str]:
    """What of some lines would lead a lookup out of its memory, or to rows that are not there; one sentence for each, empty where there is nothing.

    Args:
        lines: int64 [H + MOST_REACH, 8], on a CPU.
        num_ids: how many ids they should hold.
        num_rows: rows of the table.
    """
    lanes = lines.numpy().view(np.int32)
    rows, ends, faults = lanes[:, 2 * SLOTS : -1], lanes[:, -1], []
    if np.count_nonzero(rows >= 0) != num_ids:
        faults.append(f"lines does not hold {num_ids} ids")
    if rows.max() >= num_rows:
        faults.append(f"lines points outside the table's {num_rows} rows")
    if not -1 - MOST_REACH <= ends.min() <= ends.max() < 0:
        faults.append("lines tells of ids further off than there are lines")
    return faults


def home_of(ids: Numbers, num_homes: int, seed: int) -> Numbers:
    """The home of each id, int64 [N], of `num_homes` < 2^31.

    Two multiplications, each after the upper half was folded into the lower one, spread ids that differ in any of their bits.
    """
    mixed = ids ^ seed
    for _ in range(2):
        mixed = (mixed ^ (mixed >> 32 & _LOW)) * FACTOR
    return (mixed >> 32 & _LOW) * num_homes >> 32


def fill(ids: Tensor, rows: Tensor, lines: Tensor, num_homes: int, seed: int) -> int:
    """Write ids [K], all different, and their rows [K] into lines that were new; on a CPU.

    Ids go to their part of the lines first, and in each part to their line: all that is read or written out of order lies in a processor's cache.

    Returns:
        The greatest reach, or -1 where it would be beyond `MOST_REACH`: another seed is needed.
    """
    memory = lines.numpy()
    memory[num_homes:] = _EMPTY
    left = []
    for start, (places, part_ids, part_rows) in zip(range(0, num_homes, _PART), _by_part(ids.numpy(), rows.numpy(), num_homes, seed), strict=True):
        part = memory[start : min(start + _PART, num_homes)]
        part[...] = _EMPTY
        order = np.argsort(places, kind="stable")
        places, part_ids, part_rows = places[order], part_ids[order], part_rows[order]
        slots = _turns(places)
        fits = slots < SLOTS
        _put(part, places[fits], slots[fits], part_ids[fits], part_rows[fits])
        left.append((start + places[~fits].astype(np.int64), part_ids[~fits], part_rows[~fits]))
    return _fill_beyond(memory, *(np.concatenate(one) for one in zip(*left, strict=True)))


def _by_part(ids: Ids, rows: Ids, num_homes: int, seed: int) -> Iterator[tuple[npt.NDArray[np.uint16], Ids, npt.NDArray[np.int32]]]:
    """For each `_PART` homes: the places among them of the ids whose homes they are, these ids, and their rows; in the order of ids.

    The ids are cut into pieces, each of which is sorted by parts; those of 16 bits are sorted without comparing them.
    """
    num_parts = -(-num_homes // _PART)
    pieces = []
    size = max(_PIECE, num_parts * _PIECE_OF_PART)
    for start in range(0, max(1, ids.size), size):
        piece = slice(start, start + size)
        homes = home_of(ids[piece], num_homes, seed)
        parts = (homes >> _PART_BITS).astype(np.uint16 if num_parts <= 1 << 16 else np.int32)
        order, ends = np.argsort(parts, kind="stable"), np.bincount(parts, minlength=num_parts).cumsum().tolist()
        places = (homes & _PART - 1).astype(np.uint16)
        pieces.append(((places[order], ids[piece][order], rows[piece].astype(np.int32)[order]), ends))
    begins = [0] * len(pieces)
    for part in range(num_parts):
        cuts = [slice(begin, ends[part]) for begin, (_, ends) in zip(begins, pieces, strict=True)]
        begins = [cut.stop for cut in cuts]
        places, own_ids, own_rows = (np.concatenate([one[which][cut] for (one, _), cut in zip(pieces, cuts, strict=True)]) for which in range(3))
        yield places, own_ids, own_rows


def _fill_beyond(memory: Ids, homes: Ids, ids: Ids, rows: npt.NDArray[np.int32]) -> int:
    """Write ids that found no room in their homes, which are ascending, into lines further on; as `fill` returns."""
    lanes = memory.view(np.int32)[:, 2 * SLOTS :]
    for reach in range(1, MOST_REACH + 1):
        if not homes.size:
            return reach - 1
        lanes[homes, SLOTS] = -1 - reach
        places = homes + reach
        slots = (lanes[places, :SLOTS] >= 0).sum(axis=1) + _turns(places)
        fits = slots < SLOTS
        _put(memory, places[fits], slots[fits], ids[fits], rows[fits])
        homes, ids, rows = homes[~fits], ids[~fits], rows[~fits]
    return -1 if homes.size else MOST_REACH


def _turns(places: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """How many ids before it ask for the same line, of places that are ascending: int8 [N]; `SLOTS` where it is as many or more."""
    turns = np.zeros(places.size, np.int8)
    for back in range(1, SLOTS + 1):
        turns[back:] += places[back:] == places[:-back]
    return turns


def _put(memory: Ids, places: npt.NDArray[Any], slots: npt.NDArray[Any], ids: Ids, rows: npt.NDArray[np.int32]) -> None:
    """Write ids and their rows into slots of lines."""
    starts = places.astype(np.int64) * NUMBERS
    memory.reshape(-1)[starts + slots] = ids
    memory.reshape(-1).view(np.int32)[2 * (starts + SLOTS) + slots] = rows


def find(ids: Tensor, lines: Tensor, num_homes: int, seed: int) -> Tensor:
    """The row of each id, int32 [N]; negative where it is not there."""
    read_homes = read_homes_by_numpy if lines.device.type == "cpu" else read_homes_by_torch
    rows, reach, homes = read_homes(ids, lines, num_homes, seed)
    left = ((rows < 0) & (reach > 0)).nonzero().squeeze(1)
    step = 0
    while left.numel():
        step += 1
        found, _ = _read(ids[left], homes[left] + step, lines)
        rows[left] = found
        left = left[(found < 0) & (reach[left] > step)]
    return rows


def read_homes_by_torch(ids: Tensor, lines: Tensor, num_homes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The row of each id in its home line, or -1; the reach of that line; and the homes: int32, int32, int64 [N]."""
    homes = home_of(ids, num_homes, seed)
    return *_read(ids, homes, lines), homes


def _read(ids: Tensor, places: Tensor, lines: Tensor) -> tuple[Tensor, Tensor]:
    """The row of each id in one line, int32, or -1; and the line's reach."""
    line = lines.index_select(0, places)
    lanes = line.view(torch.int32)[:, 2 * SLOTS :]
    rows = torch.where(line[:, :SLOTS] == ids[:, None], lanes[:, :SLOTS], -1).amax(dim=1)
    return rows, -1 - lanes[:, SLOTS]


def read_homes_by_numpy(ids: Tensor, lines: Tensor, num_homes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `read_homes_by_torch`, on a CPU, in two thirds of the time."""
    asked, memory = ids.numpy(), lines.numpy()
    rows, reach, homes = np.full(asked.size, -1, np.int32), np.empty(asked.size, np.int32), np.empty_like(asked)
    for start in range(0, asked.size, CHUNK):
        part = slice(start, start + CHUNK)
        homes[part] = home_of(asked[part], num_homes, seed)
        line = memory.take(homes[part], axis=0)
        lanes = line.view(np.int32)[:, 2 * SLOTS :]
        hits = np.flatnonzero(line[:, :SLOTS] == asked[part, None])[::-1]  # the leftmost of a line is written last, and counts
        which, slots = np.divmod(hits, SLOTS)
        rows[part][which] = lanes[which, slots]
        reach[part] = -1 - lanes[:, SLOTS]
    return torch.from_numpy(rows), torch.from_numpy(reach), torch.from_numpy(homes)
