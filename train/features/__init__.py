"""Features: what a config says about them (`configs`), and what training reads (`Feature`), checked and complete."""

from emberline.train.features.configs import (
    AutoDisConfig,
    ComboFeatureConfig,
    DistanceLfuPolicy,
    EmbeddingConstraints,
    FeatureConfig,
    IdFeatureConfig,
    LfuPolicy,
    LruPolicy,
    MlpEmbeddingConfig,
    RawFeatureConfig,
    ZchConfig,
)
from emberline.train.features.create import create_features
from emberline.train.features.feature import BASE_DATA_GROUP, CROSS_NEG_DATA_GROUP, NEG_DATA_GROUP, Feature

__all__ = [
    "BASE_DATA_GROUP",
    "CROSS_NEG_DATA_GROUP",
    "NEG_DATA_GROUP",
    "AutoDisConfig",
    "ComboFeatureConfig",
    "DistanceLfuPolicy",
    "EmbeddingConstraints",
    "Feature",
    "FeatureConfig",
    "IdFeatureConfig",
    "LfuPolicy",
    "LruPolicy",
    "MlpEmbeddingConfig",
    "RawFeatureConfig",
    "ZchConfig",
    "create_features",
]
