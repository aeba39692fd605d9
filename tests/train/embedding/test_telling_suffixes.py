"""Which tables groups have under their suffixes, and that groups of one suffix share what those of others do not."""

from typing import Any

import pytest
import torch

from emberline.errors import ConfigError
from emberline.schema import GroupKind
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import PoolingEncoderConfig
from tests.train.embedding.telling import FORMS, features, nested, sequence_rows, system

pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
SEQUENCE = GroupKind.SEQUENCE
SOME = ("cat_a", "int_a", "click_seq__cat_a", "click_seq__int_a")
POOL = (PoolingEncoderConfig(),)
ROWS = sequence_rows((3, 1), (2, 0))


def deep(make: Any, name: str, suffix: str, **other: Any) -> FeatureGroupConfig:
    return make.group(name, "cat_a", "cat_b", embedding_name_suffix=suffix, **other)  # type: ignore[no-any-return]


CASES: dict[str, tuple[Any, set[str]]] = {
    "two suffixes": (
        lambda make: [deep(make, "a", "tower_a"), deep(make, "b", "tower_b")],
        {"cat_a_emb_tower_a", "cat_b_emb_tower_a", "cat_a_emb_tower_b", "cat_b_emb_tower_b"},
    ),
    "one suffix twice": (lambda make: [deep(make, "a", "shared"), deep(make, "b", "shared")], {"cat_a_emb_shared", "cat_b_emb_shared"}),
    "a wide group": (
        lambda make: [make.group("w", "cat_a", embedding_name_suffix="tower_a", group_type=GroupKind.WIDE)],
        {"cat_a_emb_wide_tower_a"},
    ),
    "a nested group without one": (
        lambda make: [deep(make, "a", "tower_a", sequence_groups=(nested("", *SOME),), sequence_encoders=POOL)],
        {"cat_a_emb_tower_a", "cat_b_emb_tower_a", "click_seq__cat_a_emb_tower_a"},
    ),
    "a nested group with its own": (
        lambda make: [deep(make, "a", "parent", sequence_groups=(nested("", *SOME, suffix="child"),), sequence_encoders=POOL)],
        {"cat_a_emb_parent", "cat_b_emb_parent", "cat_a_emb_child", "click_seq__cat_a_emb_child"},
    ),
    "a nested group with none": (
        lambda make: [deep(make, "a", "parent", sequence_groups=(nested("", *SOME, suffix=""),), sequence_encoders=POOL)],
        {"cat_a_emb_parent", "cat_b_emb_parent", "cat_a_emb", "click_seq__cat_a_emb"},
    ),
    "a sequence group": (
        lambda make: [make.group("s", "cat_b", "click_seq__cat_b", *SOME, group_type=SEQUENCE, embedding_name_suffix="x")],
        {"cat_a_emb_x", "cat_b_emb_x", "click_seq__cat_a_emb_x", "click_seq__cat_b_emb_x"},
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", CASES)
def test_tables_are_those_of_the_suffixes(make: Any, what: str, form: str) -> None:
    groups, tables = CASES[what]
    asked = system(make, features(), groups(make), ROWS, form)
    assert {table.name for table in asked.group.tables} == tables
    assert set(asked.group.table_weights()) == tables
    found = asked.check(ROWS)
    if what == "two suffixes":
        assert not torch.equal(found["a"], found["b"])
    if what == "one suffix twice":
        assert torch.equal(found["a"], found["b"])


def test_a_name_that_a_suffix_makes_is_not_anothers(make: Any) -> None:
    some = [make.sparse("cat_a"), make.sparse("other", embedding_name="cat_a_emb_x")]
    groups = [make.group("one", "cat_a", embedding_name_suffix="x"), make.group("two", "other")]
    with pytest.raises(ConfigError) as caught:
        EmbeddingGroup(some, groups)
    assert caught.value.problems == (
        "feature_groups 'two': feature 'other' and feature 'cat_a' of feature_groups 'one' come to one table 'cat_a_emb_x' by different "
        "embedding_name_suffix values or names; change embedding_name or embedding_name_suffix",
    )
