"""How much memory a dynamic table takes on each rank, of the kind that is fast and of the one behind it.

    fast    share x values + rows x (key 8 + score 8 + digest 1 + 4 / bucket_capacity) + counter_rows x (17 + 4 / counter_bucket_capacity)
    behind  HYBRID: (1 - share) x values;  CACHING: values
    values  rows x (bytes of vector and moments, up to 16)

Moments are float32 on a CPU, where our kernel holds them, and of the table's type on a GPU, as NVIDIA's kernel has them.
Rows are a rank's part of `max_capacity`, up to 16. On a GPU the fast memory is its own, and the host's is behind it; on a CPU it is the host's, and
a file is behind it. Ids and vectors in flight are in the fast memory too, as of any table; they are counted elsewhere.
"""

import math
from dataclasses import dataclass

import torch
import torchrec.optim as row_optim
from torch import nn

from emberline.train.dynamic.options import DynamicEmbOptions

ALIGNMENT = 16
"""Rows of a rank, and bytes of a row, come in multiples of this."""
_KEY, _SCORE, _DIGEST, _BUCKET = 8, 8, 1, 4
_NUMBERS = {torch.optim.SGD: 0.0, row_optim.SGD: 0.0, torch.optim.Adam: 2.0, row_optim.Adam: 2.0}
"""Moments of each number of a vector; 1 of others. TorchRec's classes are none of PyTorch's."""
_TIERS = {"cuda": ("hbm", "ddr"), "cpu": ("ddr", "disk")}


@dataclass(frozen=True, kw_only=True)
class GrowthSizes:
    """A dynamic table's bytes on each rank, when it is full.

    Args:
        values: of vectors and moments.
        fast_values: of those in the fast tier, as `local_hbm_for_values` says it.
        keys: of keys, scores and the counter of ids that are not admitted yet: always in the fast tier.
        slow: of the second tier.
    """

    values: int
    fast_values: int
    keys: int
    slow: int

    @property
    def fast(self) -> int:
        """Of the fast tier."""
        return self.fast_values + self.keys


def local_rows(options: DynamicEmbOptions, world_size: int) -> int:
    """Most rows of each rank."""
    return -(-options.max_capacity // world_size)


def row_bytes(dim: int, dtype: torch.dtype, moments: float, moment_dtype: torch.dtype) -> int:
    """Bytes of a vector and its moments; `moments` are those of each number."""
    return _aligned(dim * dtype.itemsize + round(dim * moments) * moment_dtype.itemsize)


def moments_of(weight: nn.Parameter) -> float:
    """Moments of each number of a table's vectors, by the sparse optimiser that is on it; 0 where there is none, or the table is frozen."""
    kinds = getattr(weight, "_optimizer_classes", [None])
    if not weight.requires_grad or kinds[0] is None:
        return 0.0
    if kinds[0] is row_optim.RowWiseAdagrad:
        return 1.0 / weight.shape[1]
    return _NUMBERS.get(kinds[0], 1.0)


def growth_sizes(options: DynamicEmbOptions, weight: nn.Parameter, world_size: int, device: str) -> GrowthSizes:
    """The bytes of a table on each rank, by the `caching` and `cache_load_factor` of its options.

    Args:
        options: a choice of the planner, or what a config says; without a `cache_load_factor` all is in the fast tier.
        weight: the placeholder [max_capacity, dim], with the optimiser on it.
        world_size: ranks.
        device: `cpu` or `cuda`.
    """
    rows = _aligned(local_rows(options, world_size))
    values = rows * row_bytes(weight.shape[1], weight.dtype, moments_of(weight), torch.float32 if device == "cpu" else weight.dtype)
    share = 1.0 if options.cache_load_factor is None else options.cache_load_factor
    keys = rows * (_KEY + _SCORE + _DIGEST + _BUCKET / options.bucket_capacity)
    if options.admission is not None:
        counted = -(-options.admission.counter_capacity // world_size)
        keys += counted * (_KEY + _SCORE + _DIGEST + _BUCKET / options.admission.counter_bucket_capacity)
    fast = math.floor(share * values)
    return GrowthSizes(values=values, fast_values=fast, keys=math.ceil(keys), slow=values if options.caching else values - fast)


def tier_names(device: str) -> tuple[str, str]:
    """What the fast tier is on a device, and what is behind it."""
    return _TIERS[device]


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
