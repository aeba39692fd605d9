"""How tables are cut into buckets."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.train.zch import default_buckets, sharing_problem
from emberline.train.zch.buckets import bucket_ends


@pytest.mark.parametrize(
    ("rows", "buckets"),
    [(2, 1), (3, 1), (4, 2), (7, 3), (11, 4), (12, 6), (23, 6), (24, 12), (24_575, 12), (24_576, 24), (61_440, 60), (122_880, 120), (10**9, 240)],
)
def test_where_nobody_says_many_numbers_of_ranks_can_share_them(rows: int, buckets: int) -> None:
    assert default_buckets(rows) == buckets


@given(st.integers(1, 400), st.integers(0, 5000))
def test_buckets_differ_by_one_row_at_most(buckets: int, more: int) -> None:
    rows = 2 * buckets + more
    ends = bucket_ends(rows, buckets)
    sizes = [end - first for first, end in pairwise(ends)]
    assert (len(sizes), sum(sizes), ends[0]) == (buckets, rows, 0)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 2


@given(st.integers(1, 300), st.integers(1, 50))
def test_ranks_have_the_same_number_of_buckets_or_are_told_what_would_do(buckets: int, ranks: int) -> None:
    problem = sharing_problem(buckets, ranks)
    assert (problem == "") == (buckets % ranks == 0)
    if problem:
        enough = int(problem.rpartition("buckets: ")[2].split()[0])
        assert sharing_problem(enough, ranks) == ""
        assert enough - buckets < ranks
