"""The lines of the hashed index: their layout, by a plain loop over ids, and the hash in whole numbers of Python."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from emberline.serving.remap.lines import (
    CHUNK,
    MOST_REACH,
    NUMBERS,
    SLOTS,
    fill,
    find,
    home_of,
    new_lines,
    read_homes_by_numpy,
    read_homes_by_torch,
)
from tests.serving.conftest import INT64_MIN
from tests.serving.remap.oracle import IDS, long

FACTOR = 0xD6E8FEB86659FD93


def home_by_hand(raw_id: int, num_homes: int, seed: int) -> int:
    mixed = (raw_id ^ seed) % 2**64
    for _ in range(2):
        mixed = (mixed ^ mixed >> 32) * FACTOR % 2**64
    return (mixed >> 32) * num_homes >> 32


@given(ids=st.lists(IDS, min_size=1, max_size=20), num_homes=st.integers(1, 2**31 - 1), seed=st.integers(0, 2**63 - 1))
def test_homes(ids: list[int], num_homes: int, seed: int) -> None:
    homes = home_of(long(ids), num_homes, seed).tolist()
    assert homes == [home_by_hand(raw_id, num_homes, seed) for raw_id in ids]
    assert min(homes) >= 0
    assert max(homes) < num_homes


@pytest.mark.parametrize("num_ids", [0, 1, 2, 3, 1000])
def test_new_lines_have_room(num_ids: int) -> None:
    lines, num_homes = new_lines(num_ids)
    assert lines.shape == (num_homes + MOST_REACH, NUMBERS)
    assert num_homes * SLOTS > 1.8 * num_ids
    assert lines.data_ptr() % 64 == 0


def lines_by_hand(ids: list[int], rows: list[int], num_homes: int) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Ids and rows of each line, and its reach: first all that fit in their homes, then those that fit one line on, and so on."""
    line_ids: list[list[int]] = [[] for _ in range(num_homes + MOST_REACH)]
    line_rows: list[list[int]] = [[] for _ in line_ids]
    reaches = [0] * len(line_ids)
    left, step = list(zip(ids, rows, strict=True)), 0
    while left:
        still_left = []
        for raw_id, row in left:
            home = home_by_hand(raw_id, num_homes, 0)
            reaches[home] = max(reaches[home], step)
            if len(line_ids[home + step]) < SLOTS:
                line_ids[home + step].append(raw_id)
                line_rows[home + step].append(row)
            else:
                still_left.append((raw_id, row))
        left, step = still_left, step + 1
    return line_ids, line_rows, reaches


@pytest.mark.parametrize("num_homes", [1, 2, 20, 41])
def test_the_layout(num_homes: int) -> None:
    """101 ids: in too few homes each line is full and ids lie far on."""
    ids, rows = [number * 3 - 100 for number in range(101)], list(range(101))
    lines = torch.zeros(num_homes + MOST_REACH, NUMBERS, dtype=torch.int64)
    reach = fill(long(ids), long(rows), lines, num_homes, 0)
    want_ids, want_rows, reaches = lines_by_hand(ids, rows, num_homes)
    lanes = lines.view(torch.int32)[:, 2 * SLOTS :]
    assert reach == max(reaches)
    assert lines[:, :SLOTS].tolist() == [found + [2**63 - 1] * (SLOTS - len(found)) for found in want_ids]
    assert lanes[:, :SLOTS].tolist() == [found + [-1] * (SLOTS - len(found)) for found in want_rows]
    assert lanes[:, SLOTS].tolist() == [-1 - reach for reach in reaches]
    assert find(long([*ids, 1, 2**63 - 1, INT64_MIN]), lines, num_homes, 0).tolist() == [*rows, -1, -1, -1]


@pytest.mark.parametrize("read_homes", [read_homes_by_numpy, read_homes_by_torch])
@pytest.mark.parametrize("num_homes", [41, 2000])
def test_home_lines(read_homes: Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor, Tensor]], num_homes: int) -> None:
    """More ids than a CPU looks up at a time, known or not, and the number that marks free slots."""
    ids = [number * 3 - 100 for number in range(101)]
    lines = torch.zeros(num_homes + MOST_REACH, NUMBERS, dtype=torch.int64)
    fill(long(ids), torch.arange(101), lines, num_homes, 0)
    line_ids, line_rows, reaches = lines_by_hand(ids, list(range(101)), num_homes)
    asked = [*range(-150, 2 * CHUNK), 2**63 - 1, INT64_MIN]
    rows, reach, homes = read_homes(long(asked), lines, num_homes, 0)
    want = [home_by_hand(raw_id, num_homes, 0) for raw_id in asked]
    assert homes.tolist() == want
    assert reach.tolist() == [reaches[home] for home in want]
    assert rows.tolist() == [dict(zip(line_ids[home], line_rows[home], strict=True)).get(one, -1) for one, home in zip(asked, want, strict=True)]
    assert (rows.dtype, reach.dtype, homes.dtype) == (torch.int32, torch.int32, torch.int64)


@pytest.mark.parametrize("num_homes", [1, 3, 41])
@pytest.mark.parametrize("place", [0, 3, 7, 19, 20])
def test_the_number_that_marks_free_slots_may_be_an_id(num_homes: int, place: int) -> None:
    """Wherever it comes among the ids: first, so that free slots follow it in its line, or behind full ones."""
    ids = list(range(100, 120))
    ids.insert(place, 2**63 - 1)
    lines = torch.zeros(num_homes + MOST_REACH, NUMBERS, dtype=torch.int64)
    fill(long(ids), torch.arange(21), lines, num_homes, 0)
    assert find(long([*ids, 1, INT64_MIN]), lines, num_homes, 0).tolist() == [*range(21), -1, -1]
    rows, reach, homes = read_homes_by_torch(long([2**63 - 1]), lines, num_homes, 0)
    assert [int(part) for part in read_homes_by_numpy(long([2**63 - 1]), lines, num_homes, 0)] == [int(rows), int(reach), int(homes)]


def test_a_reach_that_is_too_long_is_told() -> None:
    ids = torch.arange(SLOTS * (MOST_REACH + 1) + 1)
    lines = torch.zeros(1 + MOST_REACH, NUMBERS, dtype=torch.int64)
    assert fill(ids[:-1], ids[:-1], lines, 1, 0) == MOST_REACH
    assert find(ids, lines, 1, 0).tolist() == [*range(ids.numel() - 1), -1]
    assert fill(ids, ids, lines, 1, 0) == -1
