"""Sequence groups and encoders inside of DEEP groups."""

import pytest

from emberline.schema import FeatureKind, FeatureSpec, GroupKind, HashEncoder
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.config.groups import group_problems
from emberline.train.config.model_config import MlpConfig
from emberline.train.encoders.configs import DinEncoderConfig, EncoderConfig, PoolingEncoderConfig, RecurrentEncoderConfig, SimpleAttentionConfig
from emberline.train.features import Feature


def feature(name: str, dim: int = 4, *, sequence: bool = False) -> Feature:
    spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=HashEncoder(rows=5), sequence=sequence)
    return Feature(name=name, spec=spec, embedding_dim=dim, embedding_name=f"{name}_emb", rows=5)


FEATURES = {
    **{name: feature(name) for name in ("a", "b")},
    "wide": feature("wide", 8),
    **{name: feature(name, sequence=True) for name in ("s", "t")},
    "broken": None,
}
DIN = DinEncoderConfig(attn_mlp=MlpConfig(hidden_units=(4,)))


def nested(*names: str, name: str = "", suffix: str | None = None) -> SequenceGroupConfig:
    return SequenceGroupConfig(group_name=name, feature_names=names, embedding_name_suffix=suffix)


def deep(*encoders: EncoderConfig, groups: tuple[SequenceGroupConfig, ...], name: str = "g", kind: GroupKind = GroupKind.DEEP) -> FeatureGroupConfig:
    return FeatureGroupConfig(group_name=name, feature_names=("a",), group_type=kind, sequence_groups=groups, sequence_encoders=encoders)


def problems(*groups: FeatureGroupConfig) -> list[str]:
    found = zip(groups, group_problems(groups, FEATURES), strict=True)
    return [text.removeprefix(f"feature_groups {group.group_name!r}: ") for group, texts in found for text in texts]


def test_right_groups_have_no_problems() -> None:
    pooling = PoolingEncoderConfig()
    assert problems(deep(pooling, groups=(nested("s"),))) == []
    assert problems(deep(DIN, pooling, groups=(nested("a", "s"),), name="s2")) == []
    inputs = [PoolingEncoderConfig(input=name) for name in ("x", "y", "x")]
    several = deep(*inputs, groups=(nested("s", name="x"), nested("t", name="y")))
    assert problems(several) == []
    only_sequences = FeatureGroupConfig(group_name="g", sequence_groups=(nested("s"),), sequence_encoders=(pooling,))
    assert problems(only_sequences) == []
    assert problems(deep(pooling, groups=(nested("broken", "s"),))) == []


def test_defaults_are_filled_in_beside_the_config() -> None:
    group = FeatureGroupConfig(
        group_name="g",
        sequence_groups=(nested("s"),),
        sequence_encoders=(PoolingEncoderConfig(),),
        embedding_name_suffix="x",
    )
    assert group.nested_groups == (nested("s", name="g", suffix="x"),)
    assert group.encoders == (PoolingEncoderConfig(input="g"),)
    assert (group.sequence_groups[0].group_name, group.sequence_encoders[0].input) == ("", "")
    own = FeatureGroupConfig(group_name="g", sequence_groups=(nested("s", suffix="y"), nested("t", name="n", suffix="")), embedding_name_suffix="x")
    assert [(one.group_name, one.embedding_name_suffix) for one in own.nested_groups] == [("", "y"), ("n", "")]
    assert own.all_feature_names == ("s", "t")


@pytest.mark.parametrize(
    ("group", "messages"),
    [
        (deep(groups=(nested("s"),)), ["has sequence_groups, but no sequence_encoders; add one for each"]),
        (deep(PoolingEncoderConfig(), groups=()), ["has sequence_encoders, but no sequence_groups; add the group that they read"]),
        (
            deep(PoolingEncoderConfig(input="y"), groups=(nested("s"), nested("t", name="y"))),
            ["sequence_groups[0]: group_name is missing: with several sequence groups, each needs one"],
        ),
        (
            deep(PoolingEncoderConfig(input="x"), PoolingEncoderConfig(), groups=(nested("s", name="x"), nested("t", name="y"))),
            [
                "sequence_encoders[1]: pooling_encoder: input is missing: with several sequence groups, it must name one: x, y",
                "sequence_groups 'y' is the input of no encoder; add one, or take the group out",
            ],
        ),
        (
            deep(PoolingEncoderConfig(input="clik"), groups=(nested("s", name="click"),)),
            [
                "sequence_encoders[0]: pooling_encoder: input: unknown sequence group 'clik'; did you mean 'click'?",
                "sequence_groups 'click' is the input of no encoder; add one, or take the group out",
            ],
        ),
        (
            deep(PoolingEncoderConfig(input="x"), groups=(nested("s", name="x"), nested("t", name="x"))),
            ["sequence_groups 'x': 2 sequence groups have this name; give each a name of its own"],
        ),
        (deep(PoolingEncoderConfig(), groups=(nested(),)), ["sequence_groups 'g': has no features; list them in feature_names"]),
        (
            deep(PoolingEncoderConfig(), groups=(nested("s", "s", "u", suffix="p.q"),)),
            [
                "sequence_groups 'g': embedding_name_suffix 'p.q' may only have letters, digits, '_' and '-'; "
                "dots, '@', slashes and blanks have meanings of their own",
                "sequence_groups 'g': unknown feature 'u'; known: a, b, wide, s, t, broken",
                "sequence_groups 'g': feature 's' is listed 2 times; list it once",
            ],
        ),
        (
            deep(PoolingEncoderConfig(input="a.b"), groups=(nested("s", name="a.b"),)),
            [
                "sequence_groups 'a.b': group_name 'a.b' may only have letters, digits, '_' and '-'; "
                "dots, '@', slashes and blanks have meanings of their own"
            ],
        ),
        (deep(PoolingEncoderConfig(), groups=(nested("a"),)), ["sequence_encoders[0]: pooling_encoder on 'g': its input has no sequence features"]),
        (
            deep(DIN, groups=(nested("s"),)),
            [
                "sequence_encoders[0]: din_encoder on 'g': needs a query, and its input has sequence features only; "
                "add the features to compare the sequence with"
            ],
        ),
        (
            deep(DIN, groups=(nested("wide", "s"),)),
            ["sequence_encoders[0]: din_encoder on 'g': the query is wider (8) than a step of the sequence (4); give them the same features"],
        ),
        (
            deep(SimpleAttentionConfig(), groups=(nested("a", "s", "t"),)),
            [
                "sequence_encoders[0]: simple_attention on 'g': the query (4 wide) must be as wide as a step of the sequence (8); "
                "give them the same features"
            ],
        ),
        (
            deep(RecurrentEncoderConfig(cell="gru", hidden_size=0), groups=(nested("s"),)),
            ["sequence_encoders[0]: gru on 'g': hidden_size must be at least 1, found 0"],
        ),
        (
            deep(PoolingEncoderConfig(pooling_type="max"), groups=(nested("s"),)),
            ["sequence_encoders[0]: pooling_encoder on 'g': pooling_type must be one of mean, sum, found 'max'"],
        ),
    ],
)
def test_each_problem_is_named(group: FeatureGroupConfig, messages: list[str]) -> None:
    assert problems(group) == messages


@pytest.mark.parametrize("kind", [GroupKind.WIDE, GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE])
def test_only_deep_groups_have_encoders(kind: GroupKind) -> None:
    assert problems(deep(PoolingEncoderConfig(), groups=(nested("s"),), kind=kind)) == [
        f"sequence_groups need a DEEP group, and this one is {kind}",
        f"sequence_encoders need a DEEP group, and this one is {kind}",
    ]


def test_a_sequence_group_has_a_name_that_no_other_group_has() -> None:
    first = deep(PoolingEncoderConfig(input="h"), groups=(nested("s", name="h"),))
    second = FeatureGroupConfig(group_name="h", feature_names=("s",), group_type=GroupKind.SEQUENCE)
    assert problems(first, second) == ["sequence_groups 'h': a feature group has this name; choose another"]
    third = deep(PoolingEncoderConfig(input="h"), groups=(nested("t", name="h"),), name="k")
    assert problems(first, third) == ["sequence_groups 'h': 2 sequence groups have this name; give each a name of its own"]
