"""Dynamic programming against trying everything."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.distributed.planner.types import Perf, Shard, ShardingOption, Storage, Topology

from emberline.train.sharding.proposer import Choices, MemoryProposer, cheapest_choices

Table = list[tuple[float, float, float]]


def choices_of(tables: list[Table]) -> Choices:
    parts = [[np.array([option[place] for option in table], dtype=np.float64) for table in tables] for place in range(3)]
    return Choices(cost=parts[0], hbm=parts[1], ddr=parts[2])


def every_choice(tables: list[Table]) -> list[tuple[float, float, float]]:
    return [tuple(np.sum(combination, axis=0).tolist()) for combination in product(*tables)]


def least_cost(tables: list[Table], hbm: float, ddr: float) -> float:
    return min((cost for cost, own_hbm, own_ddr in every_choice(tables) if own_hbm <= hbm and own_ddr <= ddr), default=float("inf"))


numbers = st.integers(0, 12).map(float)
options = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=4)
small = st.lists(options, min_size=1, max_size=5)


@settings(max_examples=120, deadline=None)
@given(small, st.integers(1, 30), st.integers(1, 30))
def test_with_a_bin_for_each_byte_nothing_is_lost(tables: list[Table], hbm: int, ddr: int) -> None:
    found, cost = cheapest_choices(choices_of(tables), hbm, ddr, bins=(hbm, ddr))
    every = [choice for choice in every_choice(tables) if choice[1] <= hbm and choice[2] <= ddr]
    best = {choice for choice in every if not any(other != choice and all(np.array(other) <= choice) for other in every)}
    totals = [tuple(np.sum([table[number] for table, number in zip(tables, choice, strict=True)], axis=0).tolist()) for choice in found]
    assert set(totals) == best
    assert len(totals) == len(best)
    assert [total[0] for total in totals] == cost.tolist() == sorted(cost.tolist())


@settings(max_examples=120, deadline=None)
@given(small, st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_coarse_bins_lose_a_bin_for_each_table_at_most(tables: list[Table], hbm: int, ddr: int, hbm_bins: int, ddr_bins: int) -> None:
    found, cost = cheapest_choices(choices_of(tables), hbm, ddr, bins=(hbm_bins, ddr_bins))
    for choice in found:
        total = np.sum([table[number] for table, number in zip(tables, choice, strict=True)], axis=0)
        assert total[1] <= hbm
        assert total[2] <= ddr
    lost = len(tables)
    bound = least_cost(tables, hbm - lost * hbm / hbm_bins, ddr - lost * ddr / ddr_bins)
    best = float(cost[0]) if len(found) else float("inf")
    assert least_cost(tables, hbm, ddr) <= best <= bound


def test_without_gpu_memory_the_host_decides() -> None:
    tables: list[Table] = [[(1.0, 0.0, 8.0), (3.0, 0.0, 2.0)], [(1.0, 0.0, 8.0), (4.0, 0.0, 2.0)]]
    found, cost = cheapest_choices(choices_of(tables), 0.0, 10.0, bins=(1, 256))
    assert (found, cost.tolist()) == ([[1, 0], [1, 1]], [4.0, 7.0])


def test_nothing_that_fits_is_nothing() -> None:
    found, cost = cheapest_choices(choices_of([[(1.0, 5.0, 0.0)], [(1.0, 5.0, 0.0)]]), 9.0, 9.0)
    assert (found, cost.tolist()) == ([], [])


def an_option(table: str, *shards: tuple[float, int, int]) -> Any:
    """Shards of cost, hbm, ddr."""

    class Option(ShardingOption):  # type: ignore[misc]
        def __init__(self) -> None:
            self.name = table
            self.shards = [Shard(size=[1, 1], offset=[0, 0], storage=Storage(hbm, ddr), perf=Perf(cost, 0, 0, 0)) for cost, hbm, ddr in shards]

        @property
        def fqn(self) -> str:
            return self.name

    return Option()


def all_proposals(proposer: MemoryProposer, topology: Topology) -> list[list[Any]]:
    found = []
    while (proposal := proposer.propose()) is not None:
        found.append(proposal)
        proposer.feedback(True, storage_constraint=topology)
    return found


@pytest.fixture
def topology() -> Topology:
    return Topology(world_size=2, compute_device="cuda", hbm_cap=10, ddr_cap=100)


def test_what_takes_least_comes_first_and_then_the_cheapest(topology: Topology) -> None:
    slow, fast, huge = an_option("a", (9.0, 0, 9)), an_option("a", (1.0, 9, 0)), an_option("a", (0.5, 11, 0))
    proposer = MemoryProposer()
    proposer.load([fast, huge, slow])
    assert all_proposals(proposer, topology)[:3] == [[slow], [fast], [slow]]


def test_a_bound_on_single_shards_finds_what_a_sum_does_not_see(topology: Topology) -> None:
    whole, halves = an_option("a", (10.0, 4, 0)), an_option("a", (6.0, 3, 0), (6.0, 3, 0))
    proposer = MemoryProposer()
    proposer.load([whole, halves])
    assert [halves] in all_proposals(proposer, topology)


def test_it_begins_anew_with_each_search_space(topology: Topology) -> None:
    proposer = MemoryProposer()
    for table in ("a", "b"):
        only = an_option(table, (1.0, 1, 0))
        proposer.load([only])
        proposals = all_proposals(proposer, topology)
        assert proposals
        assert all(proposal == [only] for proposal in proposals)


def test_a_table_that_fits_nowhere_leaves_nothing_but_the_first_try(topology: Topology) -> None:
    proposer = MemoryProposer()
    proposer.load([an_option("a", (1.0, 11, 0))])
    assert len(all_proposals(proposer, topology)) == 1
