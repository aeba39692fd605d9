"""From a ZCH config to TorchRec's scoring policy."""

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
