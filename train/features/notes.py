"""What features' configs say that has no effect here."""

from collections.abc import Sequence

from emberline.train.features.configs import CommonFeatureConfig
from emberline.train.features.create import grouped_name
from emberline.train.features.family_configs import CombineFeatureConfig, TokenizeFeatureConfig
from emberline.train.features.numbers import notes_of_numbers
from emberline.train.features.rows import sources_of
from emberline.train.features.sequence_configs import (
    AloneSequenceConfig,
    FamilyConfig,
    FeatureConfig,
    NumberConfig,
    SequenceFeatureConfig,
    ValueConfig,
)
from emberline.train.features.values import ANY_SOURCE

_LENGTHS = ("sequence_length", "sequence_delim", "sequence_keep")


def notes_of(config: FeatureConfig) -> list[str]:
    """One sentence for each thing, naming the feature."""
    if isinstance(config, SequenceFeatureConfig):
        notes = []
        for one in config.features:
            name = grouped_name(config.sequence_name, one)
            notes += _inert(one, name, _LENGTHS, f"it is the sequence's that counts, of {config.sequence_name!r}")
            notes += _of_family(one, name)
        return notes
    if isinstance(config, AloneSequenceConfig):
        return _of_family(config.feature, config.feature.feature_name)
    is_sequence = isinstance(config, TokenizeFeatureConfig) and config.tokens_as_sequence
    names = ("sequence_fields",) if is_sequence else (*_LENGTHS, "sequence_fields")
    return [*_inert(config, config.feature_name, names, "it is for sequences"), *_of_family(config, config.feature_name)]


def _inert(config: CommonFeatureConfig, name: str, fields: Sequence[str], reason: str) -> list[str]:
    given = [field for field in fields if getattr(config, field) not in (None, ())]
    return [f"feature {name!r}: {field} has no effect: {reason}" for field in given]


def _of_family(config: FamilyConfig, name: str) -> list[str]:
    if isinstance(config, CombineFeatureConfig):
        has_table, sources = config.num_buckets is not None or bool(config.boundaries), "num_buckets, boundaries"
    elif isinstance(config, NumberConfig):
        has_table, sources = bool(config.boundaries), "boundaries"
    elif isinstance(config, ValueConfig):
        has_table, sources = bool(sources_of(config)), ANY_SOURCE
    else:
        return []
    return [] if has_table else notes_of_numbers(config, name, sources)
