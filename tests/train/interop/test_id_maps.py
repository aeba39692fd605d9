"""Id maps of several ranks as one, against a dictionary."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import CheckpointError
from emberline.train.interop.id_maps import assemble_id_map
from emberline.train.zch import FREE_ROW

RAW_IDS, ROWS, COUNTS, ITERATION = "_mch_sorted_raw_ids", "_mch_remapped_ids_mapping", "_mch_counts", "_current_iter_tensor"


def buffers(raw_ids: list[int], rows: list[int], counts: list[int] | None = None) -> dict[str, torch.Tensor]:
    numbers = {RAW_IDS: raw_ids, ROWS: rows, COUNTS: counts or [0] * len(rows), ITERATION: [6]}
    return {name: torch.tensor(values, dtype=torch.int64) for name, values in numbers.items()}


def test_two_ranks_of_five_rows() -> None:
    """Ten rows, ids 11 and 22 on the first rank, 700 and 800 on the second; free places carry other ranks' marks."""
    raw_ids = [11, 22, FREE_ROW, FREE_ROW, FREE_ROW, 700, 800, FREE_ROW, FREE_ROW, FREE_ROW]
    counts = [5, 6, 0, 0, FREE_ROW, 7, 8, 0, 0, FREE_ROW]
    found = assemble_id_map("t", buffers(raw_ids, [2, 3, 0, 1, 4, 7, 8, 5, 6, 9], counts), (5, 10))
    assert found.state["raw_ids"].tolist() == [11, 22, 700, 800, *[FREE_ROW] * 6]
    assert found.state["rows"].tolist() == [2, 3, 7, 8, 0, 1, 4, 5, 6, 9]
    assert found.state["counts"].tolist() == [5, 6, 7, 8, 0, 0, 0, 0, 0, FREE_ROW]
    assert (found.num_ids, found.freed, found.num_repeated) == (4, (4,), 0)
    assert [found.state[name].tolist() for name in ("iteration", "last_eviction_iteration", "counters", "history_ids")] == [[6], [6], [0] * 4, []]


def test_uneven_shards_whose_ids_are_not_sorted_as_a_whole() -> None:
    raw_ids = [50, 60, 70, FREE_ROW, FREE_ROW, FREE_ROW, -9, 55, 56, FREE_ROW, FREE_ROW]
    found = assemble_id_map("t", buffers(raw_ids, [0, 1, 2, 3, 4, 5, 9, 8, 7, 6, 10]), (6, 11))
    assert dict(zip(found.state["raw_ids"][:6].tolist(), found.state["rows"].tolist(), strict=False)) == {-9: 9, 50: 0, 55: 8, 56: 7, 60: 1, 70: 2}
    assert found.state["raw_ids"][:6].tolist() == [-9, 50, 55, 56, 60, 70]
    assert found.freed == (5,)


def test_an_id_of_two_ranks_keeps_the_row_that_counts_most() -> None:
    found = assemble_id_map("t", buffers([5, 6, FREE_ROW, 5, 7, FREE_ROW], [0, 1, 2, 3, 4, 5], [2, 9, 0, 3, 1, FREE_ROW]), (3, 6))
    assert found.state["raw_ids"].tolist() == [5, 6, 7, *[FREE_ROW] * 3]
    assert found.state["rows"].tolist() == [3, 1, 4, 0, 2, 5]
    assert found.state["counts"].tolist() == [3, 9, 1, 0, 0, FREE_ROW]
    assert found.num_repeated == 1


@pytest.mark.parametrize(
    ("raw_ids", "rows", "message"),
    [
        ([1, FREE_ROW, FREE_ROW], [0, 0, 2], "table 't' is damaged: its rows must be each of 0 to 2 once"),
        ([1, FREE_ROW, FREE_ROW], [1, 2, 3], "table 't' is damaged: its rows must be each of 0 to 2 once"),
        ([1, 2, 3], [0, 1, 2], "table 't' is damaged: an id owns row 2, which unknown ids read"),
    ],
)
def test_rows_that_cannot_be_are_refused(raw_ids: list[int], rows: list[int], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        assemble_id_map("t", buffers(raw_ids, rows))


def test_a_table_of_one_row() -> None:
    found = assemble_id_map("t", buffers([FREE_ROW], [0]), (1,))
    assert (found.state["raw_ids"].tolist(), found.state["rows"].tolist(), found.freed) == ([FREE_ROW], [0], ())


@given(st.data())
def test_every_id_keeps_its_row(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    ids = data.draw(st.lists(st.integers(-(2**63), 2**63 - 2), unique=True, min_size=sum(sizes), max_size=sum(sizes)))
    raw_ids: list[int] = []
    rows: list[int] = []
    expected: dict[int, int] = {}
    for size in sizes:
        begin = len(rows)
        own = sorted(ids[begin : begin + data.draw(st.integers(0, size - 1))])
        order = data.draw(st.permutations(range(begin, begin + size - 1)))
        raw_ids += own + [FREE_ROW] * (size - len(own))
        rows += [*order, begin + size - 1]
        expected |= dict(zip(own, order, strict=False))
    found = assemble_id_map("t", buffers(raw_ids, rows))
    kept = found.state["raw_ids"].tolist()
    assert kept == sorted(kept)
    assert {raw_id: row for raw_id, row in zip(kept, found.state["rows"].tolist(), strict=True) if raw_id != FREE_ROW} == expected
    assert sorted(found.state["rows"].tolist()) == list(range(sum(sizes)))
    assert found.state["rows"][-1] == sum(sizes) - 1
