"""The id map of a ZCH table that W ranks trained, as one map.

Each rank's shard of the reference's buffers is sorted by raw id and ends with free places, the last of which belongs to the rank's fallback
row: what unknown ids read there. In one piece there is one fallback row, the table's last.

    rank 0: ids 11, 22, free, free, free       rows 2, 3, 0, 1, 4        one map: ids 11, 22, 700, 800, free x 6
    rank 1: ids 700, 800, free, free, free     rows 7, 8, 5, 6, 9                 rows 2, 3, 7, 8, 0, 1, 4, 5, 6, 9

Letters: Z rows of the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emberline.errors import CheckpointError
from emberline.train.interop.parts import ITERATION, METADATA_PREFIX, RAW_IDS, ROWS
from emberline.train.zch import FREE_ROW


@dataclass(frozen=True)
class IdMap:
    """One map.

    Args:
        state: as `ZchModule.load_state_from_checkpoint` takes it, with an empty history and counters at 0.
        num_ids: ids that own a row.
        freed: fallback rows of ranks other than the last, which are free rows from now on.
        num_repeated: places of ids that stood in several shards: the row of the highest count or latest access is kept, the other is free.
    """

    state: dict[str, Tensor]
    num_ids: int
    freed: tuple[int, ...] = ()
    num_repeated: int = 0


def assemble_id_map(table: str, buffers: Mapping[str, Tensor], rank_ends: Sequence[int] = ()) -> IdMap:
    """Make one map of the shards' buffers, laid end to end.

    Args:
        table: names it in errors.
        buffers: the reference's, by their names: raw ids, rows and what the policy counts, int64 [Z] each, and the iteration, int64 [1].
        rank_ends: the global row behind each rank's last; may be empty where the map was in one piece.

    Raises:
        CheckpointError: the rows are not each of 0 to Z - 1 once, or an id owns the fallback row.
    """
    buffers = {name: buffer.cpu() for name, buffer in buffers.items()}
    raw_ids, rows = buffers[RAW_IDS], buffers[ROWS]
    metadata = {name.removeprefix(METADATA_PREFIX): buffer for name, buffer in buffers.items() if name not in (RAW_IDS, ROWS, ITERATION)}
    fallback = rows.numel() - 1
    if not torch.equal(torch.sort(rows).values, torch.arange(rows.numel())):
        raise CheckpointError(f"the id map of table {table!r} is damaged: its rows must be each of 0 to {fallback} once")
    if bool((raw_ids[rows == fallback] != FREE_ROW).any()):
        raise CheckpointError(f"the id map of table {table!r} is damaged: an id owns row {fallback}, which unknown ids read")
    owned, repeated = _owners(raw_ids, metadata)
    taken = torch.zeros(rows.numel(), dtype=torch.bool)
    taken[owned] = True
    free = torch.nonzero(~taken & (rows != fallback)).flatten()
    last = torch.nonzero(rows == fallback).flatten()
    order = torch.cat([owned, free, last])
    is_free = slice(owned.numel(), owned.numel() + free.numel())
    state = {"raw_ids": raw_ids[order], "rows": rows[order], **{name: buffer[order] for name, buffer in metadata.items()}}
    state["raw_ids"][owned.numel() :] = FREE_ROW
    for name in metadata:
        state[name][is_free] = 0  # as of rows that nobody ever owned: other ranks' fallback rows carry a mark that keeps them for ever
    iteration = buffers[ITERATION].reshape(1)
    empty = torch.empty(0, dtype=torch.int64)
    state |= {"iteration": iteration, "last_eviction_iteration": iteration.clone(), "counters": torch.zeros(4, dtype=torch.int64)}
    state |= {"history_ids": empty, "history_iters": empty.clone()}
    freed = [end - 1 for end in rank_ends if end - 1 != fallback and not bool(taken[rows == end - 1])]
    return IdMap(state, owned.numel(), tuple(freed), repeated)


def _owners(raw_ids: Tensor, metadata: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    """The places of ids, ascending by id, each id once; and how many more places ids had."""
    places = torch.nonzero(raw_ids != FREE_ROW).flatten()
    for buffer in metadata.values():
        places = places[torch.argsort(buffer[places], descending=True, stable=True)]
    places = places[torch.argsort(raw_ids[places], stable=True)]
    ids = raw_ids[places]
    first = torch.ones(ids.numel(), dtype=torch.bool)
    first[1:] = ids[1:] != ids[:-1]
    return places[first], int((~first).sum())
