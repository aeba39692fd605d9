from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import GroupKind, TableKind, TableSpec
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import SequenceGroupConfig
from emberline.train.embedding import TableRegistry
from emberline.train.encoders import PoolingEncoderConfig
from emberline.train.features import LfuPolicy, ZchConfig

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


def test_wide_groups_override_dim_and_init_before_sharing_is_judged(make: Any) -> None:
    init = InitSpec.parse("nn.init.zeros_")
    features = [make.sparse("a", embedding_name="t", dim=4), make.sparse("b", embedding_name="t", dim=8, init=init)]
    groups = [make.group("wide", "a", "b", group_type=GroupKind.WIDE)]
    registry = TableRegistry(features, groups, wide_init=init)
    assert [(table.name, table.dim, table.init) for table in registry.tables] == [("t_wide", 4, init)]


def test_all_problems_come_in_one_error(make: Any) -> None:
    features = [
        make.sparse("a"),
        make.sparse("a"),
        make.sparse("b", embedding_name="a_emb", rows=7),
        make.sparse("flat", dim=0),
    ]
    groups = [make.group("g", "a", "missing"), make.group("h", "a"), make.group("h", "b"), make.group("x.y", "a")]
    with pytest.raises(ConfigError) as caught:
        TableRegistry(features, groups)
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "feature 'a': 2 features have this name",
        "feature 'flat': embedding_dim must be at least 1, found 0",
        "feature_groups 'g': unknown feature 'missing'",
        "feature_groups 'h': 2 groups have this name",
        "feature_groups 'h': feature 'b' and feature 'a' of feature_groups 'g' can't share the table 'a_emb': they differ in rows (7 and 10)",
        "feature_groups 'x.y': group_name 'x.y' may only have letters, digits, '_' and '-'",
    ]


def test_nested_groups_inherit_the_suffix_unless_they_have_one(make: Any) -> None:
    features = [make.sparse("a"), make.sequence("s")]

    def tables(suffix: str | None) -> list[str]:
        nested = (SequenceGroupConfig(feature_names=("a", "s"), embedding_name_suffix=suffix),)
        outer = make.group("g", "a", sequence_groups=nested, sequence_encoders=(PoolingEncoderConfig(),), embedding_name_suffix="p")
        return [table.name for table in TableRegistry(features, [outer]).tables]

    assert tables(None) == ["a_emb_p", "s_emb_p"]
    assert tables("c") == ["a_emb_p", "a_emb_c", "s_emb_c"]
    assert tables("") == ["a_emb_p", "a_emb", "s_emb"]


def test_the_callers_groups_are_left_as_they_are(make: Any) -> None:
    nested = (SequenceGroupConfig(feature_names=("s",)),)
    config = make.group("g", "a", sequence_groups=nested, sequence_encoders=(PoolingEncoderConfig(),), embedding_name_suffix="x")
    registry = TableRegistry([make.sparse("a"), make.sequence("s")], [config])
    assert [(group.name, group.parent) for group in registry.sequence_groups] == [("g", "g")]
    assert (config.sequence_groups[0].group_name, config.sequence_groups[0].embedding_name_suffix, config.sequence_encoders[0].input) == (
        "",
        None,
        "",
    )


def test_no_groups_is_a_model_without_tables(make: Any) -> None:
    registry = TableRegistry([make.sparse("a")], [])
    assert (registry.tables, registry.lookups, registry.groups) == ((), (), ())
