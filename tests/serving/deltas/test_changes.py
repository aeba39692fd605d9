"""Maps of raw ids and their changes, against a dictionary; changed rows against a copy."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from emberline.export.changes import find_id_changes
from emberline.schema import TableKind
from emberline.serving.deltas import ChangedIds, merge_ids
from emberline.serving.remap import RemapParts

NUM_ROWS = 12
IDS = st.one_of(st.integers(-6, 6), st.sampled_from([-(2**63), 2**63 - 2, 2**63 - 1, 2**62]))


@st.composite
def maps(draw: st.DrawFn) -> dict[int, int]:
    ids = draw(st.lists(IDS, unique=True, max_size=NUM_ROWS))
    return dict(zip(ids, draw(st.permutations(range(NUM_ROWS))), strict=False))


def long(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def parts_of(rows: dict[int, int]) -> RemapParts:
    ids = sorted(rows)
    return RemapParts(long(ids), long([rows[one] for one in ids]), long([-(2**63)]), long([NUM_ROWS - 1]), "mixed")


@given(maps(), maps(), maps())
def test_changes_lead_from_any_map_to_any_other(first: dict[int, int], second: dict[int, int], third: dict[int, int]) -> None:
    found = parts_of(first)
    for before, after in ((first, second), (second, third)):
        change = find_id_changes(parts_of(before), parts_of(after))
        came = dict(zip(change.came_ids.tolist(), change.came_rows.tolist(), strict=True))
        assert came == {one: row for one, row in after.items() if before.get(one) != row}
        assert change.went_ids.tolist() == sorted(set(before) - set(after))
        found = merge_ids(found, change, NUM_ROWS, TableKind.DYNAMIC)
        assert dict(zip(found.raw_ids.tolist(), found.rows.tolist(), strict=True)) == after
        assert found.raw_ids.tolist() == sorted(after)
        rows, known = found.index(NUM_ROWS, torch.device("cpu"))(long([*after, 77, -77]))
        assert rows.tolist() == [*after.values(), NUM_ROWS - 1, NUM_ROWS - 1]
        assert known.tolist() == [True] * len(after) + [False, False]
    assert (found.routing, found.fallback_rows.tolist()) == ("mixed", [NUM_ROWS - 1])


@pytest.mark.parametrize(
    ("came_ids", "came_rows", "went_ids", "message"),
    [
        ([], [], [9], "an id is to go that owns no row"),
        ([5], [1], [5], "an id is to come and to go"),
        ([], [], [7, 5], "went_ids is not strictly ascending"),
        ([], [], [5, 5], "went_ids is not strictly ascending"),
        ([6], [2], [], "rows gives one row to two ids"),
        ([6], [NUM_ROWS], [], "rows points outside the table's 12 rows"),
        ([6], [-1], [], "rows points outside"),
        ([6, 6], [3, 4], [], "came_ids is not strictly ascending"),
        ([2**63 - 1], [3], [], "marks free rows and is no id"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(came_ids: list[int], came_rows: list[int], went_ids: list[int], message: str) -> None:
    before = parts_of({5: 1, 7: 2})
    with pytest.raises(ValueError, match=message):
        merge_ids(before, ChangedIds(long(came_ids), long(came_rows), long(went_ids)), NUM_ROWS)
    assert (before.raw_ids.tolist(), before.rows.tolist()) == ([5, 7], [1, 2])
