"""Which raw columns each family reads, and which data group it is in where one of them is sampled."""

from dataclasses import dataclass

from emberline.train.features.configs import ComboFeatureConfig, IdFeatureConfig, RawFeatureConfig
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
from emberline.train.features.feature import CROSS_NEG_DATA_GROUP, NEG_DATA_GROUP
from emberline.train.features.sequence_configs import FamilyConfig

ALL_KEYS = "ALL"
"""In place of a key column of a match: every key of the map."""

_NAMES: dict[type, str] = {
    IdFeatureConfig: "id_feature",
    RawFeatureConfig: "raw_feature",
    ComboFeatureConfig: "combo_feature",
    LookupFeatureConfig: "lookup_feature",
    MatchFeatureConfig: "match_feature",
    ExprFeatureConfig: "expr_feature",
    OverlapFeatureConfig: "overlap_feature",
    TokenizeFeatureConfig: "tokenize_feature",
    KvDotProductFeatureConfig: "kv_dot_product",
    CombineFeatureConfig: "combine_feature",
    BoolMaskFeatureConfig: "bool_mask_feature",
    CustomFeatureConfig: "custom_feature",
}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a feature reads.

    Args:
        texts: its raw columns as the config writes them, `side:column` each.
        is_single: whether the family reads one column.
        neg_group: its data group where a column is sampled: its own negatives, or negatives crossed with the user's side.
    """

    texts: tuple[str, ...]
    is_single: bool
    neg_group: str


def family_name(config: FamilyConfig) -> str:
    """What a config calls the family."""
    return _NAMES[type(config)]


def inputs_of(config: FamilyConfig) -> Inputs:
    """What a feature reads."""
    match config:
        case IdFeatureConfig() | RawFeatureConfig() | TokenizeFeatureConfig() | CombineFeatureConfig():
            return Inputs(texts=(config.expression,) if config.expression else (), is_single=True, neg_group=NEG_DATA_GROUP)
        case ComboFeatureConfig() | BoolMaskFeatureConfig() | CustomFeatureConfig():
            texts = config.expression
        case LookupFeatureConfig():
            texts = (config.map, config.key)
        case MatchFeatureConfig():
            texts = (config.nested_map, *(key for key in (config.pkey, config.skey) if key != ALL_KEYS))
        case ExprFeatureConfig():
            texts = config.variables
        case OverlapFeatureConfig():
            texts = (config.query, config.title)
        case KvDotProductFeatureConfig():
            texts = (config.query, config.document)
    return Inputs(texts=tuple(filter(None, texts)), is_single=False, neg_group=CROSS_NEG_DATA_GROUP)
