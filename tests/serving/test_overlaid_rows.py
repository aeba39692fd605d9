"""Rows that changed, over a table that stays as it is, against a table that was changed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.serving.overlaid_rows import OverlaidRows, write_rows
from emberline.serving.rows_on_disk import rows_needed

CHANGES = st.lists(st.lists(st.integers(0, 20), max_size=12, unique=True).map(sorted), min_size=1, max_size=4)


@given(changes=CHANGES, wanted=st.lists(st.integers(0, 20), max_size=30), dtype=st.sampled_from((torch.float32, torch.uint8)))
def test_the_last_change_of_a_row_counts(changes: list[list[int]], wanted: list[int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    base = torch.randint(0, 200, (21, 3), generator=generator).to(dtype)
    oracle, before = base.clone(), base.clone()
    table: torch.Tensor | OverlaidRows = base
    for places in changes:
        rows = torch.randint(0, 200, (len(places), 3), generator=generator).to(dtype)
        oracle[places] = rows
        table = OverlaidRows.over(table, torch.tensor(places, dtype=torch.int64), rows)
    assert isinstance(table, OverlaidRows)
    ids = torch.tensor(wanted, dtype=torch.int64)
    assert torch.equal(table.take(ids), oracle[ids])
    held, places_held = rows_needed(table, ids)
    assert torch.equal(held[places_held], oracle[ids])
    assert torch.equal(base, before)
    assert table.places.tolist() == sorted({place for places in changes for place in places})
    assert (table.shape, table.dtype) == ((21, 3), dtype)
    assert torch.equal(table.settle(), oracle)
    assert torch.equal(base, oracle)
    assert torch.equal(table.take(ids), oracle[ids])


def test_rows_are_right_while_those_below_are_being_written() -> None:
    base = torch.zeros(8, 2)
    table = OverlaidRows.over(base, torch.tensor([1, 7]), torch.ones(2, 2))
    base[1] = 99  # half written
    assert table.take(torch.tensor([0, 1, 7])).tolist() == [[0, 0], [1, 1], [1, 1]]


def test_memory_is_that_of_the_changes() -> None:
    table = OverlaidRows.over(torch.zeros(1000, 4), torch.tensor([3, 5, 900]), torch.ones(3, 4))
    assert table.num_bytes == 3 * 8 + 3 * 4 * 4 + 125


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("gap", [0, 3])
def test_rows_are_written_and_nothing_around_them(dtype: torch.dtype, gap: int) -> None:
    memory = torch.zeros(10, 5 + gap, dtype=dtype)
    table, places = memory[:, :5], torch.tensor([1, 4, 9])
    write_rows(table, places, torch.ones(3, 5, dtype=dtype))
    write_rows(table, places[:0], torch.ones(0, 5, dtype=dtype))
    wanted = torch.zeros(10, 5 + gap, dtype=dtype)
    wanted[places, :5] = 1
    assert torch.equal(memory, wanted)
    write_rows(table[:0], places[:0], torch.ones(0, 5, dtype=dtype))
