"""Which combinations of options are worth trying: the cheapest ones under a budget of GPU and host memory, by dynamic programming.

One option is chosen for each table so that the sum of all costs is least, while the sums of memory stay within what all ranks have together.
Whether the shards of such a choice really fit on the ranks, and what the slowest rank then costs, is for the partitioner to say: so several
choices are proposed. Some leave memory unused, which is easier to pack; some do without options whose single shards are slow, since a sum does
not see that one rank has to do all of it.

Memory is cut into bins so that the number of partial choices stays bounded. Each bin keeps its cheapest partial choice with the memory that it
really takes, so nothing that exceeds the budget is ever proposed; what is lost to rounding is at most one bin's memory for each table.

Letters: S partial choices that are kept, K options of one table.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torchrec.distributed.planner.types import Enumerator, Proposer, ShardingOption, Topology

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
HBM_BINS, DDR_BINS = 256, 32
MOST_PROPOSALS = 24
"""Choices tried for each bound on single shards."""
_SHARD_BOUNDS = 8
"""Bounds on the cost of single shards that are tried, each 0.7 of the one before."""


@dataclass(frozen=True)
class Choices:
    """What each table's options cost and take.

    Args:
        cost: summed over the shards, by table, K each.
        hbm: bytes, likewise.
        ddr: bytes, likewise.
    """

    cost: Sequence[Floats]
    hbm: Sequence[Floats]
    ddr: Sequence[Floats]


def cheapest_choices(choices: Choices, hbm: float, ddr: float, bins: tuple[int, int] = (HBM_BINS, DDR_BINS)) -> tuple[list[list[int]], Floats]:
    """The choices that are no worse in cost, GPU and host memory all at once than another one, cheapest first.

    Args:
        choices: at least one option for each table.
        hbm: GPU memory of all ranks together, in bytes.
        ddr: host memory, likewise.
        bins: that GPU and host memory are cut into.

    Returns:
        the option's number for each table, for each choice; and each choice's cost. Both empty where nothing is within the budget.
    """
    cost, memory = np.zeros(1), np.zeros((1, 2))
    budget, sizes = np.array([hbm, ddr]), np.array([hbm / bins[0], ddr / bins[1]])
    steps: list[tuple[Ints, Ints]] = []
    for own_cost, own_hbm, own_ddr in zip(choices.cost, choices.hbm, choices.ddr, strict=True):
        own = np.stack([own_hbm, own_ddr], axis=1)
        all_cost = (cost[:, None] + own_cost[None, :]).ravel()
        all_memory = (memory[:, None, :] + own[None, :, :]).reshape(-1, 2)
        fits = np.flatnonzero((all_memory <= budget).all(axis=1))
        kept = fits[_thin(all_cost[fits], all_memory[fits], sizes)]
        cost, memory = all_cost[kept], all_memory[kept]
        steps.append((kept // len(own_cost), kept % len(own_cost)))
    order = np.argsort(cost, kind="stable")
    return [_trace(steps, int(last)) for last in order], cost[order]


def _thin(cost: Floats, memory: Floats, sizes: Floats) -> Ints:
    """Which partial choices are kept, cheapest first: of each bin the cheapest, unless a cheaper one elsewhere takes no more of either memory."""
    order = np.lexsort((memory[:, 1], memory[:, 0], cost))
    with np.errstate(divide="ignore", invalid="ignore"):
        bins = np.nan_to_num(np.floor(memory[order] / sizes), nan=0.0, posinf=0.0).astype(np.int64)
    _, first = np.unique(bins[:, 0] * (bins[:, 1].max(initial=0) + 1) + bins[:, 1], return_index=True)
    first.sort()
    kept: Ints = order[first[_undominated(memory[order[first]])]]
    return kept


def _undominated(memory: Floats) -> list[int]:
    """Which entries of `memory` [S, 2], GPU and host bytes, cheapest first, have no cheaper one that needs no more of both."""
    # The undominated entries so far as stairs: GPU bytes ascend, host bytes descend.
    hbms, ddrs = [-np.inf], [np.inf]
    found = []
    for number, (hbm, ddr) in enumerate(memory.tolist()):
        place = bisect_right(hbms, hbm)
        if ddrs[place - 1] <= ddr:
            continue
        found.append(number)
        end = place
        while end < len(ddrs) and ddrs[end] >= ddr:
            end += 1
        hbms[place:end], ddrs[place:end] = [hbm], [ddr]
    return found


def _trace(steps: Sequence[tuple[Ints, Ints]], last: int) -> list[int]:
    """The options that led to a choice, from the last table back to the first."""
    found = []
    for parents, options in reversed(steps):
        found.append(int(options[last]))
        last = int(parents[last])
    return found[::-1]


class MemoryProposer(Proposer):  # type: ignore[misc]
    """Proposes the choices of `cheapest_choices`, under several bounds on the cost of single shards."""

    def __init__(self) -> None:
        self._tables: list[list[ShardingOption]] = []
        self._proposals: Iterator[list[ShardingOption]] | None = None
        self._next: list[ShardingOption] | None = None

    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:
        """Begin anew with these options."""
        by_table: dict[str, list[ShardingOption]] = {}
        for option in search_space:
            by_table.setdefault(option.fqn, []).append(option)
        self._tables = list(by_table.values())
        self._proposals = None
        # Until the budget is known: what takes least.
        self._next = [min(options, key=lambda option: _memory(option)) for options in self._tables]

    def propose(self) -> list[ShardingOption] | None:
        """The next choice, or None at the end."""
        return self._next

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        """Go on to the next choice; the first call tells what memory there is."""
        if self._proposals is None:
            assert storage_constraint is not None
            self._proposals = self._choose(storage_constraint)
        self._next = next(self._proposals, None)

    def _choose(self, topology: Topology) -> Iterator[list[ShardingOption]]:
        hbm = float(sum(device.storage.hbm for device in topology.devices))
        ddr = float(sum(device.storage.ddr for device in topology.devices))
        largest = (max(device.storage.hbm for device in topology.devices), max(device.storage.ddr for device in topology.devices))
        tables = [[option for option in options if _fits_somewhere(option, largest)] for options in self._tables]
        for bound in _shard_bounds(tables):
            bounded = [[option for option in options if _slowest(option) <= bound] for options in tables]
            if not all(bounded):
                return
            found, _ = cheapest_choices(_choices(bounded), hbm, ddr, bins=(HBM_BINS, DDR_BINS) if hbm else (1, HBM_BINS))
            for place in sorted({round(place) for place in np.linspace(0, len(found) - 1, min(len(found), MOST_PROPOSALS))}):
                yield [options[number] for options, number in zip(bounded, found[place], strict=True)]


def _choices(tables: Sequence[Sequence[ShardingOption]]) -> Choices:
    totals = [[option.total_storage for option in options] for options in tables]
    return Choices(
        cost=[np.array([option.total_perf for option in options]) for options in tables],
        hbm=[np.array([float(storage.hbm) for storage in own]) for own in totals],
        ddr=[np.array([float(storage.ddr) for storage in own]) for own in totals],
    )


def _memory(option: ShardingOption) -> tuple[int, int]:
    storage = option.total_storage
    return storage.hbm, storage.ddr


def _slowest(option: ShardingOption) -> float:
    return float(max(shard.perf.total for shard in option.shards))


def _fits_somewhere(option: ShardingOption, largest: tuple[int, int]) -> bool:
    return all(shard.storage.hbm <= largest[0] and shard.storage.ddr <= largest[1] for shard in option.shards)


def _shard_bounds(tables: Sequence[Sequence[ShardingOption]]) -> Iterator[float]:
    """No bound; then bounds that shrink from the slowest shard among the tables' cheapest options."""
    if not all(tables):
        return
    yield float("inf")
    bound = max(_slowest(min(options, key=lambda option: option.total_perf)) for options in tables)
    for _ in range(_SHARD_BOUNDS):
        bound *= 0.7
        yield bound
