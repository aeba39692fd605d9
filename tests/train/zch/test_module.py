"""The id map by itself: what it learns, what it never learns, and that a restored one goes on as if nothing had happened."""

import copy
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchrec.modules.mc_modules import LFU_EvictionPolicy, MCHManagedCollisionModule
from torchrec.sparse.jagged_tensor import JaggedTensor

from emberline.errors import CheckpointError
from emberline.train.config.functions import ThresholdFilterSpec
from emberline.train.features import DistanceLfuPolicy, LfuPolicy, LruPolicy, ZchConfig
from emberline.train.features.configs import EvictionPolicy
from emberline.train.zch import FREE_ROW, MIXED, ZchCounters, ZchModule, build_policy, remap_entries, zch_modules
from emberline.train.zch.routing import mix

CPU = torch.device("cpu")
POLICIES: list[EvictionPolicy] = [LfuPolicy(), LruPolicy(), LruPolicy(decay_exponent=2.0), DistanceLfuPolicy(), DistanceLfuPolicy(decay_exponent=0.5)]
ODD = [FREE_ROW, FREE_ROW - 1, -(2**63), -1, 0]


def module(rows: int = 8, interval: int = 1, policy: EvictionPolicy | None = None, only: str | None = None, history: int | None = None) -> ZchModule:
    spec = ThresholdFilterSpec.parse(only) if only is not None else None
    config = ZchConfig(zch_size=rows, eviction_interval=interval, eviction_policy=policy or LfuPolicy(), threshold_filtering_func=spec)
    return ZchModule(name="t", rows=rows, interval=interval, policy=build_policy(config), device=CPU, history=history)


def jagged(ids: Sequence[int], dtype: torch.dtype = torch.int64) -> dict[str, JaggedTensor]:
    return {"t": JaggedTensor(values=torch.tensor(ids, dtype=dtype), lengths=torch.tensor([len(ids)]))}


def read(zch: MCHManagedCollisionModule, ids: Sequence[int], dtype: torch.dtype = torch.int64) -> list[int]:
    """One forward: the rows of the ids."""
    rows: list[int] = zch(jagged(ids, dtype))["t"].values().tolist()
    return rows


def snapshot(zch: ZchModule) -> dict[str, Tensor]:
    return zch.state_for_checkpoint() | dict(zch.named_buffers())


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_ids_that_own_no_row_read_the_last_one() -> None:
    zch = module(rows=8)
    assert read(zch, [100, 200, 300]) == [4, 5, 6]
    assert zch.eval().fallback_row == 7
    assert read(zch, [300, 999, -5, 100]) == [6, 7, 7, 4]


def test_one_row_less_than_the_size_can_be_owned() -> None:
    zch = module(rows=4)
    for _ in range(3):
        read(zch, [1, 2, 3, 4, 5])
    assert sorted(read(zch.eval(), [1, 2, 3, 4, 5])) == [0, 1, 2, 3, 3]
    assert zch.rows_in_use == 3


def test_a_table_of_one_row_is_its_fallback() -> None:
    zch = module(rows=1)
    assert read(zch, [1, 2, FREE_ROW]) == [0, 0, 0]
    assert zch.rows_in_use == 0


@pytest.mark.parametrize("training", [True, False])
def test_the_marker_of_free_rows_is_an_unknown_id(training: bool) -> None:
    zch = module(rows=8)
    read(zch, [100, 200, 300])
    assert read(zch.train(training), [FREE_ROW])[0] == 7
    read(zch.train(), [FREE_ROW] * 50)
    assert zch.rows_in_use == 3
    assert zch.counters.dropped == 50 + training
    assert FREE_ROW not in remap_entries(zch)[0].tolist()
    assert not (zch._mch_counts[:-1] > 1 + training).any()


def test_odd_ids_get_rows_of_their_own() -> None:
    zch = module(rows=8)
    rows = read(zch, ODD)
    assert rows[0] == 7
    assert sorted(rows[1:]) == [3, 4, 5, 6]
    assert read(zch.eval(), ODD) == rows


def test_int32_ids_are_widened() -> None:
    zch = module(rows=8)
    assert read(zch, [100, 200], torch.int32) == read(zch.eval(), [100, 200])
    assert zch.rows_of(torch.tensor([200], dtype=torch.int32)).dtype == torch.int64


def test_ids_that_agree_in_their_low_bits_stay_apart() -> None:
    rows = read(module(rows=8), [5, 5 + 2**31 - 1, 5 + 2**32])
    assert len({*rows, 7}) == 4


@pytest.mark.parametrize("first", [[], [1]])
def test_a_small_first_batch_does_not_limit_what_is_learned(first: list[int]) -> None:
    zch = module(rows=64)
    read(zch, first)
    ids = list(range(1000, 1030))
    read(zch, ids)
    assert len({*read(zch.eval(), ids), 63}) == 31
    assert zch.counters == ZchCounters(seen=30 + len(first), admitted=30 + len(first), evicted=0, dropped=0)


def test_an_empty_first_batch_does_not_either() -> None:
    zch = module(rows=8)
    read(zch, [])
    for _ in range(5):
        read(zch, [1, 2, 3])
    assert len({*read(zch.eval(), [1, 2, 3]), 7}) == 4
    assert zch.counters == ZchCounters(seen=15, admitted=3, evicted=0, dropped=0)


def test_nothing_is_dropped_between_evictions() -> None:
    zch = module(rows=300, interval=50)
    for step in range(50):
        read(zch, range(step, step + 150))
    assert zch.rows_in_use == 199
    assert zch.counters.seen == 50 * 150


def test_a_history_of_a_given_size_drops_later_ids_and_counts_them() -> None:
    zch = module(rows=64, interval=2, history=5)
    read(zch, [1, 2, FREE_ROW, 3])
    read(zch, [4, 5, 6, 7])
    assert remap_entries(zch)[0].tolist() == [1, 2, 3, 4, 5]
    assert zch.counters == ZchCounters(seen=8, admitted=5, evicted=0, dropped=3)
    read(zch, [8, 9])  # the history is empty again
    read(zch, [])
    assert remap_entries(zch)[0].tolist() == [1, 2, 3, 4, 5, 8, 9]
    shard = module(rows=10, history=5).rebuild_with_output_id_range((4, 8), [0, 4, 8, 10])
    read(shard, [1, 2, 3])
    assert (remap_entries(shard)[0].tolist(), shard.counters.dropped) == ([1, 2], 1)


def test_a_shard_undoes_the_mixing_of_the_exchange() -> None:
    policy = build_policy(ZchConfig(zch_size=10, eviction_policy=LfuPolicy()))
    whole = ZchModule(name="t", rows=10, interval=1, policy=policy, device=CPU, routing=MIXED)
    shard = whole.rebuild_with_output_id_range((5, 10), [0, 5, 10])
    sent = mix(torch.tensor([700, -800, FREE_ROW]))
    rows = shard.remap(shard.profile(jagged(sent.tolist())))["t"].values().tolist()
    assert remap_entries(shard)[0].tolist() == [-800, 700]
    assert rows == shard.rows_of(torch.tensor([700, -800, FREE_ROW])).tolist() == [8, 7, 9]
    assert (shard.routing, shard.is_sent_mixed, whole.is_sent_mixed) == (MIXED, True, False)
    alone = whole.rebuild_with_output_id_range((0, 10), [0, 10])
    assert not alone.is_sent_mixed


@pytest.mark.parametrize("policy", POLICIES)
def test_eval_changes_nothing(policy: EvictionPolicy) -> None:
    zch = module(rows=8, policy=policy)
    for ids in ([1, 2, 3], [2, 3, 4], [5]):
        read(zch, ids)
    before = snapshot(zch)
    first = read(zch.eval(), [1, 2, 99])
    for start in range(300):
        read(zch, [start, -start, *ODD])
    assert same(snapshot(zch), before)
    assert read(zch, [1, 2, 99]) == first


def test_no_grad_does_not_stop_learning() -> None:
    zch = module(rows=8)
    with torch.no_grad():
        read(zch, [1, 2, 3])
    assert zch.rows_in_use == 3


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.integers(2, 9),
    st.integers(1, 4),
    st.lists(st.lists(st.integers(-3, 12), max_size=9), max_size=14),
)
def test_scores_and_order_are_torchrecs(policy: EvictionPolicy, rows: int, interval: int, steps: list[list[int]]) -> None:
    """The same map, step by step, as TorchRec's own module, whose history gets room by a large first batch that both read."""
    ours = module(rows=rows, interval=interval, policy=policy)
    theirs = MCHManagedCollisionModule(
        zch_size=rows, device=CPU, eviction_policy=ours._eviction_policy, eviction_interval=interval, output_global_offset=0
    )
    for ids in [[*range(12)] * 3, *steps]:
        expected = read(theirs, ids)
        assert read(ours, ids) == expected
        for name in ("_mch_sorted_raw_ids", "_mch_remapped_ids_mapping", *(f"_mch_{key}" for key in ours._mch_metadata)):
            assert torch.equal(ours.get_buffer(name), theirs.get_buffer(name)), name


def lfu_by_hand(steps: list[list[int]], rows: int) -> set[int]:
    """The owners after LFU with interval 1, by a dictionary; ties go to owners, then to smaller ids."""
    owned: dict[int, int] = {}
    for ids in steps:
        scores = [(owned.get(one, 0) + ids.count(one), one in owned, -one) for one in owned.keys() | set(ids)]
        owned = {-negated: count for count, _, negated in sorted(scores, reverse=True)[: rows - 1]}
    return set(owned)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8))
def test_lfu_keeps_the_most_frequent(rows: int, steps: list[list[int]]) -> None:
    zch = module(rows=rows)
    for ids in steps:
        read(zch, ids)
    assert set(remap_entries(zch)[0].tolist()) == lfu_by_hand(steps, rows)


def test_the_filter_keeps_rare_ids_out() -> None:
    zch = module(rows=8, only="average_threshold_filter")
    read(zch, [1, 1, 1, 1, 2])
    assert remap_entries(zch)[0].tolist() == [1]
    strict = module(rows=8, only="dynamic_threshold_filter,threshold_skew_multiplier=1.5")
    read(strict, [1, 1, 1, 1, 2, 3])  # 6 ids, 3 of them different: more than 2 * 1.5
    assert remap_entries(strict)[0].tolist() == [1]
    above = module(rows=8, only="lambda x: count_threshold_filter(x, 2)")
    read(above, [1, 1, 1, 2, 2])
    assert remap_entries(above)[0].tolist() == [1]
    for empty in (module(only="dynamic_threshold_filter"), module(only="average_threshold_filter"), module(policy=LruPolicy())):
        assert read(empty, []) == []


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_the_probabilistic_filter_at_its_ends(chance: float) -> None:
    zch = module(rows=8, only=f"probabilistic_threshold_filter,per_id_probability={chance}")
    read(zch, [1, 2, 3])
    assert zch.rows_in_use == 3 * int(chance)


def test_rows_that_change_owner_are_named_once() -> None:
    zch = module(rows=3)
    assert read(zch, [1, 2]) == [0, 1]
    assert zch.take_rows_to_reset() is None  # the rows were free
    assert read(zch, [9, 9, 9]) == [1, 1, 1]
    rows = zch.take_rows_to_reset()
    assert rows is not None
    assert rows.tolist() == [1]
    assert zch.take_rows_to_reset() is None
    assert zch.counters == ZchCounters(seen=5, admitted=3, evicted=1, dropped=0)


def test_a_shard_names_global_rows_and_resets_local_ones() -> None:
    shard = module(rows=10).rebuild_with_output_id_range((5, 10), [0, 5, 10])
    assert read(shard, [700, 800]) == [7, 8]
    assert (shard.fallback_row, shard.buckets(), shard.table) == (9, 2, "t")
    resets: list[list[int]] = []
    shard.reset_rows = lambda rows: resets.append(rows.tolist())
    read(shard, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4])
    assert sorted(resets[0]) == [2, 3]


def test_remap_entries_are_sorted_and_without_free_rows() -> None:
    zch = module(rows=8)
    read(zch, [30, -7, 10])
    ids, rows, starts, fallback = remap_entries(zch)
    assert ids.tolist() == [-7, 10, 30]
    assert rows.tolist() == read(zch.eval(), [-7, 10, 30])
    assert (starts.tolist(), fallback.tolist()) == ([-(2**63)], [7])
    empty = remap_entries(module())
    assert [part.tolist() for part in empty] == [[], [], [-(2**63)], [7]]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.integers(1, 4),
    st.lists(st.lists(st.sampled_from([*range(12), *ODD]), max_size=6), min_size=1, max_size=12),
    st.integers(0, 11),
)
def test_a_restored_module_goes_on_bit_equal(policy: EvictionPolicy, interval: int, steps: list[list[int]], cut: int) -> None:
    whole, first, second = (module(rows=6, interval=interval, policy=policy) for _ in range(3))
    for step, ids in enumerate(steps):
        read(whole, ids)
        if step < cut:
            read(first, ids)
    second.load_state_from_checkpoint(first.state_for_checkpoint())
    for ids in steps[cut:]:
        read(second, ids)
    if cut <= len(steps):
        assert same(second.state_for_checkpoint(), whole.state_for_checkpoint())
        assert second.counters == whole.counters


def test_a_checkpoint_is_a_copy() -> None:
    zch = module(rows=8, interval=3)
    read(zch, [1, 2])
    state = zch.state_for_checkpoint()
    kept = copy.deepcopy(state)
    other = module(rows=8, interval=3)
    other.load_state_from_checkpoint(state)
    for _ in range(4):
        read(zch, [3])
        read(other, [4])
    assert same(state, kept)


def test_states_that_do_not_fit_are_refused_by_name() -> None:
    state = module(rows=8).state_for_checkpoint()
    with pytest.raises(CheckpointError, match="table 't' has 9 ZCH rows, the checkpoint 8"):
        module(rows=9).load_state_from_checkpoint(state)
    with pytest.raises(CheckpointError, match=r"table 't' does not fit its policy: missing \['last_access_iter'\], surplus \['counts'\]"):
        module(rows=8, policy=LruPolicy()).load_state_from_checkpoint(state)
    with pytest.raises(CheckpointError, match="table 't' is damaged"):
        module(rows=8).load_state_from_checkpoint(state | {"counters": torch.zeros(3, dtype=torch.int64)})
    with pytest.raises(CheckpointError, match="table 't' is damaged"):
        module(rows=8).load_state_from_checkpoint(state | {"history_ids": torch.zeros(3, dtype=torch.int64)})


def test_a_plain_state_dict_keeps_the_map() -> None:
    zch, other = module(rows=8, interval=2), module(rows=8, interval=2)
    for ids in ([1, 2], [3, 1], [4]):
        read(zch, ids)
    other.load_state_dict(zch.state_dict())
    assert read(other.eval(), [1, 2, 3, 4]) == read(zch.eval(), [1, 2, 3, 4])
    with pytest.raises(CheckpointError, match=r"table 't' holds rows 0 to 8, but the loaded id map was cut at \[0, 16\]"):
        other.load_state_dict(zch.state_dict() | {"_output_segments_tensor": torch.tensor([0, 16] + [-1] * 1023)})


def test_modules_are_found_by_the_name_of_their_table() -> None:
    zch = module()
    assert zch_modules(torch.nn.ModuleDict({"x": zch, "y": torch.nn.Linear(1, 1)})) == {"t": zch}


def test_every_policy_of_a_config_is_built() -> None:
    names = [type(build_policy(ZchConfig(zch_size=2, eviction_policy=policy))).__name__ for policy in POLICIES]
    assert names == ["LFU_EvictionPolicy", "LRU_EvictionPolicy", "LRU_EvictionPolicy", "DistanceLFU_EvictionPolicy", "DistanceLFU_EvictionPolicy"]
    assert isinstance(module()._eviction_policy, LFU_EvictionPolicy)
