import pytest

from emberline.schema import FeatureKind, FeatureSpec, GroupKind, HashEncoder, NumericEncoder
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.config.groups import group_problems, unused_features
from emberline.train.encoders.configs import PoolingEncoderConfig
from emberline.train.features import Feature


def sparse(name: str, data_group: str = "__BASE__", sequence: bool = False) -> Feature:
    spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=HashEncoder(rows=5), sequence=sequence)
    return Feature(name=name, spec=spec, data_group=data_group, embedding_dim=4, embedding_name=f"{name}_emb", rows=5)


def dense(name: str, sequence: bool = False) -> Feature:
    spec = FeatureSpec(name=name, kind=FeatureKind.DENSE, columns=(name,), encoder=NumericEncoder(), value_dim=1, sequence=sequence)
    return Feature(name=name, spec=spec)


FEATURES = {
    "a": sparse("a"),
    "b": sparse("b"),
    "n": sparse("n", "__NEG__"),
    "x": dense("x"),
    "s": sparse("s", sequence=True),
    "steps": dense("steps", sequence=True),
    "broken": None,
}


def group(name: str, *features: str, kind: GroupKind = GroupKind.DEEP, suffix: str = "") -> FeatureGroupConfig:
    return FeatureGroupConfig(group_name=name, feature_names=features, group_type=kind, embedding_name_suffix=suffix)


def problems(*groups: FeatureGroupConfig) -> list[list[str]]:
    return group_problems(groups, FEATURES)


def test_right_groups_have_no_problems() -> None:
    assert problems(group("deep", "a", "x", "b"), group("wide", "a", kind=GroupKind.WIDE), group("neg", "n", suffix="t"), group("g", "broken")) == [
        [],
        [],
        [],
        [],
    ]


def test_each_problem_names_group_and_feature() -> None:
    assert problems(group("g", "a", "aa", "a"), group("w", "x", kind=GroupKind.WIDE), group("e"), group("g", "b"), group("m", "a", "n")) == [
        [
            "feature_groups 'g': unknown feature 'aa'; did you mean 'a'?",
            "feature_groups 'g': feature 'a' is listed 2 times; list it once",
            "feature_groups 'g': 2 groups have this name; give each a name of its own",
        ],
        ["feature_groups 'w': feature 'x' is a number, and a WIDE group has only ids; give it boundaries, or take it out"],
        ["feature_groups 'e': has no features; list them in feature_names"],
        [],
        [
            "feature_groups 'm': has features of several data groups, which have different numbers of rows: a (__BASE__) and n (__NEG__); "
            "put them into groups of their own"
        ],
    ]


def test_names_that_mean_something_else_are_refused() -> None:
    (found,) = problems(group("a.query", "a", suffix="x/y"))
    assert "feature_groups 'a.query': group_name 'a.query' may only have letters" in found[0]
    assert "embedding_name_suffix 'x/y' may only have letters" in found[1]
    assert problems(group("", "a")) == [["feature_groups '': group_name is missing"]]


def test_an_unknown_feature_among_none_is_named() -> None:
    assert group_problems([group("g", "a")], {}) == [["feature_groups 'g': unknown feature 'a'; there is none"]]


def test_ids_of_sequences_are_pooled_and_their_numbers_need_a_group_for_them() -> None:
    assert problems(group("g", "a", "s"), group("w", "s", kind=GroupKind.WIDE)) == [[], []]
    assert problems(group("g", "a", "steps"), group("w", "steps", kind=GroupKind.WIDE)) == [
        [
            "feature_groups 'g': feature 'steps' is a sequence of numbers, and a DEEP group has one vector a row; put it into a SEQUENCE group, or "
            "into sequence_groups of a DEEP group, with an encoder such as pooling_encoder {}"
        ],
        ["feature_groups 'w': feature 'steps' is a number, and a WIDE group has only ids; give it boundaries, or take it out"],
    ]


@pytest.mark.parametrize("kind", [GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE])
def test_sequence_groups_have_queries_and_sequences(kind: GroupKind) -> None:
    assert problems(group("g", "a", "x", "s", kind=kind), group("h", "s", kind=kind), group("q", "a", kind=kind)) == [[], [], []]
    (found,) = problems(group("g", "n", "s", kind=kind))
    assert found == [
        "feature_groups 'g': has features of several data groups, which have different numbers of rows: n (__NEG__) and s (__BASE__); "
        "put them into groups of their own"
    ]


def test_sequence_groups_share_the_rows_of_their_group() -> None:
    nested = SequenceGroupConfig(feature_names=("n", "s"))
    ((found,),) = problems(FeatureGroupConfig(group_name="g", sequence_groups=(nested,), sequence_encoders=(PoolingEncoderConfig(),)))
    assert found.startswith("feature_groups 'g': has features of several data groups")
    assert unused_features([FeatureGroupConfig(group_name="g", sequence_groups=(nested,))], ["n", "s", "a"]) == ["a"]


def test_features_that_no_group_has() -> None:
    assert unused_features([group("g", "b"), group("h", "b", "a")], ["c", "a", "b", "d"]) == ["c", "d"]
