"""DEEP and WIDE groups: every form of the program, plain tables and id maps, against loops over the tables."""

from typing import Any

import pytest

from emberline.schema import GroupKind
from tests.train.embedding.telling import FORMS, TABLES, Rows, features, system

pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
WIDE = GroupKind.WIDE
ROWS = Rows({"cat_a": [[1], [2, 3]], "cat_b": [[5], [6, 7, 999]]}, dense={"int_a": [[0.25], [-4]]})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tables", TABLES)
def test_a_wide_and_a_deep_group_of_the_same_ids(make: Any, tables: str, form: str) -> None:
    groups = [make.group("wide", "cat_a", "cat_b", group_type=WIDE), make.group("deep", "cat_a", "cat_b", "int_a")]
    asked = system(make, features(tables, sequences=False), groups, ROWS, form)
    group = asked.group
    assert (group.group_dims("wide"), group.group_total_dim("wide")) == ([4, 4], 8)
    assert (group.group_dims("deep"), group.group_total_dim("deep")) == ([16, 8, 1], 25)
    assert group.group_feature_dims("wide") == {"cat_a": 4, "cat_b": 4}
    assert group.group_feature_dims("deep") == {"cat_a": 16, "cat_b": 8, "int_a": 1}
    found = asked.check(ROWS)
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == {"wide": (2, 8), "deep": (2, 25)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tables", TABLES)
def test_a_wide_group_alone(make: Any, tables: str, form: str) -> None:
    groups = [make.group("wide", "cat_a", "cat_b", group_type=WIDE)]
    assert system(make, features(tables, sequences=False), groups, ROWS, form).check(ROWS)["wide"].shape == (2, 8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("multi", ["sum", "mean"])
def test_sequences_of_ids_are_pooled_where_a_group_lists_them_by_itself(make: Any, multi: str, form: str) -> None:
    groups = [make.group("deep", "click_seq__cat_a", "int_a", "cat_a"), make.group("wide", "click_seq__cat_a", group_type=WIDE)]
    bags = {"cat_a": [[1], []], "click_seq__cat_a": [[4, 4, 9], []]}
    rows = Rows(bags, dense={"int_a": [[1], [2]]})
    asked = system(make, features(multi=multi), groups, rows, form)
    found = asked.check(rows)
    assert asked.group.group_feature_dims("deep") == {"click_seq__cat_a": 16, "int_a": 1, "cat_a": 16}
    assert found["wide"].shape == (2, 4)
    assert not found["wide"][1].any()
