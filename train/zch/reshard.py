"""Id maps cut anew: from any number of shards to any other.

A shard owns the ids that are routed to it, and the rows that the planner gave it. With another number of shards, or another way of routing, ids
change shard, and with them their vectors move to other rows.

    3 shards   ids  0 ...... a ...... b ...... 2^63     rows  0 .. 4 .. 8 .. 12
    2 shards   ids  0 .......... c ........... 2^63     rows  0 .... 6 ..... 12

The last row of each shard is its fallback. So with more shards fewer ids fit, and ranges of ids may be unequally full: ids that do not fit are
dropped, those with the lowest score first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.modules.mc_modules import MCHEvictionPolicy

from emberline.errors import ConfigError
from emberline.schema import INT64_MAX
from emberline.train.zch.policies import scores
from emberline.train.zch.routing import owner_of, range_overlaps

FRESH = -1
"""In place of a row: it begins anew."""


@dataclass(frozen=True)
class WholeMap:
    """The id maps of all parts of a table, one after the other.

    Args:
        entries: `raw_ids`, `rows` and what the policy keeps of each id, all int64 [Z].
        history_ids: int64 [H]; empty for maps by hashes, which have none.
        history_iters: int64 [H].
        numbers: `counters` [S, 4]; of sorted maps `iteration` [S] and `last_eviction_iteration` [S], of maps by hashes `hour` [S]; int64.
        ends: the first row of each of the S parts, and the end.
        routing: how ids found their part.
    """

    entries: Mapping[str, Tensor]
    history_ids: Tensor
    history_iters: Tensor
    numbers: Mapping[str, Tensor]
    ends: tuple[int, ...]
    routing: str

    @property
    def num_parts(self) -> int:
        """S."""
        return len(self.ends) - 1


@dataclass(frozen=True)
class NewShard:
    """One shard of the new cut.

    Args:
        state: as `ZchModule.load_state_from_checkpoint` takes it.
        sources: for each of the shard's rows, the row that had its vector before, or `FRESH`.
        fallbacks: for each of the shard's own fallback rows, by its place in the shard, the rows that it is made of, and the share of each.
        dropped: ids that did not fit.
    """

    state: dict[str, Tensor]
    sources: Tensor
    fallbacks: Mapping[int, tuple[tuple[int, float], ...]]
    dropped: int


def cut_anew(whole: WholeMap, ends: Sequence[int], shard: int, policy: MCHEvictionPolicy, routing: str) -> NewShard:
    """One shard of a new cut.

    Args:
        whole: the map.
        ends: the first row of each new shard, and the end.
        shard: which one.
        policy: scores ids.
        routing: how ids find their shard from now on.
    """
    num_shards, first, end = len(ends) - 1, ends[shard], ends[shard + 1]
    entries = _owned(whole.entries, num_shards, shard, routing)
    order = torch.argsort(scores(policy, entries, int(whole.numbers["iteration"].max())), descending=True, stable=True)
    kept = order[: end - first - 1].sort().values
    dropped = len(order) - len(kept)
    entries = {name: values[kept] for name, values in entries.items()}
    rows = _place(entries["rows"], first, end)
    sources = torch.full((end - first,), FRESH)
    sources[rows - first] = entries["rows"]
    free = torch.ones(end - first, dtype=torch.bool)
    free[rows - first] = False
    others = free.nonzero().flatten() + first  # ascending, so that the fallback row is the last
    state = {name: torch.cat([values, torch.zeros(len(others), dtype=torch.int64)]) for name, values in entries.items()}
    state["raw_ids"][len(rows) :] = INT64_MAX
    state["rows"] = torch.cat([rows, others])
    state |= _history(whole, num_shards, shard, routing) | _numbers(whole.numbers, shard)
    return NewShard(state, sources, {end - first - 1: fallback_of(whole, shard, num_shards, routing)}, dropped)


def fallback_of(whole: WholeMap, part: int, num_parts: int, routing: str) -> tuple[tuple[int, float], ...]:
    """The fallback rows that the one of a new part is made of, of so many, and the share of each: how much of its ids read it."""
    shares = range_overlaps(part, whole.num_parts, num_parts) if routing == whole.routing else [1 / whole.num_parts] * whole.num_parts
    return tuple((whole.ends[old + 1] - 1, share) for old, share in enumerate(shares) if share > 0.0)


def block_ends(table: str, rows: int, world_size: int) -> tuple[int, ...]:
    """The rows where blocks of equal size begin, and the end; the last may be smaller.

    Raises:
        ConfigError: one would be empty.
    """
    size = -(-rows // world_size)
    if rows <= size * (world_size - 1):
        raise ConfigError(f"table {table!r}: {rows} rows cannot be cut into {world_size} equal blocks with none empty")
    return (*(shard * size for shard in range(world_size)), rows)


def _owned(entries: Mapping[str, Tensor], num_shards: int, shard: int, routing: str) -> dict[str, Tensor]:
    """The entries of ids that belong to a shard, by id."""
    ids = entries["raw_ids"]
    mine = ((ids != INT64_MAX) & (owner_of(ids, num_shards, routing) == shard)).nonzero().flatten()
    mine = mine[torch.argsort(ids[mine])]
    return {name: values[mine] for name, values in entries.items()}


def _place(rows: Tensor, first: int, end: int) -> Tensor:
    """A row within [first, end - 1) for each of these rows, which are distinct: the same, where it can be."""
    stays = (rows >= first) & (rows < end - 1)
    free = torch.ones(end - 1 - first, dtype=torch.bool)
    free[rows[stays] - first] = False
    placed = rows.clone()
    placed[~stays] = free.nonzero().flatten()[: int((~stays).sum())] + first
    return placed


def _history(whole: WholeMap, num_shards: int, shard: int, routing: str) -> dict[str, Tensor]:
    mine = owner_of(whole.history_ids, num_shards, routing) == shard
    ids, iters = whole.history_ids[mine], whole.history_iters[mine]
    order = torch.argsort(iters, stable=True)
    return {"history_ids": ids[order], "history_iters": iters[order]}


def numbers_of_all(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The numbers of all shards of a sorted map as those of one: the iterations, which all share, and the sums of the counters.

    Args:
        numbers: as `WholeMap` has them.
    """
    found = {name: numbers[name].max().reshape(1) for name in ("iteration", "last_eviction_iteration")}
    return {**found, "counters": numbers["counters"].sum(0)}


def _numbers(numbers: Mapping[str, Tensor], shard: int) -> dict[str, Tensor]:
    """The sums of the counters go to the first shard."""
    found = numbers_of_all(numbers)
    return found if shard == 0 else {**found, "counters": torch.zeros_like(found["counters"])}
