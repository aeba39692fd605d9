"""Id maps cut anew: every id keeps its row's content, its counts and its last access, and goes where it will be looked for."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.errors import CheckpointError
from emberline.train.features import DistanceLfuPolicy, LfuPolicy, LruPolicy, ZchConfig
from emberline.train.zch import BY_RANGE, FREE_ROW, FRESH, MIXED, WholeMap, ZchModule, build_policy, cut_anew, owner_of, remap_entries
from emberline.train.zch.policies import scores
from emberline.train.zch.reshard import NewShard
from emberline.train.zch.routing import ROUTINGS, range_overlaps, range_starts

IDS = st.one_of(st.integers(-(2**63), 2**63 - 2), st.integers(-5, 40), st.sampled_from([2**62 - 1, 2**62, -(2**63), 2**63 - 2]))


def scored_by(policy: DistanceLfuPolicy | LfuPolicy | LruPolicy) -> Any:
    return build_policy(ZchConfig(zch_size=4, eviction_interval=1, eviction_policy=policy))


def ends_of(rows: int, shards: int) -> list[int]:
    """As row_wise cuts a table."""
    size = -(-rows // shards)
    return [min(shard * size, rows) for shard in range(shards)] + [rows]


def make_whole(ids: Sequence[int], rows: int, shards: int, seed: int, routing: str = BY_RANGE) -> WholeMap:
    """A map of these ids as training on so many shards could have left it; ids of full shards are left out."""
    generator = torch.Generator().manual_seed(seed)
    ends = ends_of(rows, shards)
    owners = owner_of(torch.tensor(ids, dtype=torch.int64), shards, routing).tolist()
    parts: dict[str, list[Tensor]] = {"raw_ids": [], "rows": [], "counts": [], "last_access_iter": []}
    for shard in range(shards):
        size = ends[shard + 1] - ends[shard]
        own = sorted(one for one, owner in zip(ids, owners, strict=True) if owner == shard)[: size - 1]
        order = torch.cat([torch.randperm(size - 1, generator=generator), torch.tensor([size - 1])]) + ends[shard]
        used = torch.randint(1, 9, (2, size), generator=generator)
        used[:, len(own) :] = 0
        parts["raw_ids"].append(torch.tensor(own + [FREE_ROW] * (size - len(own))))
        parts["rows"].append(order)
        parts["counts"].append(used[0])
        parts["last_access_iter"].append(used[1])
    history = torch.tensor(ids[:7], dtype=torch.int64)
    numbers = {
        "iteration": torch.full((shards,), 9),
        "last_eviction_iteration": torch.full((shards,), 8),
        "counters": torch.arange(shards * 4).view(shards, 4),
    }
    return WholeMap({name: torch.cat(part) for name, part in parts.items()}, history, torch.arange(len(history)) // 3, numbers, tuple(ends), routing)


def kept(shards: Sequence[NewShard]) -> dict[int, tuple[int, int, int]]:
    """Id -> the row that it had, counts, last access."""
    found = {}
    for shard in shards:
        state, first = shard.state, int(shard.state["rows"].min())
        for raw, row, count, last in zip(*(state[name].tolist() for name in ("raw_ids", "rows", "counts", "last_access_iter")), strict=True):
            if raw != FREE_ROW:
                assert raw not in found
                found[raw] = (int(shard.sources[row - first]), count, last)
    return found


def before(whole: WholeMap) -> dict[int, tuple[int, int, int]]:
    names = ("raw_ids", "rows", "counts", "last_access_iter")
    return {
        raw: (row, count, last) for raw, row, count, last in zip(*(whole.entries[name].tolist() for name in names), strict=True) if raw != FREE_ROW
    }


@settings(max_examples=120, deadline=None)
@given(
    ids=st.lists(IDS, unique=True, max_size=30),
    rows=st.integers(8, 40),
    old=st.integers(1, 4),
    new=st.integers(1, 4),
    seed=st.integers(0, 99),
    ways=st.tuples(st.sampled_from(ROUTINGS), st.sampled_from(ROUTINGS)),
)
def test_every_id_keeps_what_it_had_and_is_found(ids: list[int], rows: int, old: int, new: int, seed: int, ways: tuple[str, str]) -> None:
    ends = ends_of(rows, new)
    if any(end - first < 1 for cut in (ends, ends_of(rows, old)) for first, end in itertools.pairwise(cut)):
        return
    whole = make_whole(ids, rows, old, seed, ways[0])
    policy, now = scored_by(DistanceLfuPolicy()), ways[1]
    shards = [cut_anew(whole, ends, shard, policy, now) for shard in range(new)]
    found, wanted = kept(shards), before(whole)
    assert all(wanted[raw] == entry for raw, entry in found.items())
    assert len(found) + sum(shard.dropped for shard in shards) == len(wanted)
    for place, shard in enumerate(shards):
        state, size = shard.state, ends[place + 1] - ends[place]
        own = state["raw_ids"][state["raw_ids"] != FREE_ROW]
        assert owner_of(own, new, now).eq(place).all()
        assert torch.equal(own, own.sort().values)
        assert sorted(state["rows"].tolist()) == list(range(ends[place], ends[place + 1]))
        assert (state["rows"][-1].item(), state["raw_ids"][-1].item()) == (ends[place + 1] - 1, FREE_ROW)
        assert len(shard.sources) == size
        assert int((shard.sources != FRESH).sum()) == len(own)
        meant = [raw for raw in wanted if owner_of(torch.tensor([raw]), new, now).item() == place]
        assert shard.dropped == max(0, len(meant) - (size - 1))
        lost = [raw for raw in meant if raw not in found]
        values = {raw: wanted[raw][1] / (9 - wanted[raw][2] + 1) for raw in meant}
        assert all(values[raw] <= min(values[one] for one in meant if one in found) for raw in lost if len(lost) < len(meant))
        assert {at: sum(share for _, share in made_of) for at, made_of in shard.fallbacks.items()} == {size - 1: pytest.approx(1.0)}
        history = shard.state["history_ids"].tolist()
        assert sorted(history) == sorted(raw for raw in whole.history_ids.tolist() if owner_of(torch.tensor([raw]), new, now).item() == place)
        assert state["history_iters"].tolist() == sorted(state["history_iters"].tolist())
    counters = torch.stack([shard.state["counters"] for shard in shards]).sum(0)
    assert torch.equal(counters, whole.numbers["counters"].sum(0))
    assert all((shard.state["iteration"].item(), shard.state["last_eviction_iteration"].item()) == (9, 8) for shard in shards)


@settings(max_examples=40, deadline=None)
@given(ids=st.lists(IDS, unique=True, max_size=30), old=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_new_shard_is_a_map_that_finds_its_ids(ids: list[int], old: int, seed: int) -> None:
    whole = make_whole(ids, 24, old, seed)
    new = 3
    ends = ends_of(24, new)
    for place in range(new):
        shard = cut_anew(whole, ends, place, scored_by(DistanceLfuPolicy()), MIXED)
        module = ZchModule(
            name="t",
            rows=ends[place + 1] - ends[place],
            interval=1,
            policy=scored_by(DistanceLfuPolicy()),
            device=torch.device("cpu"),
            first_row=ends[place],
            segments=ends,
        )
        module.load_state_from_checkpoint(shard.state)
        for raw, (row, _, _) in kept([shard]).items():
            (found,) = module.rows_of(torch.tensor([raw])).tolist()
            assert shard.sources[found - ends[place]].item() == row
        assert module.rows_of(torch.tensor([FREE_ROW])).tolist() == [ends[place + 1] - 1]


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(IDS, unique=True, max_size=30),
    others=st.lists(IDS, max_size=20),
    old=st.integers(1, 4),
    seed=st.integers(0, 99),
    way=st.sampled_from(ROUTINGS),
)
def test_read_as_one_all_ids_read_what_they_read_before(ids: list[int], others: list[int], old: int, seed: int, way: str) -> None:
    whole = make_whole(ids, 24, old, seed, way)
    policy = scored_by(DistanceLfuPolicy())
    module = ZchModule(name="t", rows=24, interval=1, policy=policy, device=torch.device("cpu"))
    state = {**whole.entries, "history_ids": whole.history_ids, "history_iters": whole.history_iters, "counters": torch.zeros(4, dtype=torch.int64)}
    state |= {name: whole.numbers[name][:1] for name in ("iteration", "last_eviction_iteration")}
    module.read_as_one(state, [end - 1 for end in whole.ends[1:]], way)
    rows = {raw: row for raw, (row, _, _) in before(whole).items()}
    for raw in [*ids, *others]:
        owner = owner_of(torch.tensor([raw]), old, way).item()
        assert module.rows_of(torch.tensor([raw])).tolist() == [rows.get(raw, whole.ends[int(owner) + 1] - 1)]


def test_the_lowest_scores_are_dropped() -> None:
    raw = torch.tensor([1, 2, 3, 4, 5, FREE_ROW])
    entries = {"raw_ids": raw, "rows": torch.arange(6), "counts": torch.tensor([5, 1, 4, 2, 3, 0])}
    numbers = {"iteration": torch.tensor([9]), "last_eviction_iteration": torch.tensor([9]), "counters": torch.zeros(1, 4, dtype=torch.int64)}
    empty = torch.zeros(0, dtype=torch.int64)
    whole = WholeMap(entries, empty, empty, numbers, (0, 6), BY_RANGE)
    policy = scored_by(LfuPolicy())
    first, second = (cut_anew(whole, (0, 3, 6), shard, policy, BY_RANGE) for shard in range(2))
    assert (first.state["raw_ids"].tolist(), first.state["counts"].tolist(), first.dropped) == ([1, 3, FREE_ROW], [5, 4, 0], 3)
    assert first.sources.tolist() == [0, 2, FRESH]
    assert (second.state["raw_ids"].eq(FREE_ROW).all().item(), second.dropped) == (True, 0)
    assert (first.fallbacks, second.fallbacks) == ({2: ((5, 1.0),)}, {2: ((5, 1.0),)})


def test_scores_are_those_of_the_policies() -> None:
    metadata = {"counts": torch.tensor([4, 6, 1]), "last_access_iter": torch.tensor([1, 8, 9])}
    assert scores(scored_by(LfuPolicy()), metadata, 9).tolist() == [4.0, 6.0, 1.0]
    assert scores(scored_by(LruPolicy(decay_exponent=2.0)), metadata, 9).tolist() == [-81.0, -4.0, -1.0]
    assert scores(scored_by(DistanceLfuPolicy(decay_exponent=1.0)), metadata, 9).tolist() == [4 / 9, 3.0, 1.0]


def test_ranges_begin_and_overlap_as_ids_are_routed() -> None:
    for shards in (1, 2, 3, 4, 7):
        starts = range_starts(shards)
        assert owner_of(starts[1:], shards, BY_RANGE).tolist() == list(range(1, shards))
        assert owner_of(starts[1:] - 1, shards, BY_RANGE).tolist() == list(range(shards - 1))
    assert range_overlaps(0, 1, 3) == [1.0]
    assert range_overlaps(0, 2, 1) == pytest.approx([0.5, 0.5])
    assert range_overlaps(1, 2, 3) == pytest.approx([0.5, 0.5])
    assert range_overlaps(1, 4, 2) == pytest.approx([0.0, 0.0, 0.5, 0.5])


def test_what_serving_gets_of_several_shards() -> None:
    """Ten rows on two ranks: real ids only, sorted as a whole, each with its row, and a fallback row for each range of ids."""
    module = ZchModule(name="t", rows=10, interval=1, policy=scored_by(LfuPolicy()), device=torch.device("cpu"))
    raw = [11, 22, FREE_ROW, FREE_ROW, FREE_ROW, 2**62 + 700, 2**62 + 800, FREE_ROW, FREE_ROW, FREE_ROW]
    state = module.state_for_checkpoint() | {"raw_ids": torch.tensor(raw), "rows": torch.tensor([2, 3, 0, 1, 4, 7, 8, 5, 6, 9])}
    module.read_as_one(state, [4, 9], BY_RANGE)
    ids, rows, starts, fallbacks = remap_entries(module)
    assert (ids.tolist(), rows.tolist()) == ([11, 22, 2**62 + 700, 2**62 + 800], [2, 3, 7, 8])
    assert (starts.tolist(), fallbacks.tolist()) == ([-(2**63), 2**62], [4, 9])
    assert module.rows_of(torch.tensor([22, 23, 2**62 - 1, 2**62, 2**62 + 800])).tolist() == [3, 4, 4, 9, 8]
    module.train()
    with pytest.raises(CheckpointError, match="table 't' was trained as 2 shards; read as one, its id map cannot learn"):
        module.profile({})
    module.load_state_from_checkpoint(state | {"raw_ids": torch.tensor(raw).sort().values})
    assert module.fallback_rows == (9,)
