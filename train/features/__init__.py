"""Features: what a config says about them, and what training reads (`Feature`), checked and complete.

`configs`, `family_configs` and `sequence_configs` have the dataclasses; `create` builds features from them, by the modules of their families.
"""

from emberline.train.features.configs import (
    AutoDisConfig,
    ComboFeatureConfig,
    DistanceLfuPolicy,
    DynamicEmbConfig,
    DynamicEmbFrequencyAdmissionConfig,
    DynamicEmbInitializerConfig,
    EmbeddingConstraints,
    IdFeatureConfig,
    LfuPolicy,
    LruPolicy,
    MlpEmbeddingConfig,
    RawFeatureConfig,
    TtlPolicy,
    ZchConfig,
)
from emberline.train.features.create import create_features
from emberline.train.features.family_configs import (
    BoolMaskFeatureConfig,
    CombineFeatureConfig,
    CustomFeatureConfig,
    ExprFeatureConfig,
    KvDotProductFeatureConfig,
    LookupFeatureConfig,
    MatchFeatureConfig,
    OverlapFeatureConfig,
    TokenizeFeatureConfig,
)
from emberline.train.features.feature import BASE_DATA_GROUP, CROSS_NEG_DATA_GROUP, NEG_DATA_GROUP, Feature, Side
from emberline.train.features.sequence_configs import AloneSequenceConfig, FamilyConfig, FeatureConfig, SequenceFeatureConfig

__all__ = [
    "BASE_DATA_GROUP",
    "CROSS_NEG_DATA_GROUP",
    "NEG_DATA_GROUP",
    "AloneSequenceConfig",
    "AutoDisConfig",
    "BoolMaskFeatureConfig",
    "CombineFeatureConfig",
    "ComboFeatureConfig",
    "CustomFeatureConfig",
    "DistanceLfuPolicy",
    "DynamicEmbConfig",
    "DynamicEmbFrequencyAdmissionConfig",
    "DynamicEmbInitializerConfig",
    "EmbeddingConstraints",
    "ExprFeatureConfig",
    "FamilyConfig",
    "Feature",
    "FeatureConfig",
    "IdFeatureConfig",
    "KvDotProductFeatureConfig",
    "LfuPolicy",
    "LookupFeatureConfig",
    "LruPolicy",
    "MatchFeatureConfig",
    "MlpEmbeddingConfig",
    "OverlapFeatureConfig",
    "RawFeatureConfig",
    "SequenceFeatureConfig",
    "Side",
    "TokenizeFeatureConfig",
    "TtlPolicy",
    "ZchConfig",
    "create_features",
]
