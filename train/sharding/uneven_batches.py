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
from torchrec.distributed.sharding.grid_sharding import GridPooledEmbeddingDist
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingDist
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingDist


class _PaddedReduceScatter(nn.Module):
    """In front of TorchRec's own.

    Args:
        inner: which does the rest.
    """

    def __init__(self, inner: PooledEmbeddingsReduceScatter) -> None:
        super().__init__()
        self._inner = inner

    def forward(
        self,
        local_embs: Tensor,
        input_splits: Sequence[int] | None = None,
        *,
        batch_size_per_rank_per_feature: Sequence[Sequence[int]] | None = None,
        embedding_dims: Sequence[int] = (),
    ) -> Any:
        """Vectors [sum of rows, D] of all ranks' bags, of this rank's part of the table -> an awaitable of [own rows, D].

        Where features have different numbers of rows, the vectors are in one line, by rank and feature, and so are those that come.
        """
        if batch_size_per_rank_per_feature is not None:
            sizes = [sum(rows * dim for rows, dim in zip(own, embedding_dims, strict=True)) for own in batch_size_per_rank_per_feature]
            found: Any = self.forward(local_embs.view(-1, 1), sizes)
            found.callbacks.append(lambda vectors: vectors.view(-1))
            return found
        if not input_splits or len(set(input_splits)) == 1:
            return self._inner(local_embs, input_splits)
        longest, own = max(input_splits), input_splits[dist.get_rank(self._inner._pg)]
        parts = torch.split(local_embs, list(input_splits))
        padded = torch.cat([nn.functional.pad(part, (0, 0, 0, longest - len(part))) for part in parts])
        found = self._inner(padded)
        found.callbacks.append(lambda vectors: vectors[:own])
        return found


def allow_uneven_batches(sharded: nn.Module) -> None:
    """Let each rank of a sharded model on the CPU have any number of rows."""
    for part in [part for module in sharded.modules() for part in getattr(module, "_output_dists", ())]:  # lists, which hide them from `modules`
        if isinstance(part, RwPooledEmbeddingDist):
            part._create_output_dist_module()  # TorchRec's would do it with the first batch
            part._dist = _PaddedReduceScatter(part._dist)
        elif isinstance(part, TwRwPooledEmbeddingDist | GridPooledEmbeddingDist):
            part._create_output_dist_modules()
            part._intra_dist = _PaddedReduceScatter(part._intra_dist)
