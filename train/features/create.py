"""From what a config says to features that are checked and complete; everything wrong is reported at once."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from emberline.encoding.prepare import prepare
from emberline.errors import ConfigError, RequestError
from emberline.train.features.common import Context
from emberline.train.features.configs import FeatureConfig, RawFeatureConfig
from emberline.train.features.feature import Feature
from emberline.train.features.ids import id_feature
from emberline.train.features.names import named_problem
from emberline.train.features.raw import raw_feature
from emberline.train.features.sentences import prefixed

FG_NONE, FG_NORMAL = "FG_NONE", "FG_NORMAL"


@dataclass(frozen=True, kw_only=True)
class FeatureProblem:
    """One thing that is wrong with one feature: its place in the config's list, and a sentence that names it."""

    index: int
    message: str


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
    counts = Counter(config.feature_name for config in feature_configs)
    features: list[Feature] = []
    problems: list[FeatureProblem] = []
    seen: set[str] = set()
    for index, config in enumerate(feature_configs):
        found: list[str] = []
        feature = _build(config, context, found)
        if counts[config.feature_name] > 1 and config.feature_name not in seen:
            found.append(f"{counts[config.feature_name]} features have this name; give each a name of its own")
        seen.add(config.feature_name)
        problems += [FeatureProblem(index=index, message=prefixed(f"feature {config.feature_name!r}", text)) for text in found]
        if feature is not None and counts[config.feature_name] == 1:
            features.append(feature)
    return features, problems


def _build(config: FeatureConfig, context: Context, problems: list[str]) -> Feature | None:
    found = named_problem("feature_name", config.feature_name)
    if found:
        problems.append(found)
    feature = raw_feature(config, context, problems) if isinstance(config, RawFeatureConfig) else id_feature(config, context, problems)
    if feature is None or problems:
        return None
    try:
        prepare(feature.spec)
    except RequestError as error:
        field = "fg_encoded_default_value" if context.encoded else "default_value"
        problems.append(f"{field} {error.problem.removeprefix('default ')}")
        return None
    return feature
