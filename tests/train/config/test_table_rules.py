"""Tables whose readers do not agree, told where the later reader stands."""

from typing import Any

import pytest

from emberline.schema import FeatureKind, FeatureSpec, GroupKind, HashEncoder, Pooling
from emberline.train.config.functions import InitSpec, ThresholdFilterSpec
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.config.groups import group_problems
from emberline.train.config.table_reads import WideTables
from emberline.train.encoders.configs import PoolingEncoderConfig
from emberline.train.features import DistanceLfuPolicy, EmbeddingConstraints, Feature, LfuPolicy, LruPolicy, ZchConfig

LFU = ZchConfig(zch_size=10, eviction_policy=LfuPolicy())
WIDE, SEQUENCE = GroupKind.WIDE, GroupKind.SEQUENCE


def sparse(name: str, table: str = "t", *, sequence: bool = False, **other: Any) -> Feature:
    spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=HashEncoder(rows=10), sequence=sequence)
    fields: dict[str, Any] = {"embedding_name": table, "embedding_dim": 4, "rows": 10} | other
    return Feature(name=name, spec=spec, **fields)


def group(name: str, *features: str, kind: GroupKind = GroupKind.DEEP, **other: Any) -> FeatureGroupConfig:
    return FeatureGroupConfig(group_name=name, feature_names=features, group_type=kind, **other)


def problems(features: list[Feature], *groups: FeatureGroupConfig, wide: WideTables | None = None) -> list[str]:
    found = group_problems(groups, {feature.name: feature for feature in features}, wide)
    return [text for texts in found for text in texts]


def zch(**other: Any) -> ZchConfig:
    settings: dict[str, Any] = {"zch_size": 10, "eviction_policy": LfuPolicy()} | other
    return ZchConfig(**settings)


DIFFERENT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"rows": 11}, "rows (11 and 10)"),
    ({}, {"embedding_dim": 8}, "embedding_dim (8 and 4)"),
    ({}, {"dtype": "fp16"}, "data_type (fp16 and fp32)"),
    ({"dtype": "fp16"}, {"dtype": "bf16"}, "data_type (bf16 and fp16)"),
    ({}, {"trainable": False}, "trainable (False and True)"),
    ({}, {"pooling": Pooling.MEAN}, "pooling (mean and sum)"),
    ({}, {"init": InitSpec.parse("nn.init.zeros_")}, "init_fn (nn.init.zeros_ and unset)"),
    ({}, {"zch": LFU}, "zch (True and False), zch kind (mch and None), zch policy (lfu and None), zch eviction_interval (5 and None)"),
    (
        {},
        {"constraints": EmbeddingConstraints(sharding_types=("row_wise",))},
        "embedding_constraints (sharding_types row_wise and none)",
    ),
    ({"zch": LFU}, {"zch": zch(zch_size=11), "rows": 11}, "rows (11 and 10)"),
    (
        {"zch": LFU},
        {"zch": zch(eviction_policy=LruPolicy())},
        "zch policy (lru decay_exponent 1 and lfu)",
    ),
    (
        {"zch": zch(eviction_policy=DistanceLfuPolicy())},
        {"zch": zch(eviction_policy=DistanceLfuPolicy(decay_exponent=2.0))},
        "zch policy (distance_lfu decay_exponent 2 and distance_lfu decay_exponent 1)",
    ),
    ({"zch": LFU}, {"zch": zch(eviction_interval=7)}, "zch eviction_interval (7 and 5)"),
    ({"zch": LFU}, {"zch": zch(routing="range")}, "zch routing (range and mixed)"),
    ({"zch": LFU}, {"zch": zch(history_size=7)}, "zch history_size (7 and None)"),
    (
        {"zch": LFU},
        {"zch": zch(threshold_filtering_func=ThresholdFilterSpec.parse("average_threshold_filter"))},
        "zch threshold_filtering_func (average_threshold_filter and None)",
    ),
    ({}, {"rows": 11, "trainable": False}, "rows (11 and 10), trainable (False and True)"),
]


@pytest.mark.parametrize(("first", "second", "words"), DIFFERENT)
def test_readers_that_differ_cannot_share_a_table(first: dict[str, Any], second: dict[str, Any], words: str) -> None:
    features = [sparse("a", **first), sparse("b", **second)]
    (problem,) = problems(features, group("one", "a"), group("two", "b"))
    start = "feature_groups 'two': feature 'b' and feature 'a' of feature_groups 'one' can't share the table 't': they differ in "
    assert problem.startswith(start)
    assert words in problem
    assert problems(features, group("one", "a"), group("two", "b", embedding_name_suffix="x")) == []


@pytest.mark.parametrize(("first", "second", "words"), [case for case in DIFFERENT if "pooling" not in case[1]])
def test_nor_can_those_that_keep_steps(first: dict[str, Any], second: dict[str, Any], words: str) -> None:
    features = [sparse("a", **first), sparse("s", sequence=True, **second)]
    nested = (SequenceGroupConfig(group_name="i", feature_names=("s",)),)
    outer = group("two", sequence_groups=nested, sequence_encoders=(PoolingEncoderConfig(),))
    (problem,) = problems(features, group("one", "a"), outer)
    start = "feature_groups 'two': sequence_groups 'i': feature 's' and feature 'a' of feature_groups 'one' can't share the table 't'"
    assert problem.startswith(start)
    assert words in problem
    (problem,) = problems(features, outer, group("one", "a", kind=SEQUENCE))
    assert problem.startswith("feature_groups 'one': feature 'a' and feature 's' of feature_groups 'two': sequence_groups 'i' can't share")


def test_poolings_may_differ_but_not_between_deep_groups() -> None:
    features = [sparse("a"), sparse("b", pooling=Pooling.MEAN), sparse("s", sequence=True)]
    assert problems(features, group("deep", "a"), group("seq", "b", "s", kind=SEQUENCE)) == []
    assert problems(features, group("seq", "s", kind=SEQUENCE), group("one", "a"), group("two", "b")) == [
        "feature_groups 'two': feature 'b' and feature 'a' of feature_groups 'one' can't share the table 't': they differ in pooling (mean and sum)"
    ]


def test_each_pair_is_told_once() -> None:
    features = [sparse("a"), sparse("b", rows=11), sparse("c", rows=11)]
    found = problems(features, group("one", "a"), group("two", "b", "c"), group("three", "b"), group("four", "a", "c"))
    assert [text.split(" and feature")[0] for text in found] == ["feature_groups 'two': feature 'b'", "feature_groups 'two': feature 'c'"]


def test_wide_tables_are_judged_by_what_they_are_in_wide_groups() -> None:
    features = [sparse("a"), sparse("b", embedding_dim=8, init=InitSpec.parse("nn.init.ones_"))]
    groups = [group("wide", "a", "b", kind=WIDE)]
    told = [
        "feature_groups 'wide': feature 'b' and feature 'a' of feature_groups 'wide' can't share the table 't_wide': they differ in "
        "init_fn (nn.init.ones_ and unset)"
    ]
    assert problems(features, *groups, wide=WideTables(init=InitSpec.parse("nn.init.zeros_"))) == []
    assert problems(features, *groups, wide=WideTables()) == told
    assert problems(features, *groups, wide=None) == []


@pytest.mark.parametrize(
    "groups",
    [
        [group("one", "a", embedding_name_suffix="x"), group("two", "b")],
        [group("one", "a", embedding_name_suffix="x"), group("two", "b", kind=SEQUENCE)],
        [group("one", "wide", kind=WIDE), group("two", "narrow")],
    ],
)
def test_names_that_meet_by_a_suffix_are_refused(groups: list[FeatureGroupConfig]) -> None:
    features = [sparse("a", "t"), sparse("b", "t_x"), sparse("wide", "w"), sparse("narrow", "w_wide")]
    table = "w_wide" if groups[0].group_type is WIDE else "t_x"
    first, second = groups[0].feature_names[0], groups[1].feature_names[0]
    assert problems(features, *groups, wide=WideTables()) == [
        f"feature_groups 'two': feature {second!r} and feature {first!r} of feature_groups 'one' come to one table {table!r} by different "
        "embedding_name_suffix values or names; change embedding_name or embedding_name_suffix"
    ]


def test_names_that_only_a_suffix_makes_bad_are_refused() -> None:
    features = [sparse("a", "load_state"), sparse("b", "t" * 199)]
    found = problems(features, group("one", "a", embedding_name_suffix="dict"), group("two", "b", "a", embedding_name_suffix="dict"))
    assert found == [
        "feature_groups 'one': feature 'a': its table's name 'load_state_dict' is a name that torch keeps for itself; choose another, such as "
        "'load_state_dict_emb'",
        f"feature_groups 'two': feature 'b': its table's name '{'t' * 199}_dict' is longer than 200 bytes",
    ]


def test_features_with_problems_of_their_own_are_left_out() -> None:
    groups = [group("one", "a", "gone"), group("two", "b")]
    found = group_problems(groups, {"a": sparse("a"), "b": None})
    assert [text for texts in found for text in texts] == ["feature_groups 'one': unknown feature 'gone'; known: a, b"]
