"""Everything about groups that does not fit together, as sentences for a ConfigError."""

from collections.abc import Iterable, Mapping, Sequence

from emberline.schema import GroupKind
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding.names import name_problems
from emberline.train.embedding.reads import GroupView, views
from emberline.train.features import Feature


def group_problems(groups: Sequence[FeatureGroupConfig], features: Mapping[str, Feature]) -> Iterable[str]:
    """Groups that are wrong by themselves, repeated, or name features that do not fit."""
    seen: set[str] = set()
    for group in groups:
        where = f"feature group {group.group_name!r}"
        yield from name_problems("group_name", group.group_name)
        if group.group_name in seen:
            yield f"{where} is defined twice; give each group a name of its own"
        seen.add(group.group_name)
        yield from _nesting_problems(group, where)
        for view in views(group):
            if not view.features and not (group.sequence_groups and not view.parent):
                yield f"{view.where} has no features; name at least one in feature_names"
            yield from _member_problems(view, features)
        yield from _data_group_problems(group, where, features)
    yield from _clashes(groups)


def _nesting_problems(group: FeatureGroupConfig, where: str) -> Iterable[str]:
    """Sequence groups and encoders belong together, and into DEEP groups."""
    nested, encoders = group.nested_groups, group.encoders
    if group.group_type is not GroupKind.DEEP:
        if nested or encoders:
            yield f"{where} is {group.group_type}, but sequence_groups and sequence_encoders must be in a DEEP group"
        return
    if nested and not encoders:
        yield f"{where} has sequence_groups, but no sequence_encoders; add one for each"
    if encoders and not nested:
        yield f"{where} has sequence_encoders, but no sequence_groups for their input"
    if not nested or not encoders:
        return
    names = [view.group_name for view in nested]
    for position, name in enumerate(names):
        if not name:
            yield f"{where} has {len(nested)} sequence_groups, and number {position + 1} has no group_name; name each"
        else:
            yield from name_problems("group_name", name)
    for position, encoder in enumerate(encoders):
        if not encoder.input:
            yield f"{where}: sequence encoder {position} must name its input; the sequence groups are {', '.join(names)}"
        elif encoder.input not in names:
            yield f"{where}: sequence encoder {position} has input {encoder.input!r}; the sequence groups are {', '.join(names)}"
    read = {encoder.input for encoder in encoders}
    for name in names:
        if name and name not in read:
            yield f"{where}: sequence group {name!r} is the input of no sequence encoder; add one, or take the group out"


def _member_problems(view: GroupView, features: Mapping[str, Feature]) -> Iterable[str]:
    for name in dict.fromkeys(view.features):
        if view.features.count(name) > 1:
            yield f"{view.where} names feature {name!r} {view.features.count(name)} times; name it once"
        if name not in features:
            yield f"{view.where} names feature {name!r}, which is not defined; the features are {', '.join(features) or 'none'}"
        elif features[name].is_sparse or view.is_sequence:
            continue
        elif view.kind is GroupKind.WIDE:
            yield f"{view.where} is WIDE, but feature {name!r} is dense; put it into a DEEP group"
        elif features[name].is_sequence:
            yield f"{view.where} is DEEP, but feature {name!r} is a sequence of numbers; put it into a sequence group, with an encoder"


def _data_group_problems(group: FeatureGroupConfig, where: str, features: Mapping[str, Feature]) -> Iterable[str]:
    """All that one group is made of has one number of rows; nested groups are part of it."""
    by_data_group: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for view in views(group) for name in view.features):
        if name in features:
            by_data_group.setdefault(features[name].data_group, []).append(name)
    if len(by_data_group) > 1:
        parts = "; ".join(f"{', '.join(names)} in {data_group}" for data_group, names in by_data_group.items())
        yield f"{where} mixes data groups, which have different batch sizes: {parts}; make a group for each"


def _clashes(groups: Sequence[FeatureGroupConfig]) -> Iterable[str]:
    """Sequence groups whose results would have the same keys, or whose names stand for another group."""
    top = {group.group_name for group in groups}
    owner: dict[str, str] = {}
    for group in groups:
        for nested in group.nested_groups:
            name = nested.group_name
            if not name:
                continue
            if name in owner:
                yield (
                    f"sequence group {name!r} is in feature group {owner[name]!r} and in {group.group_name!r}"
                    if owner[name] != group.group_name
                    else f"feature group {group.group_name!r} has two sequence groups {name!r}"
                ) + "; give each a name of its own"
            elif name in top and name != group.group_name:
                yield f"sequence group {name!r} of feature group {group.group_name!r} has the name of a feature group; rename one of them"
            owner.setdefault(name, group.group_name)
