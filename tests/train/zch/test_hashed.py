"""The id map by hashes by itself: who gets a row, who loses it, what others read, and that a restored one goes on as if nothing had happened."""

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.sparse.jagged_tensor import JaggedTensor

from emberline.errors import CheckpointError, ConfigError
from emberline.train.features import LruPolicy, TtlPolicy
from emberline.train.features.configs import EvictionPolicy
from emberline.train.zch import BY_RANGE, FREE_ROW, MIXED, HashedZchModule, ZchCounters, owner_of, remap_entries
from emberline.train.zch.buckets import bucket_ends
from emberline.train.zch.hashed import device_problem
from emberline.train.zch.probing import exchanged
from emberline.train.zch.routing import mix
from tests.train.zch.test_probing import ByHand

CPU = torch.device("cpu")
ODD = [FREE_ROW, FREE_ROW - 1, -(2**63), -1, 0]
EVICTIONS: list[EvictionPolicy | None] = [None, TtlPolicy(hours=2), LruPolicy()]


class Clock:
    """Hours that a test sets."""

    def __init__(self, hour: int = 100) -> None:
        self.hour = hour

    def __call__(self) -> int:
        return self.hour


def module(rows: int = 32, buckets: int = 2, **values: Any) -> HashedZchModule:
    return HashedZchModule(name="t", rows=rows, buckets=buckets, device=CPU, **{"clock": Clock(), **values})


def jagged(ids: Sequence[int], dtype: torch.dtype = torch.int64) -> dict[str, JaggedTensor]:
    return {"t": JaggedTensor(values=torch.tensor(ids, dtype=dtype), lengths=torch.tensor([len(ids)]))}


def read(zch: HashedZchModule, ids: Sequence[int], dtype: torch.dtype = torch.int64) -> list[int]:
    """One forward: the rows of the ids."""
    rows: list[int] = zch(jagged(ids, dtype))["t"].values().tolist()
    return rows


def snapshot(zch: HashedZchModule) -> dict[str, Tensor]:
    return zch.state_for_checkpoint() | {name: buffer.clone() for name, buffer in zch.named_buffers() if buffer is not None}


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def fallback_of(zch: HashedZchModule, one: int) -> int:
    return zch.ends[int(owner_of(torch.tensor([one]), zch.num_parts, zch.routing)) + 1] - 1


def test_an_id_has_its_row_when_it_is_first_read_and_others_the_fallback_row_of_their_bucket() -> None:
    zch = module()
    rows = read(zch, [100, 200, 300, 200])
    assert len(set(rows)) == 3
    assert rows[1] == rows[3]
    assert not set(rows) & set(zch.fallback_rows)
    assert read(zch.eval(), [300, 999, -5, 100]) == [rows[2], fallback_of(zch, 999), fallback_of(zch, -5), rows[0]]
    assert zch.fallback_rows == (15, 31)
    assert zch.counters == ZchCounters(seen=4, admitted=3, evicted=0, dropped=0)


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_no_id_ever_reads_the_row_of_another(eviction: EvictionPolicy | None) -> None:
    """TorchRec's own module has unknown ids read what lies at their home."""
    zch = module(rows=24, buckets=3, eviction=eviction)
    for start in range(0, 200, 8):
        read(zch, [*range(start, start + 8), *ODD])
    ids, owned = zch.owners()
    assert len(ids) > 15
    own = dict(zip(ids.tolist(), owned.tolist(), strict=True))
    everyone = [*range(-50, 400), *ODD]
    assert read(zch.eval(), everyone) == [own.get(one, fallback_of(zch, one)) for one in everyone]
    theirs = HashZchManagedCollisionModule(zch_size=24, device=CPU, total_num_buckets=3)
    theirs._hash_zch_identities.data.copy_(zch._hash_zch_identities.data)
    taken = set(zch.eval().owners()[1].tolist())
    assert {int(row) for row in theirs.eval()(jagged(range(1000, 1100)))["t"].values()} & taken


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(EVICTIONS),
    st.integers(4, 20),
    st.integers(1, 2),
    st.integers(1, 9),
    st.sampled_from([MIXED, BY_RANGE]),
    st.lists(st.tuples(st.lists(st.sampled_from([*range(14), *range(-3, 0), *ODD]), max_size=10), st.integers(0, 3)), max_size=8),
)
def test_everything_is_as_the_rule_by_loops_has_it(
    eviction: EvictionPolicy | None, rows: int, buckets: int, max_probe: int, routing: str, batches: list[tuple[list[int], int]]
) -> None:
    clock = Clock()
    zch = module(rows=rows, buckets=buckets, max_probe=max_probe, routing=routing, eviction=eviction, clock=clock)
    resets: list[int] = []
    zch.reset_rows = lambda rows: resets.extend(rows.tolist())
    kind = {type(None): "", TtlPolicy: "ttl", LruPolicy: "lru"}[type(eviction)]
    ends = bucket_ends(rows, buckets)
    maps = [ByHand([first, end - 1], max_probe, kind, 2 if kind == "ttl" else 0) for first, end in pairwise(ends)]
    counts: dict[int, int] = {}
    seen = dropped = 0
    for ids, later in batches:
        clock.hour += later
        found = read(zch, ids)
        places = owner_of(torch.tensor(ids, dtype=torch.int64), buckets, routing).tolist()
        for bucket, one in enumerate(maps):
            mine = list(dict.fromkeys(raw for raw, place in zip(ids, places, strict=True) if place == bucket and raw != FREE_ROW))
            stored = exchanged(torch.tensor(mine, dtype=torch.int64)).tolist()
            before = dict(one.owners)
            one.read(stored, [0] * len(mine), clock.hour)
            for slot in one.owners:
                counts[slot] = 0 if one.owners[slot] != before.get(slot) else counts[slot]
        own = {raw: slot for one in maps for slot, raw in one.owners.items()}
        expected = [
            own.get(int(exchanged(torch.tensor(raw))), ends[place + 1] - 1) if raw != FREE_ROW else ends[place + 1] - 1
            for raw, place in zip(ids, places, strict=True)
        ]
        assert found == expected
        for row in expected:
            if row in counts:
                counts[row] += 1
        seen += len(ids)
        dropped += sum(row not in counts for row in expected)
        assert read(zch.eval(), ids) == expected
        zch.train()
    lost = [slot for one in maps for slot in one.lost]
    assert sorted(resets) == sorted(lost)
    owners = {slot for one in maps for slot in one.owners}
    assert zch.counters == ZchCounters(seen=seen, admitted=len(owners) + len(lost), evicted=len(lost), dropped=dropped)
    assert zch.rows_in_use == len(owners)
    state = zch.state_for_checkpoint()
    assert {row: int(count) for row, count in enumerate(state["counts"]) if row in owners} == counts
    if kind:
        last = {slot: until - (2 if kind == "ttl" else 0) for one in maps for slot, until in one.until.items()}
        assert {row: int(hour) for row, hour in enumerate(state["last_seen_hour"]) if row in owners} == last


def test_an_id_keeps_its_row_for_its_hours_and_then_until_another_wants_it() -> None:
    clock = Clock()
    zch = module(rows=3, buckets=1, eviction=TtlPolicy(hours=2), clock=clock)
    first = read(zch, [1, 2])
    clock.hour += 2
    assert read(zch, [2, 3]) == [first[1], 2]  # the hours of 1 are not over
    clock.hour += 1
    assert read(zch.eval(), [1, 3]) == [first[0], 2]
    zch.train()
    assert read(zch, []) == []
    assert read(zch.eval(), [1]) == [first[0]]  # over, but nobody wants it
    zch.train()
    assert read(zch, [3]) == [first[0]]
    assert read(zch.eval(), [1, 2]) == [2, first[1]]
    assert zch.counters == ZchCounters(seen=5, admitted=3, evicted=1, dropped=1)
    rows = zch.take_rows_to_reset()
    assert rows is not None
    assert (rows.tolist(), zch.take_rows_to_reset()) == ([first[0]], None)


def test_an_id_that_is_read_with_others_never_loses_its_row_to_them() -> None:
    clock = Clock()
    zch = module(rows=3, buckets=1, eviction=TtlPolicy(hours=1), clock=clock)
    first = read(zch, [1, 2])
    clock.hour += 9
    assert read(zch, [3, 4, 1, 2]) == [2, 2, *first]
    clock.hour += 9
    assert sorted(read(zch, [3, 4, 2, 2])) == sorted([2, first[0], first[1], first[1]])


def test_who_was_read_longest_ago_goes_first() -> None:
    clock = Clock()
    zch = module(rows=5, buckets=1, eviction=LruPolicy(), clock=clock)
    for one in (1, 2, 3, 4):
        clock.hour += 1
        read(zch, [one])
    row = {one: read(zch.eval(), [one])[0] for one in (1, 2, 3, 4)}
    zch.train()
    read(zch, [1])  # in the hour of 4
    assert read(zch, [9]) == [row[2]]
    assert read(zch, [8]) == [row[3]]
    assert read(zch, [7]) == [4]  # all others were read in this hour
    assert zch.counters.evicted == 2


def test_a_clock_that_is_set_back_takes_nobodys_hours() -> None:
    clock = Clock()
    zch = module(rows=3, buckets=1, eviction=TtlPolicy(hours=1), clock=clock)
    read(zch, [1])
    clock.hour = 5
    read(zch, [2])
    clock.hour = 100
    assert zch.state_for_checkpoint()["last_seen_hour"].tolist().count(100) == 2
    assert read(zch, [3]) == [2]


@pytest.mark.parametrize("training", [True, False])
def test_the_marker_of_free_rows_is_an_unknown_id_and_minus_one_is_an_id(training: bool) -> None:
    zch = module()
    rows = read(zch, [-1, 5])
    assert len({*rows, *zch.fallback_rows}) == 4
    assert read(zch.train(training), [FREE_ROW, -1]) == [fallback_of(zch, FREE_ROW), rows[0]]
    assert remap_entries(zch)[0].tolist() == [-1, 5]
    assert zch.counters.dropped == int(training)


def test_int32_ids_are_widened_and_no_ids_are_no_rows() -> None:
    zch = module()
    assert read(zch, [100, 200], torch.int32) == read(zch.eval(), [100, 200])
    assert read(zch.train(), []) == read(zch.eval(), []) == []
    assert zch.rows_of(torch.tensor([200], dtype=torch.int32)).dtype == torch.int64


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_eval_changes_nothing(eviction: EvictionPolicy | None) -> None:
    clock = Clock()
    zch = module(eviction=eviction, clock=clock)
    for ids in ([1, 2, 3], [2, 3, 4], [5]):
        read(zch, ids)
    before = snapshot(zch)
    first = read(zch.eval(), [1, 2, 99])
    for start in range(100):
        clock.hour += 1
        read(zch, [start, -start, *ODD])
    assert same(snapshot(zch), before)
    assert read(zch, [1, 2, 99]) == first


def test_rows_are_never_written_by_gradients_and_no_grad_does_not_stop_learning() -> None:
    zch = module()
    with torch.no_grad():
        read(zch, [1, 2, 3])
    assert zch.rows_in_use == 3
    assert not any(parameter.requires_grad for parameter in zch.parameters())


def test_a_way_is_no_longer_than_a_bucket() -> None:
    """Else fbgemm's kernel goes round a full bucket as often as the number has it."""
    zch, shortest = module(rows=11, buckets=2, max_probe=2**63 - 1), module(rows=11, buckets=2, max_probe=5)
    assert (zch.max_probe, shortest.max_probe) == (5, 5)
    assert read(zch, range(50)) == read(shortest, range(50))
    assert zch.rows_in_use == 9


def test_a_shard_has_whole_buckets_and_names_global_rows() -> None:
    whole = module(rows=40, buckets=4, routing=BY_RANGE)
    ids = [3, 2**61, 2**62 + 1, 2**63 - 5, -3, -(2**63)]
    rows = read(whole, ids)
    found: dict[int, int] = {}
    for place, (first, end) in enumerate(pairwise(whole.shard_ends(2))):
        shard = whole.rebuild_with_output_id_range((first, end), [0, 20, 40])
        mine = [one for one in ids if shard.owns(torch.tensor([one]))]
        found |= dict(zip(mine, read(shard, mine), strict=True))
        assert (shard.shard, shard.num_shards, shard.buckets(), shard.output_size(), shard.capacity) == (place, 2, 4, 20, 18)
        assert shard.fallback_rows == whole.fallback_rows[2 * place : 2 * place + 2]
        assert shard.counters.seen == len(mine)
    assert [found[one] for one in ids] == rows
    with pytest.raises(ConfigError, match=r"table 't': rows 5 to 40 are no whole buckets, which begin at 0, 10, 20, 30, 40"):
        whole.rebuild_with_output_id_range((5, 40), [0, 5, 40])


def test_a_shard_undoes_the_mixing_of_the_exchange() -> None:
    whole = module(rows=40, buckets=4)
    ids = [one for one in range(700, 760) if int(owner_of(torch.tensor([one]), 4, MIXED)) >= 2]
    shard = whole.rebuild_with_output_id_range((20, 40), [0, 20, 40])
    sent = mix(torch.tensor(ids[:9]))
    rows = shard.remap(shard.profile(jagged(sent.tolist())))["t"].values().tolist()
    assert remap_entries(shard)[0].tolist() == ids[:9]
    assert rows == shard.rows_of(torch.tensor(ids[:9])).tolist()
    assert (shard.is_sent_mixed, whole.is_sent_mixed) == (True, False)
    assert not whole.rebuild_with_output_id_range((0, 40), [0, 40]).is_sent_mixed


def test_remap_entries_are_sorted_and_have_the_fallback_row_of_each_bucket() -> None:
    zch = module(rows=13, buckets=3, routing=BY_RANGE)
    rows = read(zch, [30, -7, 10])
    ids, owned, starts, fallback = remap_entries(zch)
    assert ids.tolist() == [-7, 10, 30]
    assert owned.tolist() == [rows[1], rows[2], rows[0]]
    assert (len(starts), fallback.tolist()) == (3, [3, 7, 12])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(EVICTIONS),
    st.lists(st.tuples(st.lists(st.sampled_from([*range(12), *ODD]), max_size=6), st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(0, 11),
)
def test_a_restored_module_goes_on_bit_equal(eviction: EvictionPolicy | None, steps: list[tuple[list[int], int]], cut: int) -> None:
    clock = Clock()
    whole, first, second = (module(rows=8, eviction=eviction, clock=clock) for _ in range(3))
    for step, (ids, later) in enumerate(steps):
        clock.hour += later
        read(whole, ids)
        if step < cut:
            read(first, ids)
        elif step == cut:
            second.load_state_from_checkpoint(first.state_for_checkpoint())
        if step >= cut:
            read(second, ids)
    if cut < len(steps):
        assert same(second.state_for_checkpoint(), whole.state_for_checkpoint())
        assert second.counters == whole.counters
    assert read(whole.eval(), range(12)) == read((second if cut < len(steps) else first).eval(), range(12))


def test_other_hours_hold_from_when_an_id_was_read() -> None:
    clock = Clock()
    long, short = (module(rows=3, buckets=1, eviction=TtlPolicy(hours=hours), clock=clock) for hours in (50, 2))
    rows = read(long, [1, 2])
    short.load_state_from_checkpoint(long.state_for_checkpoint())
    clock.hour += 3
    assert read(long, [3]) == [2]
    assert read(short, [3])[0] in rows


def test_a_checkpoint_is_a_copy() -> None:
    zch, other = module(), module()
    read(zch, [1, 2])
    state = zch.state_for_checkpoint()
    kept = copy.deepcopy(state)
    other.load_state_from_checkpoint(state)
    for _ in range(4):
        read(zch, [3])
        read(other, [4])
    assert same(state, kept)


def test_states_that_do_not_fit_are_refused_by_name() -> None:
    zch = module(rows=32, eviction=TtlPolicy(hours=2))
    read(zch, range(20))
    state = zch.state_for_checkpoint()
    with pytest.raises(CheckpointError, match="table 't' has 34 ZCH rows, the checkpoint 32"):
        module(rows=34, eviction=TtlPolicy(hours=2)).load_state_from_checkpoint(state)
    with pytest.raises(CheckpointError, match=r"table 't' does not fit its policy: missing \[\], surplus \['last_seen_hour'\]"):
        module().load_state_from_checkpoint(state)
    other = module(rows=32, eviction=TtlPolicy(hours=2))
    with pytest.raises(CheckpointError, match=r"table 't' is damaged: \['counters'\] have the wrong size"):
        other.load_state_from_checkpoint(state | {"counters": torch.zeros(3, 4, dtype=torch.int64)})
    with pytest.raises(CheckpointError, match=r"table 't': \d+ ids do not lie where they are looked for, .* routed by 'range'; keep routing"):
        module(rows=32, eviction=TtlPolicy(hours=2), routing=BY_RANGE).load_state_from_checkpoint(state)
    with pytest.raises(CheckpointError, match=r"table 't': \d+ ids .*, in 1 rows of a bucket, .*; keep routing, and keep max_probe or raise it"):
        module(rows=32, eviction=TtlPolicy(hours=2), max_probe=1).load_state_from_checkpoint(state)
    moved = state["raw_ids"].clone()
    taken = (moved != FREE_ROW).nonzero().flatten()[0]
    moved[int(zch.fallback_rows[0])], moved[taken] = moved[taken].clone(), FREE_ROW
    with pytest.raises(CheckpointError, match=r"table 't': 1 ids do not lie where they are looked for"):
        other.load_state_from_checkpoint(state | {"raw_ids": moved})
    with pytest.raises(CheckpointError, match=r"table 't' is damaged: its rows are not 0 to 31"):
        other.load_state_from_checkpoint(state | {"rows": state["rows"].flip(0)})
    assert other.rows_in_use == 0
    more = module(rows=32, eviction=TtlPolicy(hours=2), max_probe=200)
    more.load_state_from_checkpoint(state)
    assert more.rows_in_use == zch.rows_in_use


def test_a_plain_state_dict_keeps_who_has_which_row() -> None:
    zch, other = module(eviction=LruPolicy()), module(eviction=LruPolicy())
    read(zch, [1, 2, 3])
    other.load_state_dict(zch.state_dict())
    assert read(other.eval(), [1, 2, 3, 4]) == read(zch.eval(), [1, 2, 3, 4])


def test_ids_can_be_admitted_unread() -> None:
    zch = module(rows=4, buckets=1, eviction=TtlPolicy(hours=1))
    read(zch, [7, 7])
    ids, marker = torch.tensor([7, 8, 9, 10]), torch.tensor([FREE_ROW])
    zch.admit(ids)
    admitted = zch.find(ids)[1].tolist()
    assert (admitted[0], sum(admitted)) == (True, 3)
    state = zch.state_for_checkpoint()
    assert sorted(state["counts"].tolist()) == [0, 1, 1, 2]
    zch.admit(marker)
    assert zch.find(marker)[1].tolist() == [False]
    assert zch.counters == ZchCounters(seen=2, admitted=1, evicted=0, dropped=0)


def test_devices_that_cannot_admit_ids_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="table 't': kind mpzch runs on CPUs and on CUDA, not on xpu: neither fbgemm's kernel nor ours is for it"):
        HashedZchModule(name="t", rows=8, buckets=1, device=torch.device("xpu"))
    assert device_problem(CPU) == device_problem(torch.device("meta")) == ""
    if not torch.cuda.is_available():
        assert "which this build of fbgemm has for CPUs only: install fbgemm-gpu" in device_problem(torch.device("cuda"))


class ByKernel(HashedZchModule):
    """As on a GPU, but that the kernel is the loops of `ByHand`: what is asked of it, and what is made of what it did."""

    def _insert_on_cpu(self, ids: Tensor, buckets: Tensor, hour: int) -> tuple[Tensor, Tensor]:
        return self._insert_by_fbgemm(ids, buckets, hour)

    def _zero_collision_hash(self, **values: Any) -> tuple[Tensor, Tensor | None]:
        if values["readonly"]:
            found: tuple[Tensor, Tensor | None] = super()._zero_collision_hash(**values)
            return found
        slots, until = values["identities"], values["metadata"]
        assert (until is None) == (values["input_metadata"] is None) == (values["eviction_threshold"] == -1)
        kind = "" if until is None else ("ttl", "lru")[values["eviction_policy"]]
        ways = zip(values["input"].tolist(), values["offsets"].tolist(), values["local_sizes"].tolist(), strict=True)
        for place, (one, first, size) in enumerate(ways):
            by_hand = ByHand([first, first + size], values["max_probe"], kind)
            by_hand.owners = {slot: int(raw) for slot, raw in enumerate(slots[:, 0]) if raw != -1}
            by_hand.until = {} if until is None else {slot: int(until[slot, 0]) for slot in by_hand.owners}
            by_hand.read([one], [0], values["eviction_threshold"])
            for slot, raw in by_hand.owners.items():
                if raw != int(slots[slot, 0]):
                    slots[slot, 0] = raw
                    if until is not None:
                        until[slot, 0] = values["input_metadata"][place]
        return values["input"], None


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_what_a_kernel_admits_is_counted_and_reset_alike(eviction: EvictionPolicy | None) -> None:
    """One new id a batch: then no order among the kernel's threads matters."""
    clock = Clock()
    ours = module(rows=14, buckets=2, max_probe=4, eviction=eviction, clock=clock)
    kernel = ByKernel(name="t", rows=14, buckets=2, device=CPU, max_probe=4, eviction=eviction, clock=clock)
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        clock.hour += int(torch.randint(0, 2, (1,), generator=generator))
        ids = [int(torch.randint(-9, 9, (1,), generator=generator))] * 2
        assert read(ours, ids) == read(kernel, ids)
        assert same(ours.state_for_checkpoint(), kernel.state_for_checkpoint())
        resets = [zch.take_rows_to_reset() for zch in (ours, kernel)]
        assert (resets[0] is None) == (resets[1] is None)
        assert resets[0] is None or resets[1] is None or torch.equal(resets[0], resets[1])
    assert (ours.counters.evicted > 3) == (eviction is not None)
