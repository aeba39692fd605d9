"""Ranks with different numbers of rows, where tables are cut by rows: gloo's collectives want the same of everyone, NCCL's do not.

Bags that are summed over ranks are padded to the longest batch on the way, and cut again on the other side:

    rows of ranks 0, 1, 2     a a | b b b | c          on the way     a a . | b b b | c . .
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.dist_data import PooledEmbeddingsReduceScatter


class _PaddedReduceScatter(nn.Module):
    """In front of TorchRec's own.

    Args:
        inner: which does the rest.
    """

    def __init__(self, inner: PooledEmbeddingsReduceScatter) -> None:
        super().__init__()
        self._inner = inner

    def forward(self, local_embs: Tensor, input_splits: Sequence[int] | None = None) -> Any:
        """Vectors [sum of rows, D] of all ranks' bags, of this rank's part of the table -> an awaitable of [own rows, D]."""
        if not input_splits or len(set(input_splits)) == 1:
            return self._inner(local_embs, input_splits)
        longest, own = max(input_splits), input_splits[dist.get_rank(self._inner._pg)]
        parts = torch.split(local_embs, list(input_splits))
        padded = torch.cat([nn.functional.pad(part, (0, 0, 0, longest - len(part))) for part in parts])
        found: Any = self._inner(padded)
        found.callbacks.append(lambda vectors: vectors[:own])
        return found


def allow_uneven_batches(sharded: nn.Module) -> None:
    """Let each rank of a sharded model on the CPU have any number of rows, none included."""
    dists = [part for module in sharded.modules() for part in getattr(module, "_output_dists", ())]  # lists, which hide them from `modules`
    for part in [inner for one in dists for inner in one.modules()]:
        for name, child in list(part.named_children()):
            if type(child) is PooledEmbeddingsReduceScatter:
                setattr(part, name, _PaddedReduceScatter(child))
