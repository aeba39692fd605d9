"""MultiTowerDIN against its formula in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from emberline.errors import ConfigError
from emberline.train.models import RecModel
from emberline.train.models.multi_tower_din import MultiTowerDinHead

ModelOf = Callable[[str], RecModel]
FEATURES = """
feature_configs { id_feature { feature_name: "user" embedding_dim: 4 num_buckets: 5 } }
feature_configs { id_feature { feature_name: "item" embedding_dim: 4 num_buckets: 7 embedding_name: "item_emb" } }
feature_configs { raw_feature { feature_name: "price" } }
feature_configs { sequence_feature { sequence_name: "seen" sequence_length: 9
  features { id_feature { feature_name: "item" embedding_dim: 4 num_buckets: 7 embedding_name: "item_emb" } }
  features { raw_feature { feature_name: "price" } }
} }
"""
GROUPS = """
  feature_groups { group_name: "flat" feature_names: "user" feature_names: "price" }
  feature_groups { group_name: "seen" group_type: SEQUENCE feature_names: "item" feature_names: "seen__item" feature_names: "seen__price" }
"""
MODEL = """multi_tower_din {
  towers { input: "flat" mlp { hidden_units: [6, 3] } }
  din_towers { input: "seen" attn_mlp { hidden_units: [5] } }
  final { hidden_units: [4] }
}"""


def text(model: str = MODEL, groups: str = GROUPS) -> str:
    return f"{FEATURES} model_config {{ {groups} {model} }}"


def sample(lengths: list[int], steps: int) -> dict[str, torch.Tensor]:
    rows = len(lengths)
    return {
        "flat": torch.randn(rows, 5),
        "seen.query": torch.randn(rows, 4),
        "seen.sequence": torch.randn(rows, steps, 5),
        "seen.sequence_length": torch.tensor(lengths, dtype=torch.int64),
    }


def test_it_is_its_formula(model_of: ModelOf, maths: Any) -> None:
    head, groups = model_of(text()).head, sample([3, 0, 1, 4], 4)
    assert isinstance(head, MultiTowerDinHead)
    attention: Any = head.din_towers[0].attention
    for row, found in enumerate(head(groups)["logits"].tolist()):
        flat = maths.mlp(head.towers[0], groups["flat"][row].tolist())
        query = [*groups["seen.query"][row].tolist(), 0.0]
        steps = groups["seen.sequence"][row, : int(groups["seen.sequence_length"][row])].tolist()
        scores = []
        for step in steps:
            joined = [*query, *step, *(q - s for q, s in zip(query, step, strict=True)), *(q * s for q, s in zip(query, step, strict=True))]
            scores.append(maths.linear(attention.linear, maths.mlp(attention.mlp, joined))[0])
        shares = maths.softmax(scores) if scores else []
        interest = [sum(share * step[column] for share, step in zip(shares, steps, strict=True)) for column in range(5)]
        expected = maths.linear(head.output, maths.mlp(head.final_mlp, [*flat, *interest]))[0]
        assert found == pytest.approx(expected, abs=1e-5)


def test_it_traces_and_exports_for_any_rows_and_steps(model_of: ModelOf, programs_agree: Any) -> None:
    samples = [sample([2, 3, 1], 3), sample([], 2), sample([], 0), sample([0], 0), sample([5, 2], 7), sample([1], 1)]
    programs_agree(model_of(text()).head, samples)


def test_one_table_serves_item_and_sequence(model_of: ModelOf) -> None:
    assert sorted(table.name for table in model_of(text()).schema().tables) == ["item_emb", "user_emb"]


@pytest.mark.parametrize(
    ("model", "groups", "message"),
    [
        ("multi_tower_din { final { hidden_units: 4 } }", GROUPS, "has no tower"),
        (MODEL.replace('"flat"', '"flut"'), GROUPS, "towers: there is no feature group 'flut'; the groups are flat, seen"),
        (MODEL.replace('input: "flat"', 'input: "seen"'), GROUPS, "towers: feature group 'seen' must be DEEP or WIDE, found SEQUENCE"),
        (MODEL.replace('input: "seen"', 'input: "flat"'), GROUPS, "din_towers: feature group 'flat' must be SEQUENCE, found DEEP"),
        (MODEL, GROUPS + 'feature_groups { group_name: "more" feature_names: "user" }', "no part of the model reads the feature groups more"),
        (MODEL, GROUPS.replace('feature_names: "item" ', ""), "needs a query"),
    ],
)
def test_what_can_not_be_is_named(model_of: ModelOf, model: str, groups: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(text(model, groups))
