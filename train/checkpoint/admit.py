"""Ids that are given rows of a ZCH table without having been read."""

import torch
from torch import Tensor

from emberline.train.zch import FREE_ROW, HashedZchModule, IdMap


def admit(module: IdMap, ids: Tensor) -> Tensor | None:
    """Give a row to each id that has none, as if training had met it once; ids that have one keep it, with what is known of them.

    Args:
        module: a shard's map.
        ids: int64 [N], ascending, each once, all of this shard, without 2^63-1.

    Returns:
        the row of each within the shard, int64 [N]; None where not all find one: the map is not to be used then.
    """
    if isinstance(module, HashedZchModule):
        module.admit(ids)
    elif not _admit_sorted(module, ids):
        return None
    rows, known = (found.cpu() for found in module.find(ids.to(module.device)))
    return rows - module.first_row if bool(known.all()) else None


def _admit_sorted(module: IdMap, ids: Tensor) -> bool:
    state = {name: value.cpu() for name, value in module.state_for_checkpoint().items()}
    taken = int((state["raw_ids"] != FREE_ROW).sum())
    new = ids[~torch.isin(ids, state["raw_ids"][:taken], assume_unique=True)]
    end = taken + len(new)
    if end > module.capacity:
        return False
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
    return True
