"""Maps by hashes cut anew: ids put into other buckets, or into buckets of other sizes, and their vectors into other rows.

Other numbers of ranks need none of this, as ranks share whole buckets. Ids are put in by score, the best first; who finds all slots taken that it
may lie in is dropped.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from emberline.schema import INT64_MAX
from emberline.train.zch.probing import FREE, Ids, Slots, Ways, exchanged, insert
from emberline.train.zch.reshard import FRESH, NewShard, WholeMap, fallback_of
from emberline.train.zch.routing import owner_of

_TURNS = 256
"""Ids are put in by so many turns: within one, their order is that of their ways, not of their scores."""


def cut_hashed(whole: WholeMap, ends: Sequence[int], own: tuple[int, int], scores: Tensor, routing: str, max_probe: int) -> NewShard:
    """One shard of a new cut.

    Args:
        whole: the map.
        ends: the first row of each new bucket, and the end.
        own: the shard's first bucket, and the one behind its last.
        scores: what the id of each entry is worth, float64 [Z].
        routing: how ids find their bucket from now on.
        max_probe: slots that an id may lie in.
    """
    buckets = owner_of(whole.entries["raw_ids"], len(ends) - 1, routing)
    mine = ((whole.entries["raw_ids"] != INT64_MAX) & (buckets >= own[0]) & (buckets < own[1])).nonzero().flatten()
    mine = mine[torch.argsort(scores[mine], descending=True, stable=True)]
    entries = {name: values[mine] for name, values in whole.entries.items()}
    first_row, num_rows = ends[own[0]], ends[own[1]] - ends[own[0]]
    slot_ids = _place(entries["raw_ids"], buckets[mine] - own[0], [end - first_row for end in ends[own[0] : own[1] + 1]], max_probe)
    at, sources = _places(entries["raw_ids"], slot_ids), torch.full((num_rows,), FRESH)
    placed, at = (at >= 0).nonzero().flatten(), at[at >= 0]
    sources[at] = entries["rows"][placed]
    state = {name: torch.zeros(num_rows, dtype=torch.int64).index_put_((at,), values[placed]) for name, values in entries.items()}
    state |= {"raw_ids": exchanged(torch.from_numpy(slot_ids)), "rows": torch.arange(first_row, first_row + num_rows)}
    num_parts = len(ends) - 1
    fallbacks = {ends[part + 1] - 1 - first_row: fallback_of(whole, part, num_parts, routing) for part in range(*own)}
    return NewShard(state | _numbers(whole, num_parts, own, routing), sources, fallbacks, len(mine) - len(placed))


def _place(ids: Tensor, buckets: Tensor, ends: Sequence[int], max_probe: int) -> Ids:
    """Who has each slot of an empty map, int64 [Z], after ids [N], the best first, were put into buckets that begin at `ends`."""
    starts, sizes = np.array(ends[:-1]), np.array([end - first - 1 for first, end in pairwise(ends)])
    slots = Slots(np.full(ends[-1], FREE, dtype=np.int64), None)
    known, homes = exchanged(ids).numpy(), buckets.numpy()
    step = max(1, len(known) // _TURNS)
    for start in range(0, len(known), step):
        turn = slice(start, start + step)
        ways = Ways.of(known[turn], starts[homes[turn]], sizes[homes[turn]], max_probe)
        insert(slots, known[turn], ways, hour=0, kept_until=0, is_lru=False)
    return slots.ids


def _places(ids: Tensor, slot_ids: Ids) -> Tensor:
    """The slot of each id, or -1: int64 [N]."""
    order = np.argsort(slot_ids, kind="stable")
    known = exchanged(ids).numpy()
    found = np.searchsorted(slot_ids, known, sorter=order).clip(max=len(slot_ids) - 1)
    return torch.from_numpy(np.where(slot_ids[order[found]] == known, order[found], -1))


def _numbers(whole: WholeMap, num_parts: int, own: tuple[int, int], routing: str) -> dict[str, Tensor]:
    """The counters stay with their buckets where those have the same ids; else the first bucket gets their sums."""
    counters = whole.numbers["counters"]
    if (whole.num_parts, whole.routing) != (num_parts, routing):
        counters = torch.cat([counters.sum(0, keepdim=True), counters.new_zeros(num_parts - 1, counters.shape[1])])
    return {"hour": whole.numbers["hour"].max().repeat(own[1] - own[0]), "counters": counters[own[0] : own[1]]}
