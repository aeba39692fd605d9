"""Saves a model as TorchEasyRec's job on several ranks does.

    python save_on_ranks.py FULL.pt LAYOUT.json WORLD_SIZE FOLDER

FULL.pt has the tensors whole; LAYOUT.json says of a name where its first dimension (`rows`) or its second (`columns`) is cut, or which
rank holds it (`rank`). Every other tensor is replicated.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.checkpoint.state_dict_saver import save


def blocks(tensor: Tensor, cut: dict[str, Any]) -> list[tuple[list[int], list[int], int]]:
    """Offsets, sizes and rank of each block."""
    whole = list(tensor.shape)
    if "rank" in cut:
        return [([0] * tensor.dim(), whole, cut["rank"])]
    dim = 0 if "rows" in cut else 1
    ends = [*cut["rows" if dim == 0 else "columns"], whole[dim]]
    found, begin = [], 0
    for rank, end in enumerate(ends):
        offsets, sizes = [0] * tensor.dim(), list(whole)
        offsets[dim], sizes[dim] = begin, end - begin
        found.append((offsets, sizes, rank))
        begin = end
    return found


def sharded(tensor: Tensor, cut: dict[str, Any], own: int) -> ShardedTensor:
    shards = [ShardMetadata(offsets, sizes, f"rank:{rank}/cpu") for offsets, sizes, rank in blocks(tensor, cut)]
    local = []
    for shard, (offsets, sizes, rank) in zip(shards, blocks(tensor, cut), strict=True):
        if rank == own:
            block = tensor
            for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
                block = block.narrow(dim, offset, size)
            local.append(Shard(block.clone(), shard))
    metadata = ShardedTensorMetadata(shards, tensor.size(), TensorProperties(dtype=tensor.dtype))
    return ShardedTensor._init_from_local_shards_and_global_metadata(local, metadata)


def save_rank(rank: int, world_size: int, full: str, layout: str, folder: str) -> None:
    """What one rank does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{layout}.store", world_size), rank=rank, world_size=world_size)  # type: ignore[attr-defined]
    cuts = json.loads(Path(layout).read_text())
    tensors = torch.load(full, weights_only=True)
    state = {name: sharded(tensor, cuts[name], rank) if name in cuts else tensor for name, tensor in tensors.items()}
    save(state, checkpoint_id=folder)
    dist.destroy_process_group()


def main(full: str, layout: str, world_size: str, folder: str) -> int:
    """Fork the ranks, since imports take longer than their work, and wait for them."""
    children = []
    for rank in range(int(world_size)):
        child = os.fork()
        if child == 0:
            try:
                save_rank(rank, int(world_size), full, layout, folder)
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
