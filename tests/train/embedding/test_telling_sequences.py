"""SEQUENCE, JAGGED_SEQUENCE and nested groups: every form of the program, steps of one id and of several, plain tables and id maps."""

from typing import Any

import pytest
import torch

from emberline.schema import GroupKind
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import PoolingEncoderConfig
from tests.train.embedding.telling import (
    BUY,
    CLICK,
    FORMS,
    SHAPES,
    TABLES,
    Rows,
    build,
    features,
    nested,
    parts_of,
    sequence_rows,
    several_ids,
    system,
)

pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
SEQUENCE, JAGGED = GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE
SOME = ("cat_a", "int_a", "click_seq__cat_a", "click_seq__int_a")
STEPS_ONLY = ("click_seq__cat_a", "click_seq__int_a")
ROWS = sequence_rows()
OTHERS = [ROWS, sequence_rows((4, 0), (1, 0)), sequence_rows((0, 0), (0, 0)), sequence_rows((2, 0, 7), (0, 3, 1))]


def all_groups(make: Any) -> list[FeatureGroupConfig]:
    """Two SEQUENCE groups, and the same features and some of them again in nested groups, which share the tables."""
    inner = (nested("all", *CLICK), nested("some", *SOME), nested("steps_only", *STEPS_ONLY))
    encoders = tuple(PoolingEncoderConfig(input=one.group_name) for one in inner)
    return [
        make.group("click", *CLICK, group_type=SEQUENCE),
        make.group("buy", *BUY, group_type=SEQUENCE),
        make.group("deep", sequence_groups=inner, sequence_encoders=encoders),
    ]


def check_widths(group: EmbeddingGroup) -> None:
    """The widths by name, as counted from the features' own."""
    click, buy = {"cat_a": 16, "cat_b": 8, "int_a": 1}, {"cat_a": 16, "int_a": 1}
    expected = {"click.query": click, "all.query": click, "buy.query": buy, "some.query": buy, "steps_only.query": {}}
    expected |= {f"{name}.sequence": {f"click_seq__{key}": dim for key, dim in click.items()} for name in ("click", "all")}
    expected |= {f"{name}.sequence": {f"click_seq__{key}": dim for key, dim in buy.items()} for name in ("some", "steps_only")}
    expected |= {"buy.sequence": {f"buy_seq__{key}": dim for key, dim in buy.items()}}
    for name, dims in expected.items():
        assert group.group_feature_dims(name) == dims
        assert group.group_dims(name) == list(dims.values())
        assert group.group_total_dim(name) == sum(dims.values())
    assert {name: group.group_total_dim(name) for name in ("click", "all", "buy", "some", "steps_only", "deep")} == {
        "click": 50,
        "all": 50,
        "buy": 34,
        "some": 34,
        "steps_only": 17,
        "deep": 59,
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tables", TABLES)
def test_groups_that_share_sequences(make: Any, tables: str, form: str) -> None:
    asked = system(make, features(tables), all_groups(make), ROWS, form)
    check_widths(asked.group)
    found, *_ = [asked.check(rows) for rows in OTHERS]
    assert "steps_only.query" not in found
    assert {key: tuple(found[key].shape) for name in ("click", "buy", "some") for key in parts_of(name)} == SHAPES | {
        "some.query": (2, 17),
        "some.sequence": (2, 3, 17),
        "some.sequence_length": (2,),
    }
    for part in ("query", "sequence", "sequence_length"):
        assert torch.equal(found[f"click.{part}"], found[f"all.{part}"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tables", TABLES)
@pytest.mark.parametrize("multi", ["sum", "mean"])
def test_steps_and_bags_of_several_ids_and_of_none(make: Any, multi: str, tables: str, form: str) -> None:
    rows = several_ids()
    asked = system(make, features(tables, multi=multi), all_groups(make), rows, form)
    check_widths(asked.group)
    found = asked.check(rows)
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert not found["click.sequence"][0, 1, :16].any()  # a step without ids
    assert not found["click.query"][1, :16].any()  # a bag without ids


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tables", TABLES)
def test_jagged_groups(make: Any, tables: str, form: str) -> None:
    groups = [make.group("click", *CLICK, group_type=JAGGED), make.group("buy", *BUY, group_type=JAGGED)]
    asked = system(make, features(tables), groups, ROWS, form)
    group = asked.group
    assert (group.group_total_dim("click.query"), group.group_total_dim("buy.sequence"), group.group_total_dim("buy")) == (25, 17, 34)
    found, *_ = [asked.check(rows) for rows in OTHERS]
    assert (found["click.sequence"].shape, found["buy.sequence"].shape) == ((6, 25), (4, 17))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tables", TABLES)
def test_suffixes_give_sequence_groups_tables_of_their_own(make: Any, tables: str, form: str) -> None:
    groups = [make.group(name, *SOME, group_type=SEQUENCE, embedding_name_suffix=name) for name in ("x", "y")]
    rows = sequence_rows((3, 5))
    found = system(make, features(tables), groups, rows, form).check(rows)
    assert (found["x.query"].shape, found["x.sequence"].shape) == ((2, 17), (2, 5, 17))
    assert not torch.equal(found["x.query"], found["y.query"])
    assert not torch.equal(found["x.sequence"], found["y.sequence"])


@pytest.mark.parametrize("tables", TABLES)
def test_each_feature_is_looked_up_once_for_all_groups(make: Any, tables: str) -> None:
    """What crosses from the tables to the program: the four features of ids, each once, whoever reads them."""
    groups = all_groups(make)[:1] + all_groups(make)[2:]
    group, rows = build(make, features(tables), groups, ROWS), ROWS
    assert [lookup.key for lookup in group.lookups] == ["cat_a", "cat_b"]
    assert [lookup.key for lookup in group.sequence_lookups] == ["click_seq__cat_a", "click_seq__cat_b"]
    parts = group.sequence_lookup(rows.batch(make))
    assert sorted(parts.values) == ["click_seq__cat_a", "click_seq__cat_b", "click_seq__int_a"]
    assert group.lookup(rows.batch(make)).shape == (2, 24)


def test_a_value_of_one_id_takes_one(make: Any) -> None:
    """A query of one id a row is pooled like any bag: more ids are not dropped without a word, and none is zeros."""
    rows = Rows({**ROWS.ids, "cat_a": [[1, 2, 3], []]}, numbers=ROWS.numbers, dense=ROWS.dense)
    asked = system(make, features(), [make.group("click", *CLICK, group_type=SEQUENCE)], rows)
    found = asked.check(rows)
    table = asked.group.table_weights()["cat_a_emb"]
    torch.testing.assert_close(found["click.query"][0, :16], table[1] + table[2] + table[3])
    assert not found["click.query"][1, :16].any()
