"""From what a config says to features that are checked and complete; everything wrong is reported at once."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from emberline.encoding.prepare import prepare
from emberline.errors import ConfigError, RequestError
from emberline.schema import Keep
from emberline.train.features.common import Context, Steps
from emberline.train.features.configs import HashOrVocabularyConfig, IdFeatureConfig, RawFeatureConfig
from emberline.train.features.family_configs import CombineFeatureConfig, ExprFeatureConfig, TokenizeFeatureConfig
from emberline.train.features.feature import Feature
from emberline.train.features.ids import id_feature
from emberline.train.features.inputs import family_name
from emberline.train.features.names import named_problem
from emberline.train.features.raw import number_feature
from emberline.train.features.sentences import Absence, prefixed
from emberline.train.features.sequence_configs import (
    AloneSequenceConfig,
    FamilyConfig,
    FeatureConfig,
    NumberConfig,
    SequenceFeatureConfig,
    ValueConfig,
)
from emberline.train.features.tokenizers import tokenize_feature
from emberline.train.features.values import combine_feature, value_feature

FG_NONE, FG_NORMAL = "FG_NONE", "FG_NORMAL"
DEFAULT_STEP_SEPARATOR = ";"
_FROM_RAW = ("id_feature", "raw_feature", "combo_feature", "lookup_feature", "match_feature", "expr_feature")


@dataclass(frozen=True, kw_only=True)
class FeatureProblem:
    """One thing that is wrong with one feature.

    Args:
        index: its place in the config's list.
        part: in a sequence of several, the place of the one that is meant; None: the sequence, or a feature by itself.
        message: a sentence that names it.
    """

    index: int
    part: int | None = None
    message: str


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One feature to build, under its full name."""

    index: int
    part: int | None
    config: FamilyConfig
    steps: Steps | None


def create_features(
    feature_configs: Sequence[FeatureConfig],
    neg_fields: Collection[str] = (),
    fg_mode: str = FG_NONE,
    encoded_separator: str = "\x03",
) -> list[Feature]:
    """Features in the config's order.

    Args:
        feature_configs: what the config says.
        neg_fields: columns that a negative sampler fills; features that read one go into a data group of their own.
        fg_mode: FG_NONE: the data's values are ids and floats already, in columns called like the features. FG_NORMAL: raw values, in the
            expressions' columns.
        encoded_separator: splits a text of several values where `fg_mode` is FG_NONE.

    Raises:
        ConfigError: something is wrong; one sentence for each problem, naming the feature.
    """
    features, problems = try_features(feature_configs, neg_fields, fg_mode, encoded_separator)
    if problems:
        raise ConfigError([problem.message for problem in problems])
    return features


def try_features(
    feature_configs: Sequence[FeatureConfig],
    neg_fields: Collection[str] = (),
    fg_mode: str = FG_NONE,
    encoded_separator: str = "\x03",
) -> tuple[list[Feature], list[FeatureProblem]]:
    """As `create_features`, but with the problems handed back beside the features that have none."""
    if fg_mode not in (FG_NONE, FG_NORMAL):
        raise ConfigError(f"fg_mode {fg_mode!r} is not supported; use {FG_NONE} or {FG_NORMAL}")
    context = Context(neg_fields=frozenset(neg_fields), encoded=fg_mode == FG_NONE, encoded_separator=encoded_separator)
    entries = [entry for index, config in enumerate(feature_configs) for entry in _entries(index, config)]
    counts = Counter(entry.config.feature_name for entry in entries)
    features: list[Feature] = []
    problems = _sequence_problems(feature_configs)
    seen: set[str] = set()
    for entry in entries:
        found: list[str] = []
        name = entry.config.feature_name
        feature = _build(entry.config, replace(context, steps=entry.steps), found)
        if counts[name] > 1 and name not in seen:
            found.append(f"{counts[name]} features have this name; give each a name of its own")
        seen.add(name)
        problems += [FeatureProblem(index=entry.index, part=entry.part, message=prefixed(f"feature {name!r}", text)) for text in found]
        if feature is not None and counts[name] == 1:
            features.append(feature)
    return features, sorted(problems, key=lambda problem: problem.index)


def _entries(index: int, config: FeatureConfig) -> Iterator[_Entry]:
    """The features that one entry of a config's list stands for."""
    if isinstance(config, SequenceFeatureConfig):
        steps = Steps(name=config.sequence_name, length=config.sequence_length, separator=config.sequence_delim, keep=config.sequence_keep)
        for part, one in enumerate(config.features):
            yield _Entry(index=index, part=part, config=replace(one, feature_name=grouped_name(config.sequence_name, one)), steps=steps)
    elif isinstance(config, AloneSequenceConfig):
        yield _Entry(index=index, part=None, config=config.feature, steps=_own_steps(config.feature))
    else:
        tokens = isinstance(config, TokenizeFeatureConfig) and config.tokens_as_sequence
        yield _Entry(index=index, part=None, config=config, steps=replace(_own_steps(config), of_tokens=True) if tokens else None)


def grouped_name(sequence_name: str, config: FamilyConfig) -> str:
    """The full name of a feature of a sequence; empty where it has no name of its own."""
    return f"{sequence_name}__{config.feature_name}" if config.feature_name else ""


def _own_steps(config: FamilyConfig) -> Steps:
    return Steps(
        name="",
        length=config.sequence_length or 0,
        separator=DEFAULT_STEP_SEPARATOR if config.sequence_delim is None else config.sequence_delim,
        keep=config.sequence_keep or Keep.NEWEST,
    )


def _sequence_problems(feature_configs: Sequence[FeatureConfig]) -> list[FeatureProblem]:
    """What is wrong with sequences of several features, apart from these."""
    problems = []
    sequences = [(index, config) for index, config in enumerate(feature_configs) if isinstance(config, SequenceFeatureConfig)]
    counts = Counter(config.sequence_name for _, config in sequences)
    told: set[str] = set()
    for index, config in sequences:
        found = [text for text in [named_problem("sequence_name", config.sequence_name)] if text]
        if not config.features:
            found.append(Absence("has no features"))
        if not config.sequence_delim:
            found.append("sequence_delim must not be empty")
        if counts[config.sequence_name] > 1 and config.sequence_name not in told:
            found.append(f"{counts[config.sequence_name]} sequences have this name; give each a name of its own")
        told.add(config.sequence_name)
        problems += [FeatureProblem(index=index, message=prefixed(f"sequence {config.sequence_name!r}", text)) for text in found]
    return problems


def _build(config: FamilyConfig, context: Context, problems: list[str]) -> Feature | None:
    found = named_problem("feature_name", config.feature_name)
    if found:
        problems.append(found)
    family = family_name(config)
    if not context.encoded and family not in _FROM_RAW:
        problems.append(f"{family} is not supported yet for raw values (fg_mode {FG_NORMAL}); compute it before, and use fg_mode {FG_NONE}")
        return None
    if context.steps is not None and not context.encoded:
        config = _with_step_default(config)
    feature = _of_family(config, context, problems)
    if context.steps is not None:
        problems += _step_problems(config, context.steps, feature)
    if feature is None or problems:
        return None
    try:
        prepare(feature.spec)
    except RequestError as error:
        field = "fg_encoded_default_value" if context.encoded else "default_value"
        problems.append(f"{field} {error.problem.removeprefix('default ')}")
        return None
    return feature


def _with_step_default(config: FamilyConfig) -> FamilyConfig:
    """With a default: every step must have a value, so that a step without one reads "0" where the config says nothing else."""
    if not isinstance(config, HashOrVocabularyConfig | RawFeatureConfig | ExprFeatureConfig) or config.default_value:
        return config
    return replace(config, default_value="0:1" if isinstance(config, IdFeatureConfig) and config.weighted else "0")


def _of_family(config: FamilyConfig, context: Context, problems: list[str]) -> Feature | None:
    if isinstance(config, TokenizeFeatureConfig):
        return tokenize_feature(config, context, problems)
    if isinstance(config, CombineFeatureConfig):
        return combine_feature(config, context, problems)
    if isinstance(config, NumberConfig):
        return number_feature(config, context, problems)
    if isinstance(config, ValueConfig):
        return value_feature(config, context, problems)
    return id_feature(config, context, problems)


def _step_problems(config: FamilyConfig, steps: Steps, feature: Feature | None) -> list[str]:
    """A text must be cut into steps and these into values by two different separators."""
    if isinstance(config, TokenizeFeatureConfig) and config.tokens_as_sequence and not steps.of_tokens:
        return ["tokens_as_sequence makes the tokens of a row its steps, and this is a sequence already; take it out"]
    if not steps.separator:
        return [] if steps.name else ["sequence_delim must not be empty"]
    if feature is not None and feature.value_dim != 1 and feature.spec.separator == steps.separator:
        return [f"sequence_delim and the separator of a step's values are both {steps.separator!r}; change one"]
    return []
