"""Which groups of features can't be: checked over dataclasses, before any table or module exists.

The one place for it: a config's groups are checked here as it is loaded, groups made in Python as their tables are planned.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from emberline.schema import GroupKind
from emberline.train.config.encoder_inputs import encoder_sentences
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.config.table_reads import WideTables, table_reads
from emberline.train.config.table_rules import table_problems
from emberline.train.features.feature import Feature
from emberline.train.features.names import named_problem
from emberline.train.features.sentences import Absence, prefixed, unknown_name

Features = Mapping[str, Feature | None]


def group_problems(groups: Sequence[FeatureGroupConfig], features: Features, wide: WideTables | None = None) -> list[list[str]]:
    """What is wrong with each group and the tables that it reads, one sentence each, naming group and feature.

    Args:
        groups: in the config's order.
        features: by name; None for one that exists but has problems of its own.
        wide: what tables of WIDE groups have in common; None: not known.
    """
    found = [_problems(group, features) for group in groups]
    for texts, names, tables in zip(found, _name_clashes(groups), table_problems(list(table_reads(groups, features, wide))), strict=True):
        texts += [*names, *tables]
    return [[prefixed(f"feature_groups {group.group_name!r}", text) for text in texts] for group, texts in zip(groups, found, strict=True)]


def _problems(group: FeatureGroupConfig, features: Features) -> list[str]:
    found = _names("group_name", group.group_name, group.embedding_name_suffix)
    if not group.feature_names and not group.sequence_groups:
        found.append(Absence("has no features; list them in feature_names"))
    found += _members(group.feature_names, features)
    found += _misplaced(group, [feature for name in dict.fromkeys(group.feature_names) if (feature := features.get(name)) is not None])
    for place, nested in enumerate(group.nested_groups):
        where = f"sequence_groups {nested.group_name!r}" if nested.group_name else f"sequence_groups[{place}]"
        texts = _names("group_name" if nested.group_name else "", nested.group_name, nested.embedding_name_suffix or "")
        if not nested.feature_names:
            texts.append(Absence("has no features; list them in feature_names"))
        found += [prefixed(where, text) for text in [*texts, *_members(nested.feature_names, features)]]
    return [*found, *_data_group_problems(group, features), *encoder_sentences(group, features)]


def _names(field: str, name: str, suffix: str) -> list[str]:
    """What is wrong with a group's name (without `field`, it may be missing) and suffix."""
    given = [(field, name), ("embedding_name_suffix", suffix)]
    return [problem for what, text in given if what and (text or what == field) and (problem := named_problem(what, text))]


def _members(names: Sequence[str], features: Features) -> list[str]:
    """Features that there are not, or twice."""
    unknown = [unknown_name("feature", name, features) for name in dict.fromkeys(names) if name not in features]
    return unknown + [f"feature {name!r} is listed {count} times; list it once" for name, count in Counter(names).items() if count > 1]


def _misplaced(group: FeatureGroupConfig, features: Sequence[Feature]) -> list[str]:
    """Features that this kind of group can't have: numbers of steps, as only ids are pooled."""
    if group.is_sequence:
        return []
    found = []
    for feature in features:
        if feature.is_sparse:
            continue
        if group.group_type is GroupKind.WIDE:
            found.append(f"feature {feature.name!r} is a number, and a WIDE group has only ids; give it boundaries, or take it out")
        elif feature.is_sequence:
            found.append(
                f"feature {feature.name!r} is a sequence of numbers, and a {group.group_type} group has one vector a row; put it into a SEQUENCE "
                "group, or into sequence_groups of a DEEP group, with an encoder such as pooling_encoder {}"
            )
    return found


def _data_group_problems(group: FeatureGroupConfig, features: Features) -> list[str]:
    """Features of different data groups have different numbers of rows and can't stand side by side."""
    by_group: dict[str, list[str]] = {}
    for name in dict.fromkeys(group.all_feature_names):
        feature = features.get(name)
        if feature is not None:
            by_group.setdefault(feature.data_group, []).append(name)
    if len(by_group) < 2:
        return []
    parts = " and ".join(f"{', '.join(names)} ({group})" for group, names in by_group.items())
    return [f"has features of several data groups, which have different numbers of rows: {parts}; put them into groups of their own"]


def _name_clashes(groups: Sequence[FeatureGroupConfig]) -> list[list[str]]:
    """Names that several groups have, told at the first of them. A sequence group may only share the name of the group that it is in."""
    tops = Counter(group.group_name for group in groups)
    nested = Counter(name for group in groups for one in group.nested_groups if (name := one.group_name))
    told: set[str] = set()
    found = []
    for group in groups:
        texts = []
        if tops[group.group_name] > 1 and group.group_name not in told:
            texts.append(f"{tops[group.group_name]} groups have this name; give each a name of its own")
            told.add(group.group_name)
        for name in dict.fromkeys(one.group_name for one in group.nested_groups):
            if nested[name] > 1 and f".{name}" not in told:
                texts.append(f"sequence_groups {name!r}: {nested[name]} sequence groups have this name; give each a name of its own")
                told.add(f".{name}")
            if name in tops and name != group.group_name:
                texts.append(f"sequence_groups {name!r}: a feature group has this name; choose another")
        found.append(texts)
    return found


def unused_features(groups: Sequence[FeatureGroupConfig], names: Sequence[str]) -> list[str]:
    """Features that no group has, in the config's order."""
    used = {name for group in groups for name in group.all_feature_names}
    return [name for name in names if name not in used]
