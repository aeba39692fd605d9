"""From a ZCH config to TorchRec's scoring policy."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torchrec.modules.mc_modules import DistanceLFU_EvictionPolicy, LFU_EvictionPolicy, LRU_EvictionPolicy, MCHEvictionPolicy

from emberline.train.features.configs import DistanceLfuPolicy, LfuPolicy, LruPolicy, ZchConfig


def build_policy(config: ZchConfig) -> MCHEvictionPolicy:
    """The policy that scores ids: `count` (LFU), `-(now - last + 1) ** d` (LRU) or `count / (now - last + 1) ** d` (distance LFU)."""
    spec = config.threshold_filtering_func
    passes = spec.build() if spec is not None else None
    policy = config.eviction_policy
    if isinstance(policy, LruPolicy):
        return LRU_EvictionPolicy(decay_exponent=policy.decay_exponent, threshold_filtering_func=passes)
    if isinstance(policy, DistanceLfuPolicy):
        return DistanceLFU_EvictionPolicy(decay_exponent=policy.decay_exponent, threshold_filtering_func=passes)
    assert isinstance(policy, LfuPolicy)
    return LFU_EvictionPolicy(threshold_filtering_func=passes)


def scores(policy: MCHEvictionPolicy, metadata: Mapping[str, Tensor], iteration: int) -> Tensor:
    """What owners of rows are worth to a policy, float64 [N]; higher is better.

    Args:
        policy: one that `build_policy` made.
        metadata: `counts` and `last_access_iter`, int64 [N], where the policy keeps them.
        iteration: now.
    """
    if isinstance(policy, LFU_EvictionPolicy):
        return metadata["counts"].to(torch.float64)
    assert isinstance(policy, LRU_EvictionPolicy | DistanceLFU_EvictionPolicy)
    distances: Tensor = (iteration - metadata["last_access_iter"] + 1).to(torch.float64) ** policy._decay_exponent
    return -distances if isinstance(policy, LRU_EvictionPolicy) else metadata["counts"].to(torch.float64) / distances
