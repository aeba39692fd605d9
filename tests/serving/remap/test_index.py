"""Raw id -> row against a dictionary, in every form of the index."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.conftest import INT64_MIN, Remap
from tests.serving.remap.oracle import ASKED, FORMS, IDS, Build, check, long

forms = pytest.mark.parametrize("build", FORMS, ids=[form.__name__ for form in FORMS])


@forms
@settings(max_examples=60)
@given(trained=st.lists(IDS, unique=True, max_size=60), starts=st.sets(IDS, max_size=4), asked=st.lists(ASKED, max_size=150), seed=st.integers(0, 99))
def test_equals_a_dictionary(build: Build, trained: list[int], starts: set[int], asked: list[int], seed: int) -> None:
    rows = torch.randperm(64, generator=torch.Generator().manual_seed(seed)).tolist()
    ranges = sorted(starts | {INT64_MIN})
    remap = Remap(dict(zip(trained, rows, strict=False)), dict(zip(ranges, reversed(rows), strict=False)))
    index = build(remap)
    assert index.num_ids == len(trained)
    check(index, remap, asked + trained)


@forms
def test_a_table_that_learned_nothing_answers_with_its_fallbacks(build: Build) -> None:
    remap = Remap({}, {INT64_MIN: 4, 0: 9})
    found, known = build(remap)(torch.tensor([INT64_MIN, -1, 0, 2**63 - 1]))
    assert found.tolist() == [4, 4, 9, 9]
    assert known.tolist() == [False] * 4


@forms
def test_no_ids_give_no_rows(build: Build) -> None:
    found, known = build(Remap({5: 1}))(torch.empty(0, dtype=torch.int64))
    assert (found.tolist(), known.tolist()) == ([], [])


@forms
@pytest.mark.parametrize("rows", [{}, {1: 3}])
def test_answers_own_their_memory(build: Build, rows: dict[int, int]) -> None:
    """A caller may write into what it got without changing the index."""
    index = build(Remap(rows, {INT64_MIN: 4}))
    for _ in range(2):
        found, known = index(torch.tensor([1, 2]))
        assert found.tolist() == [rows.get(1, 4), 4]
        found.fill_(99)
        known.fill_(True)


@forms
def test_ids_that_lie_apart_in_memory(build: Build) -> None:
    remap = Remap({7: 3, -9: 0, 8: 2})
    found, known = build(remap)(long([7, 1, -9, 1, 5, 1])[::2])
    assert (found.tolist(), known.tolist()) == ([3, 0, 7], [True, True, False])


@forms
@pytest.mark.parametrize("count", [1, 63, 64, 65, 300, 4096, 4097, 10_000])
def test_batches_of_any_size(build: Build, count: int) -> None:
    remap = Remap({raw_id * 7919: raw_id for raw_id in range(5000)}, {INT64_MIN: 5000, 7919 * 2500: 5001})
    asked = torch.randint(0, 5500, (count,), generator=torch.Generator().manual_seed(count)).mul(7919).tolist()
    check(build(remap), remap, asked)
