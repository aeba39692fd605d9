"""What groups say about themselves, for every kind of group, and that it is what they give."""

from typing import Any

import pytest
import torch

from emberline.errors import ConfigError
from emberline.schema import GroupKind, GroupSpec, StreamSpec
from emberline.train.config.group_configs import SequenceGroupConfig
from emberline.train.config.model_config import MlpConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import DinEncoderConfig, PoolingEncoderConfig, SimpleAttentionConfig

DEEP, WIDE, SEQ, JAGGED = GroupKind.DEEP, GroupKind.WIDE, GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE


@pytest.fixture
def group(make: Any) -> EmbeddingGroup:
    features = [
        make.sparse("a", dim=16),
        make.sparse("b", dim=8),
        make.dense("x"),
        make.sequence("click__a", dim=16),
        make.sequence("click__b", dim=8),
        make.numbers("click__x"),
        make.sequence("buy__a", dim=16),
        make.numbers("buy__x"),
    ]
    click = SequenceGroupConfig(group_name="click", feature_names=("a", "b", "x", "click__a", "click__b", "click__x"))
    buy = SequenceGroupConfig(group_name="buy", feature_names=("a", "x", "buy__a", "buy__x"))
    alone = SequenceGroupConfig(feature_names=("a", "x", "buy__a", "buy__x"))
    groups = [
        make.group("wide", "a", "b", group_type=WIDE),
        make.group(
            "deep",
            "a",
            "b",
            "x",
            sequence_groups=(click, buy),
            sequence_encoders=(DinEncoderConfig(input="click", attn_mlp=MlpConfig(hidden_units=(8, 4))), SimpleAttentionConfig(input="buy")),
        ),
        make.group("only_buy", sequence_groups=(alone,), sequence_encoders=(SimpleAttentionConfig(), PoolingEncoderConfig())),
        make.group("seq", "click__a", "a", "click__b", "x", group_type=SEQ),
        make.group("jag", "click__x", "click__b", group_type=JAGGED),
    ]
    return EmbeddingGroup(features, groups)


def test_names_and_kinds(group: EmbeddingGroup) -> None:
    assert group.group_names() == ["wide", "deep", "only_buy", "seq", "jag"]
    assert group.grouped_features_keys() == [
        "deep",
        "jag.query",
        "jag.sequence",
        "jag.sequence_length",
        "only_buy",
        "seq.query",
        "seq.sequence",
        "seq.sequence_length",
        "wide",
    ]
    assert [group.has_group(name) for name in ("seq", "seq.query", "only_buy", "click", "click.query", "se")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    kinds = {"wide": WIDE, "deep": DEEP, "seq": SEQ, "seq.sequence_length": SEQ, "jag.query": JAGGED, "click": SEQ, "buy.sequence": SEQ}
    assert {name: group.group_type(name) for name in kinds} == kinds
    assert group.group_type("only_buy") is DEEP
    assert group.group_type("only_buy.query") is SEQ


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("wide", {"a": 4, "b": 4}),
        ("deep", {"a": 16, "b": 8, "x": 1, "deep_seq_encoder_0": 25, "deep_seq_encoder_1": 17}),
        ("only_buy", {"only_buy_seq_encoder_0": 17, "only_buy_seq_encoder_1": 17}),
        ("seq", {"click__a": 16, "a": 16, "click__b": 8, "x": 1}),
        ("seq.query", {"a": 16, "x": 1}),
        ("seq.sequence", {"click__a": 16, "click__b": 8}),
        ("jag", {"click__x": 1, "click__b": 8}),
        ("jag.query", {}),
        ("jag.sequence", {"click__x": 1, "click__b": 8}),
        ("click", {"a": 16, "b": 8, "x": 1, "click__a": 16, "click__b": 8, "click__x": 1}),
        ("click.query", {"a": 16, "b": 8, "x": 1}),
        ("buy.sequence", {"buy__a": 16, "buy__x": 1}),
        ("only_buy.sequence", {"buy__a": 16, "buy__x": 1}),
    ],
)
def test_widths(group: EmbeddingGroup, name: str, dims: dict[str, int]) -> None:
    assert list(group.group_feature_dims(name).items()) == list(dims.items())
    assert group.group_dims(name) == list(dims.values())
    assert group.group_total_dim(name) == sum(dims.values())


def test_every_tensor_is_as_wide_as_its_group_says(group: EmbeddingGroup, make: Any) -> None:
    ids = {"a": [[1], [2]], "b": [[1], [2]], "click__a": [[1, 2, 3], [4]], "click__b": [[1, 2, 3], [4]], "buy__a": [[5], [6, 7]]}
    numbers = {"click__x": [[[1], [2], [3]], [[4]]], "buy__x": [[[1]], [[2], [3]]]}
    found = group(make.steps(ids, numbers=numbers, dense={"x": [[2], [1]]}))
    wanted = {name for name in group.grouped_features_keys() if group.group_total_dim(name.removesuffix("_length"))}
    nested = {f"{name}.{part}" for name in ("click", "buy", "only_buy") for part in ("query", "sequence", "sequence_length")}
    assert set(found) == wanted | nested
    assert list(found)[:4] == ["wide", "deep", "click.query", "click.sequence"]
    for key, tensor in found.items():
        if key.endswith("_length"):
            assert tensor.shape == (2,)
        else:
            assert tensor.shape[-1] == group.group_total_dim(key), key
            assert tensor.dtype == torch.float32
    steps = {"click": 3, "buy": 2, "only_buy": 2, "seq": 3}
    assert {name: found[f"{name}.sequence"].shape[1] for name in steps} == steps
    assert found["jag.sequence"].shape == (4, 9)


def test_specs_for_serving(group: EmbeddingGroup) -> None:
    assert group.groups == (
        GroupSpec(name="wide", kind=WIDE, dim=8),
        GroupSpec(name="deep", kind=DEEP, dim=67),
        GroupSpec(name="only_buy", kind=DEEP, dim=34),
        GroupSpec(name="seq.query", kind=SEQ, dim=17),
        GroupSpec(name="seq.sequence", kind=SEQ, dim=24, stream="click__a"),
        GroupSpec(name="seq.sequence_length", kind=SEQ, dim=0, stream="click__a"),
        GroupSpec(name="jag.sequence", kind=JAGGED, dim=9, stream="click__a"),
        GroupSpec(name="jag.sequence_length", kind=JAGGED, dim=0, stream="click__a"),
    )
    assert group.streams == (
        StreamSpec(features=("click__a", "click__b", "click__x"), padded=True),
        StreamSpec(features=("buy__a", "buy__x"), padded=True),
    )
    assert [(spec.name, spec.is_padded, spec.is_jagged, spec.is_lengths) for spec in group.groups if spec.stream] == [
        ("seq.sequence", True, False, False),
        ("seq.sequence_length", False, False, True),
        ("jag.sequence", False, True, False),
        ("jag.sequence_length", False, False, True),
    ]


@pytest.mark.parametrize(
    ("groups", "streams"),
    [
        ([("a", JAGGED)], [(("a",), False)]),
        ([("ab", JAGGED), ("bc", SEQ), ("d", JAGGED)], [(("a", "b", "c"), True), (("d",), False)]),
        ([("ab", SEQ), ("cd", JAGGED), ("db", JAGGED)], [(("a", "b", "c", "d"), True)]),
        ([("ba", JAGGED), ("c", SEQ)], [(("b", "a"), False), (("c",), True)]),
    ],
)
def test_sequences_side_by_side_anywhere_are_one_stream(
    make: Any, groups: list[tuple[str, GroupKind]], streams: list[tuple[tuple[str, ...], bool]]
) -> None:
    features = [make.sequence(name) for name in "abcd"]
    group = EmbeddingGroup(features, [make.group(f"g{number}", *names, group_type=kind) for number, (names, kind) in enumerate(groups)])
    assert [(stream.features, stream.padded) for stream in group.streams] == streams


@pytest.mark.parametrize("name", ["tall", "tall.query", "wide.x.y.z"])
def test_unknown_groups(group: EmbeddingGroup, name: str) -> None:
    if name.startswith("wide"):
        assert group.group_total_dim(name) == 8  # the name is cut at the first dot
        return
    with pytest.raises(ConfigError, match=f"there is no feature group '{name}'; the groups are wide, deep, only_buy, seq, jag, click, buy"):
        group.group_dims(name)


def test_encoders_follow_the_features_in_their_order(make: Any) -> None:
    features = [make.sparse("a"), make.sequence("s"), make.sequence("t")]
    nested = tuple(SequenceGroupConfig(group_name=name, feature_names=(name,)) for name in "st")
    encoders = (PoolingEncoderConfig(input="t"), PoolingEncoderConfig(input="s", pooling_type="sum"), PoolingEncoderConfig(input="s"))
    group = EmbeddingGroup(features, [make.group("deep", "a", sequence_groups=nested, sequence_encoders=encoders)])
    make.counted(group, a_emb=0, s_emb=10, t_emb=100)
    found = group(make.steps({"a": [[1], []], "s": [[1, 3], []], "t": [[5], [6, 7]]}))["deep"]
    assert found[:, ::4].tolist() == [[1, 105, 24, 12], [0, 106.5, 0, 0]]


def test_a_group_of_sequences_only_works_alone(make: Any) -> None:
    nested = SequenceGroupConfig(feature_names=("s",))
    group = EmbeddingGroup([make.sequence("s")], [make.group("deep", sequence_groups=(nested,), sequence_encoders=(PoolingEncoderConfig(),))])
    make.counted(group, s_emb=0)
    found = group(make.steps({"s": [[1, 2], [], [5]]}))
    assert list(found) == ["deep", "deep.sequence", "deep.sequence_length"]
    assert found["deep"][:, 0].tolist() == [1.5, 0, 5]
    assert (group.group_dims("deep"), group.group_total_dim("deep")) == ([4], 4)
    assert found["deep"].shape == (3, 4)


def test_encoders_that_cannot_be_are_refused_with_the_group(make: Any) -> None:
    features = [make.sparse("wide", dim=8), make.sequence("s")]
    bad = DinEncoderConfig(input="w", attn_mlp=MlpConfig(hidden_units=(4,)))
    nested = (SequenceGroupConfig(group_name="w", feature_names=("wide", "s")), SequenceGroupConfig(group_name="n", feature_names=("s",)))
    groups = [make.group("deep", sequence_groups=nested, sequence_encoders=(bad, SimpleAttentionConfig(input="n")))]
    with pytest.raises(ConfigError) as caught:
        EmbeddingGroup(features, groups)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["feature_groups 'deep'"] * 2
    assert "the query is wider (8) than a step of the sequence (4)" in caught.value.problems[0]
    assert "needs a query" in caught.value.problems[1]
