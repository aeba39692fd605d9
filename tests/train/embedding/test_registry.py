from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import GroupKind, Pooling, TableKind, TableSpec
from emberline.train.config.functions import InitSpec, ThresholdFilterSpec
from emberline.train.embedding import TableRegistry
from emberline.train.features import DistanceLfuPolicy, EmbeddingConstraints, LfuPolicy, LruPolicy, MlpEmbeddingConfig, ZchConfig
from emberline.train.features.configs import AutoDisConfig

LFU = ZchConfig(zch_size=10, eviction_policy=LfuPolicy())


def test_tables_are_named_after_features_groups_and_suffixes(make: Any) -> None:
    features = [make.sparse("a", dim=16), make.sparse("b", dim=8, embedding_name="shared"), make.sparse("c", dim=8, embedding_name="shared")]
    groups = [
        make.group("wide", "a", "b", group_type=GroupKind.WIDE),
        make.group("deep", "a", "b"),
        make.group("tower", "c", "b", embedding_name_suffix="x"),
        make.group("tower_wide", "a", embedding_name_suffix="x", group_type=GroupKind.WIDE),
    ]
    registry = TableRegistry(features, groups, wide_embedding_dim=2)
    assert {table.name: (table.dim, table.features) for table in registry.tables} == {
        "a_emb_wide": (2, ("a",)),
        "shared_wide": (2, ("b",)),
        "a_emb": (16, ("a",)),
        "shared": (8, ("b",)),
        "shared_x": (8, ("c", "b")),
        "a_emb_wide_x": (2, ("a",)),
    }
    by_group = {group.name: (group.lookups, group.dims) for group in registry.groups}
    assert by_group["deep"] == (("a@a_emb", "b@shared"), (16, 8))
    assert by_group["tower"] == (("c", "b@shared_x"), (8, 8))
    assert by_group["tower_wide"] == (("a@a_emb_wide_x",), (2,))


def test_one_name_is_one_table_across_groups(make: Any) -> None:
    registry = TableRegistry([make.sparse("a")], [make.group("one", "a"), make.group("two", "a")])
    assert [table.name for table in registry.tables] == ["a_emb"]
    assert [lookup.key for lookup in registry.lookups] == ["a"]


def test_lookups_are_ordered_by_the_module_that_does_them(make: Any) -> None:
    features = [make.sparse("z", zch=LFU), make.sparse("w", weighted=True), make.sparse("p"), make.sparse("v", zch=LFU, weighted=True)]
    registry = TableRegistry(features, [make.group("g", "z", "w", "p", "v")])
    assert [lookup.key for lookup in registry.lookups] == ["p", "w", "z", "v"]
    assert [lookup.weighted for lookup in registry.lookups] == [False, True, False, True]
    assert registry.tables[0].spec == TableSpec(name="z_emb", rows=10, dim=4, kind=TableKind.ZCH)


def test_a_table_with_one_weighted_reader_is_weighted_but_its_other_reader_is_not(make: Any) -> None:
    features = [make.sparse("a", embedding_name="t"), make.sparse("b", embedding_name="t", weighted=True)]
    registry = TableRegistry(features, [make.group("g", "a", "b")])
    assert registry.tables[0].weighted
    assert {lookup.key: lookup.weighted for lookup in registry.lookups} == {"a": False, "b": True}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"rows": 11}, r"rows \(10 and 11\)"),
        ({"dim": 8}, r"embedding_dim \(4 and 8\)"),
        ({"dtype": "fp16"}, r"data_type \(fp32 and fp16\)"),
        ({"trainable": False}, r"trainable \(True and False\)"),
        ({"pooling": Pooling.MEAN}, r"pooling \(sum and mean\)"),
        ({"init": InitSpec.parse("nn.init.zeros_")}, r"init_fn \(unset and nn.init.zeros_\)"),
        ({"zch": LFU}, r"zch \(False and True\)"),
        ({"constraints": EmbeddingConstraints(sharding_types=("row_wise",))}, "embedding_constraints"),
    ],
)
def test_features_that_differ_cannot_share_a_table(make: Any, other: dict[str, object], words: str) -> None:
    features = [make.sparse("a", embedding_name="t"), make.sparse("b", embedding_name="t", **other)]
    with pytest.raises(ConfigError, match=f"table 't' cannot be shared by features 'a' and 'b'.*{words}"):
        TableRegistry(features, [make.group("one", "a"), make.group("two", "b")])


@pytest.mark.parametrize(
    ("zch", "words"),
    [
        (ZchConfig(zch_size=11, eviction_policy=LfuPolicy()), r"rows \(10 and 11\)"),
        (ZchConfig(zch_size=10, eviction_policy=LruPolicy()), r"zch policy \(LfuPolicy\(\) and LruPolicy\(decay_exponent=1.0\)\)"),
        (ZchConfig(zch_size=10, eviction_policy=DistanceLfuPolicy()), "zch policy"),
        (ZchConfig(zch_size=10, eviction_policy=LfuPolicy(), eviction_interval=7), r"zch eviction_interval \(5 and 7\)"),
        (
            ZchConfig(zch_size=10, eviction_policy=LfuPolicy(), threshold_filtering_func=ThresholdFilterSpec.parse("average_threshold_filter")),
            "zch threshold_filtering_func",
        ),
    ],
)
def test_zch_settings_must_agree_on_a_shared_table(make: Any, zch: ZchConfig, words: str) -> None:
    features = [make.sparse("a", embedding_name="t", zch=LFU), make.sparse("b", embedding_name="t", zch=zch)]
    with pytest.raises(ConfigError, match=f"table 't' cannot be shared by features 'a' and 'b'.*{words}"):
        TableRegistry(features, [make.group("g", "a", "b")])


def test_wide_groups_override_dim_and_init_before_sharing_is_judged(make: Any) -> None:
    init = InitSpec.parse("nn.init.zeros_")
    features = [make.sparse("a", embedding_name="t", dim=4), make.sparse("b", embedding_name="t", dim=8, init=init)]
    groups = [make.group("wide", "a", "b", group_type=GroupKind.WIDE)]
    registry = TableRegistry(features, groups, wide_init=init)
    assert [(table.name, table.dim, table.init) for table in registry.tables] == [("t_wide", 4, init)]


def test_names_that_meet_by_a_suffix_are_refused(make: Any) -> None:
    features = [make.sparse("a"), make.sparse("b", embedding_name="a_emb_x"), make.sparse("c", embedding_name="a_emb_wide")]
    groups = [
        make.group("one", "a", embedding_name_suffix="x"),
        make.group("two", "b", "c"),
        make.group("three", "a", group_type=GroupKind.WIDE),
    ]
    with pytest.raises(ConfigError, match="different embedding_name_suffix values") as caught:
        TableRegistry(features, groups)
    first, second = caught.value.problems
    assert "table 'a_emb_x'" in first
    assert "feature 'a' in DEEP group 'one' with suffix 'x'" in first
    assert "feature 'b' in DEEP group 'two' with suffix ''" in first
    assert "table 'a_emb_wide'" in second


def test_all_problems_come_in_one_error(make: Any) -> None:
    features = [
        make.sparse("a"),
        make.sparse("a"),
        make.dense("d"),
        make.sparse("neg", data_group="__NEG__"),
        make.sparse("flat", dim=0),
        make.sparse("half", dtype="bf16"),
        make.dense("pair", 2, dense_embedding=AutoDisConfig(num_channels=3), embedding_dim=4),
        make.dense("thin", dense_embedding=MlpEmbeddingConfig()),
        make.sparse("dot.ted"),
        make.sparse("dynamic", use_dynamicemb=True),
        make.sparse("blind", zch=ZchConfig(zch_size=5)),
    ]
    groups = [
        make.group("g", "a", "a", "missing"),
        make.group("g", "a", "neg"),
        make.group("wide", "d", group_type=GroupKind.WIDE),
        make.group("empty"),
        make.group("seq", "a", group_type=GroupKind.SEQUENCE),
        make.group("x.y", "a"),
    ]
    with pytest.raises(ConfigError) as caught:
        TableRegistry(features, groups)
    expected = [
        "feature 'a' is defined twice",
        "feature 'flat' needs an embedding_dim",
        "feature 'half' has data_type BF16",
        "feature 'pair' has value_dim 2, but autodis takes one number",
        "feature 'thin' has a dense embedding and needs an embedding_dim",
        "feature 'dot.ted' must not be empty, nor hold",
        "embedding_name 'dot.ted_emb' must not be empty, nor hold",
        "feature 'dynamic': dynamicemb is not supported yet",
        "feature 'blind' has zch without a policy",
        "feature group 'g' names feature 'a' 2 times",
        "feature group 'g' names feature 'missing', which is not defined; the features are a, d, neg",
        "feature group 'g' is defined twice",
        "feature group 'g' mixes data groups, which have different batch sizes: a in __BASE__; neg in __NEG__",
        "feature group 'wide' is WIDE, but feature 'd' is dense",
        "feature group 'empty' has no features",
        "group_name 'x.y' must not be empty, nor hold",
    ]
    assert len(caught.value.problems) == len(expected)
    for problem, words in zip(caught.value.problems, expected, strict=True):
        assert words in problem


@pytest.mark.parametrize("name", ["keys", "training", "forward", "pop"])
def test_table_names_that_torch_needs_are_refused(make: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"table '{name}' has a name that PyTorch needs"):
        TableRegistry([make.sparse("a", embedding_name=name)], [make.group("g", "a")])


def test_no_groups_is_a_model_without_tables(make: Any) -> None:
    registry = TableRegistry([make.sparse("a")], [])
    assert (registry.tables, registry.lookups, registry.groups) == ((), (), ())
