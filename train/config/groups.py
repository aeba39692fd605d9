"""Which groups of features can't be: checked over dataclasses, before any table or module exists."""

from collections import Counter
from collections.abc import Mapping, Sequence

from emberline.schema import GroupKind
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.features.feature import Feature
from emberline.train.features.names import named_problem
from emberline.train.features.sentences import Absence, prefixed, unknown_name


def group_problems(groups: Sequence[FeatureGroupConfig], features: Mapping[str, Feature | None]) -> list[list[str]]:
    """What is wrong with each group, one sentence each, naming group and feature.

    Args:
        groups: in the config's order.
        features: by name; None for one that exists but has problems of its own.
    """
    counts = Counter(group.group_name for group in groups)
    found = []
    for index, group in enumerate(groups):
        texts = _problems(group, features)
        if counts[group.group_name] > 1 and all(group.group_name != before.group_name for before in groups[:index]):
            texts.append(f"{counts[group.group_name]} groups have this name; give each a name of its own")
        found.append([prefixed(f"feature_groups {group.group_name!r}", text) for text in texts])
    return found


def _problems(group: FeatureGroupConfig, features: Mapping[str, Feature | None]) -> list[str]:
    found = []
    if problem := named_problem("group_name", group.group_name):
        found.append(problem)
    if group.embedding_name_suffix and (problem := named_problem("embedding_name_suffix", group.embedding_name_suffix)):
        found.append(problem)
    if not group.feature_names:
        found.append(Absence("has no features; list them in feature_names"))
    found += [unknown_name("feature", name, features) for name in dict.fromkeys(group.feature_names) if name not in features]
    found += [f"feature {name!r} is listed {count} times; list it once" for name, count in Counter(group.feature_names).items() if count > 1]
    known = [feature for name in dict.fromkeys(group.feature_names) if (feature := features.get(name)) is not None]
    if group.group_type is GroupKind.WIDE:
        found += [
            f"feature {feature.name!r} is a number, and a WIDE group has only ids; give it boundaries, or take it out"
            for feature in known
            if not feature.is_sparse
        ]
    return found + _data_group_problems(known)


def _data_group_problems(features: Sequence[Feature]) -> list[str]:
    """Features of different data groups have different numbers of rows and can't stand side by side."""
    by_group: dict[str, list[str]] = {}
    for feature in features:
        by_group.setdefault(feature.data_group, []).append(feature.name)
    if len(by_group) < 2:
        return []
    parts = " and ".join(f"{', '.join(names)} ({group})" for group, names in by_group.items())
    return [f"has features of several data groups, which have different numbers of rows: {parts}; put them into groups of their own"]


def unused_features(groups: Sequence[FeatureGroupConfig], names: Sequence[str]) -> list[str]:
    """Features that no group has, in the config's order."""
    used = {name for group in groups for name in group.feature_names}
    return [name for name in names if name not in used]
