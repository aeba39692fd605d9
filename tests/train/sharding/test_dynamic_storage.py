"""What dynamic tables take, against the formulas by hand."""

import pytest
import torch
from torch import nn

from emberline.train.config.optimizer_configs import FusedAdagradConfig, FusedAdamConfig, FusedRowWiseAdagradConfig, FusedSgdConfig, SparseOptimizer
from emberline.train.dynamic.options import ZEROS, DynamicEmbOptions, FrequencyAdmission
from emberline.train.optim import apply_sparse_optimizer
from emberline.train.sharding.dynamic_storage import GrowthSizes, growth_sizes, local_rows, moments_of, row_bytes, tier_names


def weight(rows: int, dim: int, optimizer: SparseOptimizer | None = None, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    found = nn.Parameter(torch.empty(rows, dim, dtype=dtype, device="meta"))
    if optimizer is not None:
        apply_sparse_optimizer({"t": found}, optimizer)
    return found


def options(capacity: int, share: float | None = None, caching: bool = False, bucket: int = 128, threshold: int = 0) -> DynamicEmbOptions:
    admission = FrequencyAdmission(threshold=threshold, counter_capacity=500, counter_bucket_capacity=1000) if threshold else None
    return DynamicEmbOptions(
        max_capacity=capacity, initializer=ZEROS, cache_load_factor=share, caching=caching, bucket_capacity=bucket, admission=admission
    )


@pytest.mark.parametrize(
    ("optimizer", "moments", "width"),
    [
        (None, 0.0, 64),
        (FusedSgdConfig(lr=0.1), 0.0, 64),
        (FusedAdagradConfig(lr=0.1), 1.0, 128),
        (FusedRowWiseAdagradConfig(lr=0.1), 1 / 16, 80),  # 17 numbers are 68 bytes
        (FusedAdamConfig(lr=0.1), 2.0, 192),
    ],
)
def test_rows_have_their_moments_beside_them(optimizer: SparseOptimizer | None, moments: float, width: int) -> None:
    found = weight(10, 16, optimizer)
    assert moments_of(found) == moments
    assert row_bytes(16, torch.float32, moments, torch.float32) == width
    found.requires_grad_(False)
    assert moments_of(found) == 0.0


def test_rows_are_whole_16_bytes() -> None:
    assert [row_bytes(dim, torch.float16, 0.0, torch.float32) for dim in (1, 8, 9, 16)] == [16, 16, 32, 32]
    assert row_bytes(1, torch.float32, 2.0, torch.float32) == 16


def test_ranks_share_the_capacity() -> None:
    assert [local_rows(options(capacity), 4) for capacity in (1, 4, 5, 1000)] == [1, 1, 2, 250]


def test_bytes_are_as_by_hand() -> None:
    """1000 rows on 4 ranks: 250, up to 256 of 80 bytes; keys of 17 bytes and 4 for each bucket of 64."""
    values, keys = 256 * 80, 256 * 17 + 256 * 4 // 64
    table = weight(1000, 16, FusedRowWiseAdagradConfig(lr=0.1))
    assert growth_sizes(options(1000, bucket=64), table, 4, "cpu") == GrowthSizes(values=values, fast_values=values, keys=keys, slow=0)
    hybrid = growth_sizes(options(1000, 0.3, bucket=64), table, 4, "cpu")
    assert hybrid == GrowthSizes(values=values, fast_values=6144, keys=keys, slow=values - 6144)
    assert hybrid.fast == 6144 + keys
    caching = growth_sizes(options(1000, 0.3, caching=True, bucket=64), table, 4, "cpu")
    assert caching == GrowthSizes(values=values, fast_values=6144, keys=keys, slow=values)
    whole = growth_sizes(options(1000, 1.0, caching=True, bucket=64), table, 4, "cpu")
    assert whole == GrowthSizes(values=values, fast_values=values, keys=keys, slow=values)


def test_moments_of_half_floats_are_floats_on_cpus() -> None:
    """16 halfs, and two moments of 16: 32 + 128 bytes in our kernel, 32 + 64 in NVIDIA's."""
    table = weight(1000, 16, FusedAdamConfig(lr=0.1), torch.float16)
    assert [growth_sizes(options(1000), table, 1, device).values for device in ("cpu", "cuda")] == [1008 * 160, 1008 * 96]


def test_counters_of_ids_that_wait_are_keys_too() -> None:
    """500 counted ids on 4 ranks: 125 of 17.004 bytes, beside 16 rows of 17 + 4/128."""
    found = growth_sizes(options(10, threshold=3), weight(10, 4), 4, "cpu")
    assert found.keys == 2126 + 272  # 125 x 17.004 + 16 x 17.03125 = 2125.5 + 272.5


def test_what_is_behind_the_fast_memory() -> None:
    assert tier_names("cuda") == ("hbm", "ddr")
    assert tier_names("cpu") == ("ddr", "disk")
