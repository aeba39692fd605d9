"""Which shard of a table a raw id belongs to: as TorchRec's exchange of ids decides it, worked out ahead, to move ids between shards."""

import numpy as np
import torch
from torch import Tensor

BY_RANGE = "range"
"""The one way to route ids so far: each shard has a range of ids, all of one size. A checkpoint names the way that it was trained with."""
_ID_SPACE = 2**63 - 1


def owner_of(ids: Tensor, num_shards: int) -> Tensor:
    """The shard of each id.

    Args:
        ids: int64 [N].
        num_shards: at least 1.

    Returns:
        int64 [N], from 0: the number of the range that the id is in. Negative ids, taken as unsigned, are in no range: theirs is the remainder.
    """
    size = _range_size(num_shards)
    unsigned = ids.cpu().numpy().view(np.uint64)
    in_range = unsigned < np.uint64(size * num_shards)
    owners = np.where(in_range, unsigned // np.uint64(size), unsigned % np.uint64(num_shards))
    return torch.from_numpy(owners.astype(np.int64)).to(ids.device)


def range_starts(num_shards: int) -> Tensor:
    """The first id of each shard's range, int64 [num_shards]; the first is -2^63."""
    size = _range_size(num_shards)
    return torch.tensor([-(2**63), *(shard * size for shard in range(1, num_shards))], dtype=torch.int64)


def range_overlaps(first: int, before: int, after: int) -> list[float]:
    """How much of one shard's range, of `after` shards, lies in the range of each of `before` shards; the sum is 1."""
    size, old = _range_size(after), _range_size(before)
    start, end = first * size, min((first + 1) * size, _ID_SPACE)
    shared = [max(0, min(end, (shard + 1) * old) - max(start, shard * old)) for shard in range(before)]
    return [part / sum(shared) for part in shared]


def _range_size(num_shards: int) -> int:
    return -(-_ID_SPACE // num_shards)
