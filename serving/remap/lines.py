"""Raw ids in lines of 64 bytes, so that finding one reads one line of a processor's cache. All of it in torch operators, for any device.

    line    | id 0 | id 1 | id 2 | id 3 | id 4 | row 0, 1 | row 2, 3 | row 4, -1 - reach |      8 numbers of 64 bits; rows of 32

An id's *home* is one of the first H lines, by a hash of the id. Where its home is full it lies in the next line that has room, at most `reach` lines
on, which its home tells. So a lookup reads the home line, and more only where that one is full and the id is not in it: about one id in thirty.
A free slot holds 2^63-1 and row -1. Behind the last home lie `MOST_REACH` lines more.

`kernel.c` does the same in C, and gives the same bits.
"""

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
_LOW = 2**32 - 1
_FACTOR = 0xD6E8FEB86659FD93 - 2**64


def new_lines(num_ids: int) -> tuple[Tensor, int]:
    """Memory for the lines of so many ids, int64 [H + MOST_REACH, 8], and H."""
    num_homes = int(num_ids / IDS_PER_HOME) + 1
    shape = (num_homes + MOST_REACH, NUMBERS)
    return torch.frombuffer(aligned_memory(8 * shape[0] * shape[1]), dtype=torch.int64).view(shape), num_homes


def home_of(ids: Tensor, num_homes: int, seed: int) -> Tensor:
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
        left, asked = left[order], torch.bincount(places, minlength=lines.shape[0])
        turns = torch.arange(places.numel()) - (asked.cumsum(0) - asked)[places]  # among the ids that ask for the same line
        slots = taken[places] + turns
        fits = (slots < SLOTS).nonzero().squeeze(1)
        fitting, starts = left[fits], NUMBERS * places[fits].long()
        numbers.scatter_(0, starts + slots[fits], ids[fitting])
        halves.scatter_(0, 2 * starts + 2 * SLOTS + slots[fits], rows[fitting].int())
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
    homes = home_of(ids, num_homes, seed)
    chunk = CHUNK if lines.device.type == "cpu" else max(1, ids.numel())
    parts = [_read(some, places, lines) for some, places in zip(torch.split(ids, chunk), torch.split(homes, chunk), strict=True)]
    rows, reach = (torch.cat(part) for part in zip(*parts, strict=True))
    left = ((rows < 0) & (reach > 0)).nonzero().squeeze(1)
    step = 0
    while left.numel():
        step += 1
        found, _ = _read(ids[left], homes[left] + step, lines)
        rows[left] = found
        left = left[(found < 0) & (reach[left] > step)]
    return rows


def _read(ids: Tensor, places: Tensor, lines: Tensor) -> tuple[Tensor, Tensor]:
    """The row of each id in one line, int32, or -1; and the line's reach."""
    line = lines.index_select(0, places)
    lanes = line.view(torch.int32)[:, 2 * SLOTS :]
    rows = torch.where(line[:, :SLOTS] == ids[:, None], lanes[:, :SLOTS], -1).amax(dim=1)
    return rows, -1 - lanes[:, SLOTS]
