"""Which shard of a table a raw id belongs to, worked out ahead of the exchange of ids, to move ids between shards; see `emberline.routing`."""

import torch
from torch import Tensor

from emberline.routing import BY_RANGE, MIXED, ROUTINGS, mix, owner_of, range_size, unmix

__all__ = ["BY_RANGE", "MIXED", "ROUTINGS", "mix", "owner_of", "range_overlaps", "range_starts", "unmix"]
_ID_SPACE = 2**63 - 1


def range_starts(num_shards: int) -> Tensor:
    """The first place of each shard's range, int64 [num_shards]; the first is -2^63."""
    size = range_size(num_shards)
    return torch.tensor([-(2**63), *(shard * size for shard in range(1, num_shards))], dtype=torch.int64)


def range_overlaps(first: int, before: int, after: int) -> list[float]:
    """How much of one shard's range, of `after` shards, lies in the range of each of `before` shards; the sum is 1."""
    size, old = range_size(after), range_size(before)
    start, end = first * size, min((first + 1) * size, _ID_SPACE)
    shared = [max(0, min(end, (shard + 1) * old) - max(start, shard * old)) for shard in range(before)]
    return [part / sum(shared) for part in shared]
