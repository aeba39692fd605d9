"""Whether the sequence encoders of a group and its sequence groups fit together."""

from collections.abc import Iterator, Mapping

from emberline.schema import GroupKind
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.encoders.checks import encoder_problems
from emberline.train.encoders.configs import encoder_kind
from emberline.train.features.feature import Feature
from emberline.train.features.sentences import Absence, prefixed, unknown_name

Features = Mapping[str, Feature | None]


def encoder_sentences(group: FeatureGroupConfig, features: Features) -> Iterator[str]:
    """What is wrong with a group's encoders and their inputs, one sentence each."""
    nested, encoders = group.nested_groups, group.encoders
    if group.group_type is not GroupKind.DEEP:
        for name in ("sequence_groups", "sequence_encoders"):
            if getattr(group, name):
                yield f"{name} need a DEEP group, and this one is {group.group_type}"
        return
    if nested and not encoders:
        yield Absence("has sequence_groups, but no sequence_encoders; add one for each")
    if encoders and not nested:
        yield Absence("has sequence_encoders, but no sequence_groups; add the group that they read")
    if len(nested) > 1:
        for place, one in enumerate(nested):
            if not one.group_name:
                yield Absence(f"sequence_groups[{place}]: group_name is missing: with several sequence groups, each needs one")
    by_name = {one.group_name: one for one in nested if one.group_name}
    for place, encoder in enumerate(encoders):
        input_group = by_name.get(encoder.input)
        dims = (None, None) if input_group is None else _dims(input_group, features)
        where = f"sequence_encoders[{place}]"
        yield from (prefixed(where, text) for text in encoder_problems(encoder, *dims))
        if not nested or input_group is not None:
            continue
        if encoder.input:
            yield f"{where}: {encoder_kind(encoder)}: input: {unknown_name('sequence group', encoder.input, by_name)}"
        else:
            yield Absence(f"{where}: {encoder_kind(encoder)}: input is missing: with several sequence groups, it must name one: {', '.join(by_name)}")
    if encoders:
        yield from _unread(group)


def _unread(group: FeatureGroupConfig) -> Iterator[str]:
    """Sequence groups that are nobody's input."""
    inputs = {encoder.input for encoder in group.encoders}
    for nested in group.nested_groups:
        if nested.group_name and nested.group_name not in inputs:
            yield Absence(f"sequence_groups {nested.group_name!r} is the input of no encoder; add one, or take the group out")


def _dims(group: SequenceGroupConfig, features: Features) -> tuple[int | None, int | None]:
    """Widths of a group's query and of a step of its sequence; None, both, where a feature is wrong or unknown."""
    found = [features.get(name) for name in dict.fromkeys(group.feature_names)]
    known = [feature for feature in found if feature is not None]
    if len(known) < len(found) or not known:
        return None, None
    query = sum(feature.output_dim for feature in known if not feature.is_sequence)
    return query, sum(feature.output_dim for feature in known if feature.is_sequence)
