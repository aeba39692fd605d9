"""Maps by hashes whose ids are put into other buckets: what each keeps, who is dropped, and what the new map reads."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import JaggedTensor

from emberline.train.features import TtlPolicy
from emberline.train.zch import BY_RANGE, FREE_ROW, FRESH, MIXED, HashedZchModule, WholeMap, owner_of

CPU = torch.device("cpu")
NUMBERS = ("hour", "counters")


def module(rows: int, buckets: int, routing: str, max_probe: int = 128) -> HashedZchModule:
    return HashedZchModule(
        name="t", rows=rows, buckets=buckets, device=CPU, routing=routing, max_probe=max_probe, eviction=TtlPolicy(hours=5), clock=lambda: 7
    )


def trained(rows: int, buckets: int, routing: str, ids: list[int]) -> tuple[HashedZchModule, WholeMap]:
    """A map that read each id as often as its place in the list says, and what a checkpoint has of it."""
    zch = module(rows, buckets, routing)
    for place, one in enumerate(ids):
        values = torch.tensor([one] * (place + 1))
        zch({"t": JaggedTensor(values=values, lengths=torch.tensor([len(values)]))})
    state = zch.state_for_checkpoint()
    state["last_seen_hour"] = torch.where(state["raw_ids"] == FREE_ROW, 0, state["counts"] % 3)
    entries = {name: value for name, value in state.items() if name not in NUMBERS}
    empty = torch.empty(0, dtype=torch.int64)
    return zch, WholeMap(entries, empty, empty, {name: state[name] for name in NUMBERS}, zch.ends, routing)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.integers(-(2**63), 2**63 - 2), st.integers(-20, 20)), unique=True, max_size=24),
    st.tuples(st.integers(8, 40), st.integers(2, 40)),
    st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4, 6])),
    st.tuples(st.sampled_from([MIXED, BY_RANGE]), st.sampled_from([MIXED, BY_RANGE])),
    st.integers(1, 9),
)
def test_every_id_that_finds_a_row_keeps_what_it_had(
    ids: list[int], rows: tuple[int, int], buckets: tuple[int, int], routings: tuple[str, str], max_probe: int
) -> None:
    before, whole = trained(rows[0], buckets[0], routings[0], ids)
    after = module(max(rows[1], 2 * buckets[1]), buckets[1], routings[1], max_probe)
    count = 2 if buckets[1] % 2 == 0 else 1
    ends = after.shard_ends(count)
    old = dict(zip(*(part.tolist() for part in before.owners()), strict=True))
    entries = {one: {name: int(values[row]) for name, values in whole.entries.items()} for one, row in old.items()}
    kept: dict[int, int] = {}
    dropped = 0
    totals = torch.zeros(4, dtype=torch.int64)
    for place in range(count):
        first, end = ends[place : place + 2]
        shard = after.rebuild_with_output_id_range((first, end), list(ends))
        new = shard.cut(whole)
        assert new.state.keys() == after.cut(whole, ends, place).state.keys()
        shard.load_state_from_checkpoint(new.state)
        own = dict(zip(*(part.tolist() for part in shard.owners()), strict=True))
        for one, row in own.items():
            assert int(new.sources[row - first]) == old[one]
            assert {name: int(new.state[name][row - first]) for name in ("counts", "last_seen_hour")} == {
                name: entries[one][name] for name in ("counts", "last_seen_hour")
            }
        assert int((new.sources != FRESH).sum()) == len(own)
        assert sorted(new.fallbacks) == [row - first for row in shard.fallback_rows]
        assert all(abs(sum(share for _, share in made_of) - 1) < 1e-9 for made_of in new.fallbacks.values())
        kept |= own
        dropped += new.dropped
        totals += new.state["counters"].sum(0)
    assert len(old) - len(kept) == dropped
    assert kept.keys() <= old.keys()
    assert totals.tolist() == list(vars(before.counters).values())
    for bucket in range(buckets[1]):  # with a slot for every id, and as many steps, who is left out is worth no more than any other of the bucket
        parts = owner_of(torch.tensor([*old], dtype=torch.int64), buckets[1], routings[1]).tolist()
        mine = [one for one, part in zip(old, parts, strict=True) if part == bucket]
        slots = after.ends[bucket + 1] - after.ends[bucket] - 1
        inside = [entries[one]["last_seen_hour"] for one in mine if one in kept]
        outside = [entries[one]["last_seen_hour"] for one in mine if one not in kept]
        if max_probe >= slots:
            assert len(inside) == min(slots, len(mine))
            assert not outside or max(outside) <= min(inside)


def test_buckets_with_the_same_ids_keep_their_counters() -> None:
    _, whole = trained(20, 4, MIXED, [5, 6, 7])
    after = module(40, 4, MIXED)
    assert torch.equal(after.cut(whole).state["counters"], whole.numbers["counters"])
    other = module(40, 2, MIXED).cut(whole).state["counters"]
    assert other.tolist() == [whole.numbers["counters"].sum(0).tolist(), [0] * 4]
