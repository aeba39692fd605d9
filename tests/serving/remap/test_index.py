"""Raw id -> row against a dictionary."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.serving.remap import SortedRemap
from tests.serving.conftest import INT64_MIN, Remap

IDS = st.one_of(st.integers(INT64_MIN, 2**63 - 2), st.integers(-3, 3), st.sampled_from([INT64_MIN, INT64_MIN + 1, 2**63 - 2, -1, 0]))
ASKED = st.one_of(IDS, st.just(2**63 - 1))


def index_of(remap: Remap) -> SortedRemap:
    raw_ids, starts = sorted(remap.rows), sorted(remap.fallbacks)
    parts = (raw_ids, [remap.rows[raw_id] for raw_id in raw_ids], starts, [remap.fallbacks[start] for start in starts])
    return SortedRemap(*(torch.tensor(part, dtype=torch.int64) for part in parts))


@given(trained=st.lists(IDS, unique=True, max_size=20), starts=st.sets(IDS, max_size=4), asked=st.lists(ASKED, max_size=30), seed=st.integers(0, 99))
def test_equals_a_dictionary(trained: list[int], starts: set[int], asked: list[int], seed: int) -> None:
    rows = torch.randperm(64, generator=torch.Generator().manual_seed(seed)).tolist()
    ranges = sorted(starts | {INT64_MIN})
    remap = Remap(dict(zip(trained, rows, strict=False)), dict(zip(ranges, reversed(rows), strict=False)))
    asked = asked + trained
    found, known = index_of(remap)(torch.tensor(asked, dtype=torch.int64))
    assert found.tolist() == [remap.row(raw_id) for raw_id in asked]
    assert known.tolist() == [raw_id in remap.rows for raw_id in asked]


def test_a_table_that_learned_nothing_answers_with_its_fallbacks() -> None:
    found, known = index_of(Remap({}, {INT64_MIN: 4, 0: 9}))(torch.tensor([INT64_MIN, -1, 0, 2**63 - 1]))
    assert found.tolist() == [4, 4, 9, 9]
    assert known.tolist() == [False] * 4


def test_no_ids_give_no_rows() -> None:
    found, known = index_of(Remap({5: 1}))(torch.empty(0, dtype=torch.int64))
    assert (found.tolist(), known.tolist()) == ([], [])


def test_answers_own_their_memory() -> None:
    """A caller may write into what it got without changing the index."""
    index = index_of(Remap({}, {INT64_MIN: 4}))
    assert index.num_ids == 0
    assert index(torch.tensor([1, 2]))[0].tolist() == [4, 4]
