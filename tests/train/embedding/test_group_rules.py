"""Groups that cannot be: each refused by name, all at once, and none that can be."""

from collections.abc import Sequence
from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import GroupKind, Pooling
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.embedding import EmbeddingGroup, TableRegistry
from emberline.train.encoders import PoolingEncoderConfig
from emberline.train.features import LfuPolicy, ZchConfig

POOL = PoolingEncoderConfig()
ZCH = ZchConfig(zch_size=10, eviction_policy=LfuPolicy())


def pool(*inputs: str) -> tuple[PoolingEncoderConfig, ...]:
    return tuple(PoolingEncoderConfig(input=name) for name in inputs)


def nested(name: str, *features: str, suffix: str | None = None) -> SequenceGroupConfig:
    return SequenceGroupConfig(group_name=name, feature_names=features, embedding_name_suffix=suffix)


def group(name: str, *features: str, inner: Sequence[SequenceGroupConfig] = (), encoders: Sequence[Any] = (), **other: Any) -> FeatureGroupConfig:
    return FeatureGroupConfig(group_name=name, feature_names=features, sequence_groups=tuple(inner), sequence_encoders=tuple(encoders), **other)


def problems(make: Any, *groups: FeatureGroupConfig) -> tuple[str, ...]:
    features = [
        make.sparse("a"),
        make.dense("x"),
        make.sequence("s"),
        make.sequence("t"),
        make.numbers("n"),
        make.sequence("neg", data_group="__NEG__"),
    ]
    try:
        TableRegistry(features, groups)
    except ConfigError as error:
        return error.problems
    return ()


SEQUENCE: dict[str, Any] = {"group_type": GroupKind.SEQUENCE}
JAGGED: dict[str, Any] = {"group_type": GroupKind.JAGGED_SEQUENCE}
WIDE: dict[str, Any] = {"group_type": GroupKind.WIDE}
BAD: dict[str, tuple[list[FeatureGroupConfig], str]] = {
    "groups without encoders": ([group("g", "a", inner=[nested("i", "s")])], "feature group 'g' has sequence_groups, but no sequence_encoders"),
    "encoders without groups": ([group("g", "a", encoders=[POOL])], "feature group 'g' has sequence_encoders, but no sequence_groups"),
    "several groups and a nameless one": (
        [group("g", inner=[nested("", "s"), nested("j", "t")], encoders=pool("j"))],
        "feature group 'g' has 2 sequence_groups, and number 1 has no group_name; name each",
    ),
    "one name in two groups": (
        [group("g", inner=[nested("i", "s")], encoders=[POOL]), group("h", inner=[nested("i", "t")], encoders=[POOL])],
        "sequence group 'i' is in feature group 'g' and in 'h'; give each a name of its own",
    ),
    "one name twice in a group": (
        [group("g", inner=[nested("i", "s"), nested("i", "t")], encoders=pool("i"))],
        "feature group 'g' has two sequence groups 'i'; give each a name of its own",
    ),
    "the name of a sequence group": (
        [group("g", inner=[nested("h", "s")], encoders=[POOL]), group("h", "t", **SEQUENCE)],
        "sequence group 'h' of feature group 'g' has the name of a feature group; rename one of them",
    ),
    "an encoder without input": (
        [group("g", inner=[nested("i", "s"), nested("j", "t")], encoders=[*pool("i", "j"), POOL])],
        "feature group 'g': sequence encoder 2 must name its input; the sequence groups are i, j",
    ),
    "an unknown input": (
        [group("g", inner=[nested("i", "s")], encoders=pool("i", "k"))],
        "feature group 'g': sequence encoder 1 has input 'k'; the sequence groups are i",
    ),
    "a group without encoder": (
        [group("g", inner=[nested("i", "s"), nested("j", "t")], encoders=pool("i"))],
        "feature group 'g': sequence group 'j' is the input of no sequence encoder; add one, or take the group out",
    ),
    "nested in a sequence group": (
        [group("g", "s", inner=[nested("i", "s")], encoders=[POOL], **SEQUENCE)],
        "feature group 'g' is SEQUENCE, but sequence_groups and sequence_encoders must be in a DEEP group",
    ),
    "nested in a wide group": (
        [group("g", "a", inner=[nested("i", "s")], encoders=[POOL], **WIDE)],
        "feature group 'g' is WIDE, but sequence_groups and sequence_encoders must be in a DEEP group",
    ),
    "an encoder in a jagged group": ([group("g", "s", encoders=[POOL], **JAGGED)], "feature group 'g' is JAGGED_SEQUENCE, but sequence_groups"),
    "no features": ([group("g", **SEQUENCE)], "feature group 'g' has no features"),
    "no nested features": ([group("g", "a", inner=[nested("i")], encoders=[POOL])], "sequence group 'i' of feature group 'g' has no features"),
    "an unknown nested feature": (
        [group("g", inner=[nested("i", "s", "u")], encoders=[POOL])],
        "sequence group 'i' of feature group 'g' names feature 'u', which is not defined; the features are a, x, s, t, n, neg",
    ),
    "a repeated feature": ([group("g", "s", "s", **SEQUENCE)], "feature group 'g' names feature 's' 2 times; name it once"),
    "numbers of a sequence in a deep group": ([group("g", "a", "n")], "feature group 'g' is DEEP, but feature 'n' is a sequence of numbers"),
    "numbers of a sequence in a wide group": ([group("g", "a", "n", **WIDE)], "feature group 'g' is WIDE, but feature 'n' is dense"),
    "data groups in a sequence": (
        [group("g", "s", "neg", **SEQUENCE)],
        "feature group 'g' mixes data groups, which have different batch sizes: s in",
    ),
    "data groups inside and outside": (
        [group("g", "a", inner=[nested("i", "neg")], encoders=[POOL])],
        "feature group 'g' mixes data groups, which have different batch sizes: a in __BASE__; neg in __NEG__; make a group for each",
    ),
    "a dot in a nested name": ([group("g", inner=[nested("i.j", "s")], encoders=[POOL])], "group_name 'i.j' must not be empty, nor hold '.' or '@'"),
    "a name twice": ([group("g", "s", **SEQUENCE), group("g", "a")], "feature group 'g' is defined twice; give each group a name of its own"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_is_refused(make: Any, what: str) -> None:
    groups, words = BAD[what]
    (problem,) = problems(make, *groups)
    assert problem.startswith(words)


def test_all_problems_come_at_once(make: Any) -> None:
    groups = [replaced for number, (groups, _) in enumerate(BAD.values()) for replaced in groups if number in (0, 1, 11, 15)]
    assert len(problems(make, *groups)) == 4 + 3  # and three names that come twice


GOOD: dict[str, list[FeatureGroupConfig]] = {
    "one nameless group and an encoder without input": [group("g", "a", inner=[nested("", "a", "s")], encoders=[POOL])],
    "several encoders on one group": [group("g", inner=[nested("i", "s")], encoders=pool("i", "i", ""))],
    "a nested group of the parent's name": [group("g", "a", inner=[nested("g", "s")], encoders=pool("g"))],
    "sequences in every kind of group": [
        group("g", "a", "s"),
        group("w", "s", **WIDE),
        group("q", "a", "s", "n", **SEQUENCE),
        group("j", "n", **JAGGED),
    ],
    "a query alone": [group("q", "a", "x", **SEQUENCE)],
}


@pytest.mark.parametrize("what", GOOD)
def test_what_can_be_is_taken(make: Any, what: str) -> None:
    assert problems(make, *GOOD[what]) == ()


def test_the_callers_groups_are_left_as_they_are(make: Any) -> None:
    config = group("g", "a", inner=[nested("", "s")], encoders=[POOL], embedding_name_suffix="x")
    EmbeddingGroup([make.sparse("a"), make.sequence("s")], [config])
    assert (config.sequence_groups[0].group_name, config.sequence_encoders[0].input) == ("", "")


def test_nested_groups_inherit_the_suffix_unless_they_have_one(make: Any) -> None:
    features = [make.sparse("a"), make.sequence("s")]

    def tables(suffix: str | None) -> list[str]:
        inner = [nested("", "a", "s", suffix=suffix)]
        return [table.name for table in TableRegistry(features, [group("g", "a", inner=inner, encoders=[POOL], embedding_name_suffix="p")]).tables]

    assert tables(None) == ["a_emb_p", "s_emb_p"]
    assert tables("c") == ["a_emb_p", "a_emb_c", "s_emb_c"]
    assert tables("") == ["a_emb_p", "a_emb", "s_emb"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"dim": 8}, r"embedding_dim \(4 and 8\)"),
        ({"rows": 11}, r"rows \(10 and 11\)"),
        ({"zch": ZCH}, r"zch \(False and True\)"),
        ({"dtype": "fp16"}, r"data_type \(fp32 and fp16\)"),
        ({"trainable": False}, r"trainable \(True and False\)"),
    ],
)
def test_one_name_is_one_table_across_kinds_of_groups(make: Any, other: dict[str, Any], words: str) -> None:
    features = [make.sparse("a", embedding_name="t"), make.sequence("s", embedding_name="t", **other)]
    with pytest.raises(ConfigError, match=f"table 't' cannot be shared by features 'a' and 's': they differ in .*{words}"):
        TableRegistry(features, [group("deep", "a"), group("seq", "s", **SEQUENCE)])


def test_poolings_may_differ_but_not_between_deep_groups(make: Any) -> None:
    features = [
        make.sparse("a", embedding_name="t"),
        make.sparse("b", embedding_name="t", pooling=Pooling.MEAN),
        make.sequence("s", embedding_name="t"),
    ]
    TableRegistry(features, [group("deep", "a"), group("seq", "b", "s", **SEQUENCE)])
    with pytest.raises(ConfigError, match=r"table 't' cannot be shared by features 'a' and 'b': they differ in pooling \(sum and mean\)"):
        TableRegistry(features, [group("seq", "s", **SEQUENCE), group("one", "a"), group("two", "b")])


def test_a_suffix_must_lead_to_one_table_from_everywhere(make: Any) -> None:
    features = [make.sparse("a"), make.sequence("s", embedding_name="a_emb_x")]
    with pytest.raises(ConfigError, match="table 'a_emb_x' is reached with different embedding_name_suffix values or names"):
        TableRegistry(features, [group("one", "a", embedding_name_suffix="x"), group("two", "s", **SEQUENCE)])
