from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.train.dynamic.tiers.cache import CachedRows, Plane, RowCache
from emberline.train.dynamic.tiers.memory import Span

PLANES = [Plane((3,), torch.float16), Plane((3,), torch.float32), Plane((), torch.float32)]
SIZES = [7, 5, 9]


def spans(fast: list[int]) -> list[Span]:
    return [Span(str(place), sum(SIZES[:place]), SIZES[place], min(fast[place], SIZES[place])) for place in range(3)]


def made(fast: list[int], caching: list[bool]) -> RowCache:
    cache = RowCache(PLANES, spans(fast), caching, kept_bytes=1)
    for place, rows in enumerate(SIZES):
        cache.memory.reserve(place, rows)
    return cache


rows_of_a_batch = st.lists(st.integers(0, sum(SIZES) - 1), max_size=30)


@settings(max_examples=30, deadline=None)
@given(
    fast=st.lists(st.integers(0, 10), min_size=3, max_size=3),
    caching=st.lists(st.booleans(), min_size=3, max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 2), rows_of_a_batch, st.sampled_from(["read", "write", "look", "slots"])), max_size=25),
)
def test_rows_are_those_of_plain_tensors(fast: list[int], caching: list[bool], steps: list[tuple[int, list[int], str]]) -> None:
    cache = made(fast, caching)
    rows = [CachedRows(cache, plane) for plane in range(3)]
    plain = [torch.zeros(sum(SIZES), *plane.shape, dtype=plane.dtype) for plane in PLANES]
    for number, (plane, asked, what) in enumerate(steps):
        batch = torch.tensor(asked, dtype=torch.int64)
        if what == "write":
            batch = torch.tensor(sorted(set(asked)), dtype=torch.int64)
            values = (torch.arange(len(batch) * 3).view(-1, 3)[:, : plain[plane][0].numel()] + 100 * number).to(PLANES[plane].dtype)
            rows[plane].write(batch, values.reshape(-1, *PLANES[plane].shape).contiguous())
            plain[plane][batch] = values.reshape(-1, *PLANES[plane].shape)
        elif what == "read":
            assert torch.equal(rows[plane].read(batch), plain[plane][batch])
        elif what == "look":
            before = cache.are_fast(torch.arange(sum(SIZES)))
            assert torch.equal(cache.read(plane, batch, moving=False), plain[plane][batch])
            assert torch.equal(cache.are_fast(torch.arange(sum(SIZES))), before)
        elif (slots := cache.slots(batch)) is not None:
            assert torch.equal(cache.hot[plane][slots], plain[plane][batch])
    for plane in range(3):
        assert torch.equal(cache.read(plane, torch.arange(sum(SIZES)), moving=False), plain[plane])


def fast_rows(cache: RowCache) -> list[int]:
    return cache.are_fast(torch.arange(sum(SIZES))).nonzero().flatten().tolist()


def test_the_rows_used_longest_ago_leave(tmp_path: Path) -> None:
    cache = RowCache(PLANES, spans([3, 2, 0]), [True, False, True], tmp_path)
    rows = CachedRows(cache, 0)
    assert fast_rows(cache) == [7, 8]  # the second table's first two, for good
    rows.read(torch.tensor([0, 1]))
    rows.read(torch.tensor([2]))
    rows.read(torch.tensor([0, 14]))  # the third table has no room
    assert fast_rows(cache) == [0, 1, 2, 7, 8]
    rows.read(torch.tensor([3]))
    assert fast_rows(cache) == [0, 2, 3, 7, 8]
    rows.read(torch.tensor([4, 3, 4]))
    assert fast_rows(cache) == [0, 3, 4, 7, 8]
    assert cache.slots(torch.tensor([0, 1, 2, 3])) is None  # one more than there is room for
    slots = cache.slots(torch.tensor([3, 1, 3]))
    assert slots is not None
    assert slots[0] == slots[2] != slots[1]


def test_rows_that_did_not_change_are_not_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = made([1, 0, 0], [True, True, True])
    rows = CachedRows(cache, 2)
    touched: list[int] = []
    monkeypatch.setattr(cache.memory, "touched", touched.append)
    rows.read(torch.tensor([0]))
    rows.read(torch.tensor([1]))
    rows.write(torch.tensor([1]), torch.tensor([5.0]))
    rows.read(torch.tensor([2]))
    assert rows.read(torch.tensor([1])).item() == 5.0
    assert touched == [1, 1, 2, 1]
