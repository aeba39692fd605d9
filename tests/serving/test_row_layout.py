"""How far apart rows are, against counting the lines of each, and rows that are written piece by piece."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.serving.row_layout import SpreadRows, lines_of, pitch_of


def counted(row_bytes: int, pitch: int) -> float:
    """The lines of each of 64 rows, byte by byte."""
    return sum(len({byte // 64 for byte in range(row * pitch, row * pitch + row_bytes)}) for row in range(64)) / 64


@given(st.integers(1, 300), st.integers(0, 70))
def test_lines_as_they_are_counted(row_bytes: int, gap: int) -> None:
    assert lines_of(row_bytes, row_bytes + gap) == counted(row_bytes, row_bytes + gap)


@pytest.mark.parametrize(
    ("row_bytes", "pitch", "before", "after"),
    [
        (12, 12, 1.125, 1.125),
        (20, 20, 1.25, 1.25),
        (30, 32, 1.4375, 1.0),
        (36, 36, 1.5, 1.5),
        (48, 48, 1.5, 1.5),
        (60, 64, 1.875, 1.0),
        (64, 64, 1.0, 1.0),
        (68, 68, 2.0, 2.0),
        (120, 128, 2.75, 2.0),
        (124, 128, 2.875, 2.0),
        (132, 132, 3.0, 3.0),
        (180, 192, 3.75, 3.0),
        (256, 256, 4.0, 4.0),
    ],
)
def test_the_rule_for_rows_that_tables_have(row_bytes: int, pitch: int, before: float, after: float) -> None:
    assert pitch_of(row_bytes, 2) == pitch
    assert (lines_of(row_bytes, row_bytes), lines_of(row_bytes, pitch)) == (before, after)


def test_more_memory_where_it_may_be_had() -> None:
    assert [pitch_of(48, 4, growth) for growth in (0, 0.33, 0.34, 5)] == [48, 48, 64, 64]
    assert pitch_of(60, 4, 0) == 60
    assert [pitch_of(row_bytes, 4, 9) for row_bytes in (20, 36, 68)] == [20, 36, 68]  # more than it saves
    assert pitch_of(0, 4) == 0


@given(st.integers(1, 100), st.sampled_from([1, 2, 4]), st.floats(0, 4))
def test_no_other_pitch_within_the_limits_is_better(numbers: int, unit: int, growth: float) -> None:
    row_bytes = numbers * unit
    found = pitch_of(row_bytes, unit, growth)
    assert found % unit == 0
    assert row_bytes <= found <= row_bytes * (1 + growth)
    old, new = counted(row_bytes, row_bytes), counted(row_bytes, found)
    assert (old - new) / old >= (found - row_bytes) / row_bytes - 1e-9
    for other in range(row_bytes, int(row_bytes * (1 + min(growth, 0.7))) + 1, unit):
        lines = counted(row_bytes, other)
        assert lines >= new or (old - lines) / old < (other - row_bytes) / row_bytes + 1e-9


@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 3), st.lists(st.integers(0, 80), max_size=6))
def test_bytes_come_to_their_rows_however_they_are_cut(rows: int, row_bytes: int, gap: int, cuts: list[int]) -> None:
    memory = np.full(rows * (row_bytes + gap), 255, np.uint8)
    spread = SpreadRows.over(memory, row_bytes, row_bytes + gap)
    data = np.arange(rows * row_bytes, dtype=np.uint8)
    ends = sorted({0, data.size, *(cut for cut in cuts if cut < data.size)})
    for start, end in reversed(list(pairwise(ends))):
        spread.put(start, data[start:end])
    assert spread.rows.tobytes() == data.tobytes()
    assert (memory.reshape(rows, -1)[:, row_bytes:] == 255).all()
