"""Raw ids in lines of 64 bytes, so that finding one reads one line of a processor's cache. In torch operators, for any device, and in numpy
where it reads most on a CPU.

    line    | id 0 | id 1 | id 2 | id 3 | id 4 | row 0, 1 | row 2, 3 | row 4, -1 - reach |      8 numbers of 64 bits; rows of 32

An id's *home* is one of the first H lines, by a hash of the id. Where its home is full it lies in the next line that has room, at most `reach` lines
on, which its home tells. So a lookup reads the home line, and more only where that one is full and the id is not in it: about one id in thirty.
A free slot holds 2^63-1 and row -1. Behind the last home lie `MOST_REACH` lines more.

`kernel.c` does the same in C, and gives the same bits.
"""

from typing import TypeVar

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
_LOW = 2**32 - 1
_FACTOR = 0xD6E8FEB86659FD93 - 2**64


def new_lines(num_ids: int) -> tuple[Tensor, int]:
    """Memory for the lines of so many ids, int64 [H + MOST_REACH, 8], and H."""
    num_homes = int(num_ids / IDS_PER_HOME) + 1
    shape = (num_homes + MOST_REACH, NUMBERS)
    return torch.frombuffer(aligned_memory(8 * shape[0] * shape[1]), dtype=torch.int64).view(shape), num_homes


def home_of(ids: Numbers, num_homes: int, seed: int) -> Numbers:
    """The home of each id, int64 [N], of `num_homes` < 2^31.

    Two multiplications, each after the upper half was folded into the lower one, spread ids that differ in any of their bits.
    """
    mixed = ids ^ seed
    for _ in range(2):
        mixed = (mixed ^ (mixed >> 32 & _LOW)) * _FACTOR
    return (mixed >> 32 & _LOW) * num_homes >> 32


def fill(ids: Tensor, rows: Tensor, lines: Tensor, num_homes: int, seed: int) -> int:
    """Write ids [K], all different, and their rows [K] into lines that were new; on a CPU.

    Returns:
        The greatest reach, or -1 where it would be beyond `MOST_REACH`: another seed is needed.
    """
    lines[:, :SLOTS] = INT64_MAX
    lines[:, SLOTS:] = -1
    numbers, halves = lines.view(-1), lines.view(torch.int32).view(-1)
    taken = torch.zeros(lines.shape[0], dtype=torch.int64)
    left, places = torch.arange(ids.numel()), home_of(ids, num_homes, seed)
    for reach in range(MOST_REACH + 1):
        places, order = torch.sort(places.int(), stable=True)  # of 32 bits: half the time
        left, asked = left.index_select(0, order), torch.bincount(places, minlength=lines.shape[0])  # on a CPU, left[order] takes five times as long
        turns = torch.arange(places.numel()) - (asked.cumsum(0) - asked).index_select(0, places)  # among the ids that ask for the same line
        slots = taken.index_select(0, places) + turns
        fits = (slots < SLOTS).nonzero().squeeze(1)
        fitting, starts, slots_of = left.index_select(0, fits), NUMBERS * places.index_select(0, fits).long(), slots.index_select(0, fits)
        numbers.scatter_(0, starts + slots_of, ids.index_select(0, fitting))
        halves.scatter_(0, 2 * starts + 2 * SLOTS + slots_of, rows.index_select(0, fitting).int())
        taken = (taken + asked).clamp_(max=SLOTS)
        beyond = (slots >= SLOTS).nonzero().squeeze(1)
        if not beyond.numel():
            return reach
        left, by_id = left[beyond].sort()
        places = places[beyond][by_id].long() + 1
        halves[2 * NUMBERS * (places - 1 - reach) + 2 * NUMBERS - 1] = -2 - reach
    return -1


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
        which, slots = np.divmod(np.flatnonzero(line[:, :SLOTS] == asked[part, None]), SLOTS)
        rows[part][which] = lanes[which, slots]
        reach[part] = -1 - lanes[:, SLOTS]
    return torch.from_numpy(rows), torch.from_numpy(reach), torch.from_numpy(homes)
