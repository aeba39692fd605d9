"""The row of an id without one of its own."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.routing import BY_RANGE, MIXED, owner_of
from emberline.serving.remap import FallbackRows
from tests.serving.conftest import INT64_MIN, Remap
from tests.serving.remap.oracle import ASKED, IDS, fallback_of, long


@given(starts=st.sets(IDS, max_size=5), asked=st.lists(ASKED, max_size=20))
def test_ranges(starts: set[int], asked: list[int]) -> None:
    remap = Remap({}, {start: row for row, start in enumerate(sorted(starts | {INT64_MIN}))})
    fallback = fallback_of(remap)
    assert fallback(long(asked)).tolist() == [remap.row(raw_id) for raw_id in asked]
    assert (fallback.first, fallback.same_for_all) == (0, len(remap.fallbacks) == 1)


@given(asked=st.lists(ASKED, max_size=20), routing=st.sampled_from([MIXED, BY_RANGE]))
def test_routing_decides_where_it_is_given(asked: list[int], routing: str) -> None:
    starts, rows = long([INT64_MIN, 0, 5]), long([10, 11, 12])
    found = FallbackRows(starts, rows, routing=routing)(long(asked))
    assert found.tolist() == [10 + owner for owner in owner_of(long(asked), 3, routing).tolist()]


def test_one_row_for_all_needs_no_routing() -> None:
    fallback = FallbackRows(long([INT64_MIN]), long([4]), routing=MIXED)
    found = fallback(torch.tensor([1, 2]))
    found += 1
    assert fallback(torch.tensor([1, 2])).tolist() == [4, 4]
