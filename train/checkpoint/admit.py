"""Ids that are given rows of a ZCH table without having been read."""

import torch
from torch import Tensor

from emberline.train.zch import FREE_ROW, ZchModule


def count_new(module: ZchModule, ids: Tensor) -> int:
    """How many of these ids, int64 [N], own no row; each comes once."""
    return int((module.rows_of(ids.to(module.device)) == module.fallback_row).sum())


def admit(module: ZchModule, ids: Tensor) -> Tensor:
    """Give a row to each id that has none, as if training had met it once; ids that have one keep it, with what is known of them.

    Args:
        module: a shard's map, with free rows enough.
        ids: int64 [N], ascending, each once, all of this shard.

    Returns:
        the row of each within the shard, int64 [N].
    """
    state = {name: value.cpu() for name, value in module.state_for_checkpoint().items()}
    taken = int((state["raw_ids"] != FREE_ROW).sum())
    new = ids[~torch.isin(ids, state["raw_ids"][:taken], assume_unique=True)]
    end = taken + len(new)
    assert end <= module.capacity
    state["raw_ids"][taken:end] = new
    if "counts" in state:
        state["counts"][taken:end] = 1
    if "last_access_iter" in state:
        state["last_access_iter"][taken:end] = state["iteration"]
    order = torch.argsort(state["raw_ids"][:end])
    for name in ("raw_ids", "rows", "counts", "last_access_iter"):
        if name in state:
            state[name][:end] = state[name][:end][order]
    module.load_state_from_checkpoint(state)
    return state["rows"][torch.searchsorted(state["raw_ids"][:end], ids)] - module.first_row
