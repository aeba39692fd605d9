"""Who gets which slot, against loops over the rule, and against fbgemm's own kernel, which must find every id where it was put."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emberline.schema import INT64_MAX
from emberline.train.zch.probing import FREE, Slots, Ways, exchanged, hash_of, insert

ODD = [INT64_MAX, INT64_MAX - 1, -(2**63), -2, 0, 1, 2**31, 2**32 + 5]
IDS = st.one_of(st.integers(-(2**63), 2**63 - 1).filter(lambda one: one != FREE), st.integers(0, 12), st.sampled_from(ODD))
LOW = 2**64 - 1


def hash_by_hand(one: int) -> int:
    """MurmurHash3, x64, 128 bits, of the id and 8 zeros, by whole numbers."""

    def turned(number: int, bits: int) -> int:
        return ((number << bits) | (number >> (64 - bits))) & LOW

    def mixed(number: int) -> int:
        number = (number ^ (number >> 33)) * 0xFF51AFD7ED558CCD & LOW
        number = (number ^ (number >> 33)) * 0xC4CEB9FE1A85EC53 & LOW
        return number ^ (number >> 33)

    key = turned((one & LOW) * 0x87C37B91114253D5 & LOW, 31) * 0x4CF5AD432745937F & LOW
    first = (turned(key, 27) * 5 + 0x52DCE729) & LOW
    second = (first * 5 + 0x38495AB5) & LOW
    first, second = first ^ 16, second ^ 16
    first = (first + second) & LOW
    second = (second + first) & LOW
    first, second = mixed(first), mixed(second)
    first = (first + second) & LOW
    return first ^ ((second + first) & LOW)


@dataclass
class ByHand:
    """The same map by loops: all ids of a batch take one step after the other, the first of the batch first."""

    ends: Sequence[int]
    max_probe: int
    kind: str = ""
    hours: int = 0
    owners: dict[int, int] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)

    def way(self, one: int, bucket: int) -> list[int]:
        first, size = self.ends[bucket], self.ends[bucket + 1] - self.ends[bucket]
        return [first + (hash_by_hand(one) + step) % size for step in range(self.max_probe)]

    def read(self, ids: Sequence[int], buckets: Sequence[int], hour: int) -> None:
        slots = {one: slot for slot, one in self.owners.items()}
        for one in ids:
            if one in slots:
                self.until[slots[one]] = hour + self.hours
        left = {one: self.way(one, bucket) for one, bucket in zip(ids, buckets, strict=True) if one not in slots}
        for step in range(self.max_probe):
            for one in list(left):
                slot = left[one][step]
                if slot not in self.owners or (self.kind == "ttl" and self.until[slot] < hour):
                    self.give(slot, one, hour)
                    del left[one]
        while self.kind == "lru":
            wishes: dict[int, int] = {}
            for one in left:
                old = [slot for slot in left[one] if self.until[slot] < hour]
                if old:
                    wishes.setdefault(min(old, key=lambda slot: self.until[slot]), one)
            if not wishes:
                return
            for slot, one in wishes.items():
                self.give(slot, one, hour)
                del left[one]

    def give(self, slot: int, one: int, hour: int) -> None:
        if slot in self.owners:
            self.lost.append(slot)
        self.owners[slot], self.until[slot] = one, hour + self.hours


def by_fbgemm(ids: torch.Tensor, slots: Slots, first: torch.Tensor, sizes: torch.Tensor, max_probe: int) -> list[int]:
    """Where fbgemm's kernel finds ids; -1 where it does not."""
    found, _ = torch.ops.fbgemm.zero_collision_hash(
        input=ids,
        identities=torch.from_numpy(slots.ids).view(-1, 1),
        max_probe=max_probe,
        circular_probe=True,
        readonly=True,
        local_sizes=sizes,
        offsets=first,
        disable_fallback=True,
    )
    rows: list[int] = found.tolist()
    return rows


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["", "ttl", "lru"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(0, 2),
    st.lists(st.tuples(st.lists(IDS, max_size=14), st.integers(0, 2)), max_size=7),
)
@example("", [3], 12, 0, [([1, 2, 3, 4, 5], 0)])  # more ids than slots
@example("ttl", [4], 1, 1, [([1, 2, 3, 4], 0), ([5, 6, 7, 8], 2), ([5, 6, 7, 8], 0)])  # one slot each
@example("lru", [1, 1], 3, 0, [([7, 8, 9], 0), ([7, 9, 10], 1), ([11, 12], 1)])
def test_slots_go_to_whom_the_rule_gives_them(kind: str, sizes: list[int], max_probe: int, hours: int, batches: list[tuple[list[int], int]]) -> None:
    ends = np.cumsum([0, *sizes])
    slots = Slots(np.full(ends[-1], FREE, dtype=np.int64), np.full(ends[-1], -1, dtype=np.int32) if kind else None)
    by_hand = ByHand(ends.tolist(), max_probe, kind, hours)
    bucket_of = {one: one % len(sizes) for ids, _ in batches for one in ids}
    hour, lost = 3, []
    for ids, later in batches:
        hour += later
        different = list(dict.fromkeys(ids))
        buckets = np.array([bucket_of[one] for one in different], dtype=np.int64)
        first, width = ends[buckets], np.array(sizes)[buckets]
        places = np.array(by_fbgemm(torch.tensor(different, dtype=torch.int64), slots, torch.from_numpy(first), torch.from_numpy(width), max_probe))
        if slots.kept_until is not None and different:
            slots.kept_until[places[places >= 0]] = hour + hours
        new = np.array(different, dtype=np.int64)[places < 0] if different else np.empty(0, np.int64)
        given, gone = insert(
            slots,
            new,
            Ways.of(new, first[places < 0] if different else new, width[places < 0] if different else new, max_probe),
            hour=hour,
            kept_until=hour + hours,
            is_lru=kind == "lru",
        )
        by_hand.read(different, buckets.tolist(), hour)
        lost += gone.tolist()
        assert {slot: one for slot, one in enumerate(slots.ids.tolist()) if one != FREE} == by_hand.owners
        assert set(slots.ids[given].tolist()) <= set(new.tolist())
        if slots.kept_until is not None:
            assert {slot: until for slot, until in enumerate(slots.kept_until.tolist()) if until != -1} == by_hand.until
        own = {one: slot for slot, one in by_hand.owners.items()}
        everyone = torch.tensor(list(bucket_of), dtype=torch.int64)
        at = np.array(list(bucket_of.values()), dtype=np.int64)
        where = by_fbgemm(everyone, slots, torch.from_numpy(ends[at]), torch.from_numpy(np.array(sizes)[at]), max_probe)
        assert where == [own.get(one, -1) for one in bucket_of]
    assert sorted(lost) == sorted(by_hand.lost)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_hashes_are_those_by_whole_numbers(ids: list[int]) -> None:
    assert hash_of(np.array([*ids, *ODD], dtype=np.int64)).tolist() == [hash_by_hand(one) for one in (*ids, *ODD)]


@pytest.mark.parametrize("load", [0.5, 0.95, 1.0])
def test_a_table_of_many_ids_is_read_by_fbgemm(load: float) -> None:
    generator = np.random.default_rng(2)
    size, probe = 20_000, 64
    slots = Slots(np.full(size, FREE, dtype=np.int64), None)
    ids = generator.permutation(np.unique(generator.integers(-(2**63), 2**63 - 1, int(load * size))))
    first, sizes = np.zeros_like(ids), np.full_like(ids, size)
    given, lost = insert(slots, ids, Ways.of(ids, first, sizes, probe), hour=0, kept_until=0, is_lru=False)
    found = np.array(by_fbgemm(torch.from_numpy(ids), slots, torch.from_numpy(first), torch.from_numpy(sizes), probe))
    assert (slots.ids[found[found >= 0]] == ids[found >= 0]).all()
    assert int((found >= 0).sum()) == len(given) == int((slots.ids != FREE).sum())
    assert len(lost) == 0
    assert len(given) / len(ids) > {0.5: 0.9999, 0.95: 0.97, 1.0: 0.93}[load]


def test_minus_one_and_the_largest_id_are_exchanged() -> None:
    ids = torch.tensor([-1, INT64_MAX, 0, -(2**63), INT64_MAX - 1])
    assert exchanged(ids).tolist() == [INT64_MAX, -1, 0, -(2**63), INT64_MAX - 1]
    assert torch.equal(exchanged(exchanged(ids)), ids)
    assert exchanged(ids[:0]).tolist() == []


def test_nobody_to_insert() -> None:
    slots = Slots(np.full(3, FREE, dtype=np.int64), np.full(3, -1, dtype=np.int32))
    nobody = np.empty(0, np.int64)
    for is_lru in (False, True):
        given, lost = insert(slots, nobody, Ways.of(nobody, nobody, nobody, 5), hour=1, kept_until=1, is_lru=is_lru)
        assert (given.tolist(), lost.tolist(), slots.ids.tolist()) == ([], [], [FREE] * 3)
