"""DSSM's towers and similarities against their formulas in float64."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from emberline.errors import ConfigError
from emberline.schema import ModelSchema, TowerSpec
from emberline.train.models import RecModel
from emberline.train.models.dssm import DssmHead
from emberline.train.models.tasks import MatchTask

ModelOf = Callable[[str], RecModel]
TEXT = """
data_config {{ {data} }}
feature_configs {{ id_feature {{ feature_name: "user" embedding_dim: 4 num_buckets: 5 }} }}
feature_configs {{ id_feature {{ feature_name: "item" embedding_dim: 6 num_buckets: 7 }} }}
model_config {{
  feature_groups {{ group_name: "u" feature_names: "user" }}
  feature_groups {{ group_name: "i" feature_names: "item" }} {extra}
  dssm {{
    user_tower {{ input: "u" mlp {{ hidden_units: [8, 5] }} }}
    item_tower {{ input: "i" mlp {{ hidden_units: [6] }} }}
    output_dim: 3 {model}
  }}
}}
"""
SOFTMAX = "losses { softmax_cross_entropy {} }"


def text(model: str = "", extra: str = "", data: str = "") -> str:
    return TEXT.format(model=model, extra=extra, data=data)


def groups(rows: int, items: int | None = None) -> dict[str, torch.Tensor]:
    return {"u": torch.randn(rows, 4), "i": torch.randn(rows if items is None else items, 6)}


def vectors(maths: Any, head: DssmHead, side: str, rows: list[list[float]], unit: bool) -> list[list[float]]:
    found = [maths.linear(head.towers[side].output, maths.mlp(head.towers[side].mlp, row)) for row in rows]
    return [[x / math.sqrt(maths.dot(row, row)) for x in row] for row in found] if unit else found


@pytest.mark.parametrize("unit", [False, True])
def test_it_is_its_formula(model_of: ModelOf, maths: Any, unit: bool) -> None:
    head = model_of(text(f"temperature: 0.25 similarity: {'COSINE' if unit else 'INNER_PRODUCT'}")).head
    assert isinstance(head, DssmHead)
    sample = groups(4, 12)
    users = vectors(maths, head, "user", sample["u"].tolist(), unit)
    items = vectors(maths, head, "item", sample["i"].tolist(), unit)
    found = head(sample)
    assert found["user_tower_emb"].tolist() == [pytest.approx(row, abs=1e-5) for row in users]
    assert found["item_tower_emb"].tolist() == [pytest.approx(row, abs=1e-5) for row in items]
    assert found["logits"].tolist() == pytest.approx([maths.dot(users[row], items[row]) / 0.25 for row in range(4)], abs=1e-5)


def test_vectors_of_zeros_have_no_direction_and_no_nan(model_of: ModelOf) -> None:
    head: Any = model_of(text("similarity: COSINE")).head
    with torch.no_grad():
        for parameter in head.towers.parameters():
            parameter.zero_()
    sample = groups(3)
    found = head(sample)
    torch.autograd.backward(found["logits"].sum())
    assert not found["logits"].any()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in head.towers.parameters())


def test_a_tower_reads_its_own_group_only(model_of: ModelOf) -> None:
    head, sample = model_of(text()).head, groups(3)
    assert isinstance(head, DssmHead)
    found = head(sample)
    assert torch.equal(head.towers["user"]({"u": sample["u"]}), found["user_tower_emb"])
    assert torch.equal(head.towers["item"]({"i": sample["i"]}), found["item_tower_emb"])


@pytest.mark.parametrize("side", ["user", "item"])
def test_towers_trace_alone(model_of: ModelOf, programs_agree: Any, side: str) -> None:
    from emberline.train.models.dssm import TowerHead

    head, key, width = model_of(text("similarity: COSINE")).head, side[0], {"user": 4, "item": 6}[side]
    assert isinstance(head, DssmHead)
    programs_agree(TowerHead(head.towers[side], "out"), [{key: torch.randn(rows, width)} for rows in (3, 0, 1, 9)])


@pytest.mark.parametrize("model", ["", "similarity: COSINE temperature: 0.1"])
def test_it_traces_and_exports(model_of: ModelOf, programs_agree: Any, model: str) -> None:
    programs_agree(model_of(text(model)).head, [groups(rows) for rows in (3, 0, 1, 9)])


def test_schema_names_the_towers(model_of: ModelOf) -> None:
    schema = model_of(text("in_batch_negative: true", SOFTMAX)).schema()
    assert [(output.name, output.width) for output in schema.outputs] == [("logits", 0), ("user_tower_emb", 3), ("item_tower_emb", 3)]
    assert schema.towers == (
        TowerSpec(name="user", groups=("u",), output="user_tower_emb"),
        TowerSpec(name="item", groups=("i",), output="item_tower_emb"),
    )
    assert ModelSchema.from_dict(schema.to_dict()) == schema
    older = {name: part for name, part in schema.to_dict().items() if name != "towers"}
    assert ModelSchema.from_dict(older).towers == ()
    assert [output.name for output in model_of(text()).schema().outputs] == ["logits", "probs", "user_tower_emb", "item_tower_emb"]


NEGATIVES = 'negative_columns { num_negatives: 2 columns { key: "item" value: "others" } }'
SAMPLER = 'negative_sampler { input_path: "items" num_sample: 2 attr_fields: "item" item_id_field: "id" }'


def test_negatives_that_are_drawn_are_all_rows(model_of: ModelOf) -> None:
    for extra, in_batch in (("", False), ("in_batch_negative: true", True)):
        (task,) = model_of(text(extra, SOFTMAX, SAMPLER)).tasks
        assert isinstance(task, MatchTask)
        assert (task.shared, task.in_batch) == (True, in_batch)
    (task,) = model_of(text("", SOFTMAX, NEGATIVES)).tasks
    assert isinstance(task, MatchTask)
    assert not task.shared


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "in_batch_negative: true"}, r"in_batch_negative needs losses \{ softmax_cross_entropy"),
        ({"extra": SOFTMAX}, "softmax_cross_entropy needs negatives: set in_batch_negative: true, or negative_columns or negative_sampler"),
        ({"data": SAMPLER}, r"negative_sampler needs losses \{ softmax_cross_entropy"),
        ({"data": SAMPLER.replace('"item"', '"user"'), "extra": SOFTMAX}, "the user's feature group 'u' reads columns with negatives"),
        ({"data": NEGATIVES}, r"negative_columns needs losses \{ softmax_cross_entropy"),
        ({"extra": "losses { l2_loss {} }"}, "losses must be one"),
        ({"extra": "metrics { recall_at_k { top_k: 3 } }"}, "recall_at_k needs dssm with softmax_cross_entropy"),
        ({"model": "temperature: 0"}, "temperature must be a number above 0"),
        ({"model": "temperature: nan"}, "temperature must be a number above 0"),
        ({"extra": 'feature_groups { group_name: "more" feature_names: "user" }'}, "no part of the model reads the feature groups more"),
        ({"data": "negative_columns { num_negatives: 2 }"}, "columns is missing|columns must name"),
        ({"data": NEGATIVES.replace("2", "0")}, "num_negatives must be at least 1"),
        ({"data": NEGATIVES.replace("others", "item")}, "'item' is its own column of negatives"),
        ({"data": NEGATIVES.replace("item", "user"), "extra": SOFTMAX}, "the user's feature group 'u' reads columns with negatives"),
        (
            {"extra": SOFTMAX + " metrics { auc {} } metrics { recall_at_k {} }", "model": "in_batch_negative: true"},
            "auc is for binary",
        ),
        ({"data": NEGATIVES + " dataset_type: CsvDataset with_header: true"}, "negative_columns: a CSV file has no lists"),
    ],
)
def test_what_can_not_be_is_named(model_of: ModelOf, change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(text(**change))


def test_both_towers_need_groups_of_their_own(model_of: ModelOf) -> None:
    only = text().replace('feature_groups { group_name: "i" feature_names: "item" }', "").replace('input: "i"', 'input: "u"')
    with pytest.raises(ConfigError, match="both towers read the feature group 'u'"):
        model_of(only)
