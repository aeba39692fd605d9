"""What makes features of any family sequences: several side by side with one number of steps, or one by itself."""

from dataclasses import dataclass

from emberline.schema import Keep
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

NumberConfig = RawFeatureConfig | ExprFeatureConfig | OverlapFeatureConfig | KvDotProductFeatureConfig
ValueConfig = LookupFeatureConfig | MatchFeatureConfig | CustomFeatureConfig
IdConfig = IdFeatureConfig | ComboFeatureConfig | BoolMaskFeatureConfig
FamilyConfig = IdConfig | NumberConfig | ValueConfig | CombineFeatureConfig | TokenizeFeatureConfig


@dataclass(frozen=True, kw_only=True)
class SequenceFeatureConfig:
    """Several features, each a sequence, of one number of steps in each row. They are called `<sequence_name>__<feature_name>`.

    Raw columns that have steps are called `<sequence_name>__<column>`: those of a feature's `sequence_fields` where it has any, else the only
    one of an id, raw, tokenize or combine feature, and of other families those of the side `item`. Other columns hold for all steps of a row.
    The features are the user's.

    Args:
        sequence_name: unique in a config.
        sequence_length: most steps that are kept; 0: all.
        sequence_delim: what is between two steps of a text.
        sequence_keep: which steps of a longer sequence are kept.
        features: in order; what they say of lengths and delimiters themselves has no effect.
    """

    sequence_name: str
    sequence_length: int = 0
    sequence_delim: str = ";"
    sequence_keep: Keep = Keep.NEWEST
    features: tuple[FamilyConfig, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AloneSequenceConfig:
    """One feature that is a sequence by itself: `sequence_<family>_feature`.

    Its raw columns keep their names. Those of `sequence_fields` have steps, or all of them where it names none.

    Args:
        feature: its own `sequence_length`, `sequence_delim` and `sequence_keep` count.
    """

    feature: FamilyConfig

    @property
    def feature_name(self) -> str:
        """The feature's."""
        return self.feature.feature_name


FeatureConfig = FamilyConfig | SequenceFeatureConfig | AloneSequenceConfig
