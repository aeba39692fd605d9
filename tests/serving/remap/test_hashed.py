"""The hashed index: patterns of ids, seeds, threads, and what cannot be hashed."""

import threading

import pytest
import torch
from torch import Tensor

from emberline.serving.remap import FallbackRows, HashedRemap, SortedRemap, build_index
from emberline.serving.remap import hashed as hashed_module
from emberline.serving.remap.hashed import SEEDS
from emberline.serving.remap.lines import home_of
from tests.serving.conftest import INT64_MIN
from tests.serving.remap.oracle import long

COUNT = 8_000
INVERSE = pow(0xD6E8FEB86659FD93, -1, 2**64)
FALLBACK = FallbackRows(long([INT64_MIN]), long([COUNT]))


def signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def ids_of_one_home(count: int) -> list[int]:
    """Ids that the first seed sends to home 0: the hash backwards from numbers whose upper half is 0."""
    found = []
    for mixed in range(count):
        for _ in range(2):
            mixed = mixed * INVERSE % 2**64
            mixed ^= mixed >> 32
        found.append(signed(mixed))
    return found


PATTERNS = {
    "one after the other": list(range(COUNT)),
    "negative": list(range(-COUNT, 0)),
    "around zero": list(range(-COUNT // 2, COUNT // 2)),
    "equal lower halves": [signed(number << 32) for number in range(COUNT)],
    "multiples of 2^16": [number << 16 for number in range(COUNT)],
    "multiples of 2^48": [signed(number << 48) for number in range(COUNT)],
    "the greatest": list(range(2**63 - 1 - COUNT, 2**63 - 1)),
    "the smallest": list(range(INT64_MIN, INT64_MIN + COUNT)),
    "two fields": [(number // 100 << 40) + number % 100 for number in range(COUNT)],
    "one home": ids_of_one_home(COUNT),
}


def index_of(raw_ids: list[int], *, native: bool) -> tuple[HashedRemap, Tensor, Tensor]:
    ids = long(sorted(raw_ids))
    rows = torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(0))
    index = build_index(ids, rows, FALLBACK, num_rows=COUNT + 1, native=native)
    assert isinstance(index, HashedRemap)
    return index, ids, rows


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_id_is_found_and_no_other(pattern: str, native: bool) -> None:
    index, ids, rows = index_of(PATTERNS[pattern], native=native)
    assert index.num_ids == COUNT
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))
    found, known = index(ids[order])
    assert torch.equal(found, rows[order])
    assert bool(known.all())
    others = ids ^ (1 << 62)
    others = torch.cat([others[~torch.isin(others, ids)], long([2**63 - 1])])
    found, known = index(others)
    assert set(found.tolist()) == {COUNT}
    assert not known.any()


@pytest.mark.parametrize("pattern", [pattern for pattern in PATTERNS if pattern != "one home"])
def test_no_pattern_makes_lookups_long(pattern: str) -> None:
    """Random ids would have a reach of 8 or so, and one home in twenty would be full."""
    index, _, _ = index_of(PATTERNS[pattern], native=True)
    reach = -1 - index.lines.view(torch.int32)[:, -1]
    assert int(reach.max()) <= 16
    assert float((reach > 0).double().mean()) < 0.08


def test_ids_made_to_collide_are_spread_by_another_seed() -> None:
    first, second = SEEDS[:2]
    index, ids, _ = index_of(PATTERNS["one home"], native=True)
    assert set(home_of(ids, COUNT // 3, first).tolist()) == {0}
    assert len(set(home_of(ids, COUNT // 3, second).tolist())) > COUNT // 4
    assert int((-1 - index.lines.view(torch.int32)[:, -1]).max()) <= 16


def test_the_kernel_and_torch_fill_the_same_lines() -> None:
    for pattern in PATTERNS.values():
        assert torch.equal(index_of(pattern, native=True)[0].lines, index_of(pattern, native=False)[0].lines)


@pytest.mark.parametrize("native", [True, False])
def test_many_ids_are_found_as_by_search(native: bool) -> None:
    """So many that they are sorted and placed in several parts."""
    source = torch.Generator().manual_seed(3)
    ids = long(sorted(set(torch.randint(INT64_MIN, 2**63 - 1, (400_000,), generator=source).tolist())))
    rows, fallback = torch.randperm(ids.numel(), generator=source), FallbackRows(long([INT64_MIN, 0]), long([ids.numel(), ids.numel() + 1]))
    index = build_index(ids, rows, fallback, num_rows=ids.numel() + 2, native=native)
    asked = torch.cat(
        [ids[torch.randint(0, ids.numel(), (200_000,), generator=source)], torch.randint(INT64_MIN, 2**63 - 1, (200_000,), generator=source)]
    )
    assert isinstance(index, HashedRemap)
    for found, wanted in zip(index(asked), SortedRemap(ids, rows, fallback)(asked), strict=True):
        assert torch.equal(found, wanted)
    assert torch.equal(index(ids)[0], rows)


def test_any_number_of_parts_gives_the_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(40_000) * 7919
    for name, value in (("_PART_BITS", 3), ("_PART", 8), ("_PIECE", 1000), ("_PIECE_OF_PART", 1)):
        monkeypatch.setattr(f"emberline.serving.remap.lines.{name}", value)
    found, wanted = (build_index(ids, ids.flip(0) // 7919, FALLBACK, num_rows=40_000, native=native) for native in (False, True))
    assert isinstance(found, HashedRemap)
    assert isinstance(wanted, HashedRemap)
    assert torch.equal(found.lines, wanted.lines)


def test_memory_of_an_id() -> None:
    raw_ids = torch.arange(200_000)
    index = build_index(raw_ids, raw_ids, FALLBACK, num_rows=200_000)
    assert isinstance(index, HashedRemap)
    assert index.num_bytes == index.lines.numel() * 8
    assert index.num_bytes / 200_000 <= 24


def test_ids_without_a_seed_and_rows_of_more_than_32_bits_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, rows = long([1, 5, 9]), long([2**31, 0, 2**40])
    index = build_index(ids, rows, FALLBACK, num_rows=2**41)
    assert isinstance(index, SortedRemap)
    assert index(long([9, 1, 2]))[0].tolist() == [2**40, 2**31, COUNT]
    monkeypatch.setattr(hashed_module, "SEEDS", ())
    assert isinstance(build_index(ids, long([1, 0, 2]), FALLBACK, num_rows=3), SortedRemap)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_a_large_batch(threads: int) -> None:
    index, ids, rows = index_of(PATTERNS["multiples of 2^16"], native=True)
    asked = torch.randint(0, COUNT, (100_001,), generator=torch.Generator().manual_seed(2))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, known = index(ids[asked])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, rows[asked])
    assert bool(known.all())


def test_many_callers_at_once() -> None:
    index, ids, rows = index_of(PATTERNS["one after the other"], native=True)
    wrong: list[int] = []

    def ask(number: int) -> None:
        asked = torch.randint(0, COUNT, (3000,), generator=torch.Generator().manual_seed(number))
        wrong.extend(number for _ in range(20) if not torch.equal(index(ids[asked])[0], rows[asked]))

    callers = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_ids_of_another_type_are_our_own_mistake() -> None:
    index, _, _ = index_of([1, 2], native=True)
    with pytest.raises(AssertionError):
        index(torch.tensor([1, 2], dtype=torch.int32))


@pytest.mark.gpu
def test_on_a_gpu_the_answers_are_the_same() -> None:
    ids = torch.arange(-COUNT, COUNT, 2)
    fallback = FallbackRows(long([INT64_MIN, 0]).cuda(), long([COUNT, COUNT + 1]).cuda())
    index = build_index(ids, torch.arange(COUNT), fallback, num_rows=COUNT + 2, device="cuda")
    asked = torch.arange(-COUNT - 10, COUNT + 10)
    rows, known = index(asked.cuda())
    want = [(raw_id + COUNT) // 2 if raw_id % 2 == 0 and -COUNT <= raw_id < COUNT else COUNT + (raw_id >= 0) for raw_id in asked.tolist()]
    assert rows.tolist() == want
    assert known.tolist() == [row < COUNT for row in want]
