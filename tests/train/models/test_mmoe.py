"""MMoE against its formula in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from emberline.errors import ConfigError
from emberline.train.models import RecModel
from emberline.train.models.mmoe import MmoeHead

ModelOf = Callable[[str], RecModel]
TEXT = """
data_config {{ label_fields: ["click", "grade", "spent"] }}
feature_configs {{ id_feature {{ feature_name: "a" embedding_dim: 4 num_buckets: 5 }} }}
feature_configs {{ raw_feature {{ feature_name: "x" value_dim: 3 }} }}
model_config {{
  feature_groups {{ group_name: "all" feature_names: "a" feature_names: "x" }} {groups}
  mmoe {{
    expert_mlp {{ hidden_units: [6, 5] }} num_expert: 3 {gate}
    task_towers {{ tower_name: "ctr" label_name: "click" mlp {{ hidden_units: [4] }} weight: 2.0 }}
    task_towers {{ tower_name: "grade" label_name: "grade" num_class: 3 losses {{ softmax_cross_entropy {{}} }} }}
    task_towers {{ tower_name: "spend" label_name: "spent" losses {{ l2_loss {{}} }} mlp {{ hidden_units: [2] }} }}
    {tasks}
  }}
}}
"""
GATE = "gate_mlp { hidden_units: [4] }"


def text(gate: str = "", groups: str = "", tasks: str = "") -> str:
    return TEXT.format(gate=gate, groups=groups, tasks=tasks)


@pytest.mark.parametrize("gate", ["", GATE])
def test_it_is_its_formula(model_of: ModelOf, maths: Any, gate: str) -> None:
    head, inputs = model_of(text(gate)).head, torch.randn(5, 7)
    assert isinstance(head, MmoeHead)
    found = head({"all": inputs})
    assert list(found) == ["logits_ctr", "logits_grade", "logits_spend"]
    for row, x in enumerate(inputs.tolist()):
        experts = [maths.mlp(expert, x) for expert in head.experts]
        for task, (gate_module, tower) in enumerate(zip(head.gates, head.task_towers, strict=True)):
            module, tower_module = gate_module, tower
            hidden = x if module.mlp is None else maths.mlp(module.mlp, x)
            shares = maths.softmax(maths.linear(module.linear, hidden))
            mixture = [sum(share * expert[column] for share, expert in zip(shares, experts, strict=True)) for column in range(5)]
            expected = maths.linear(tower_module.output, mixture if tower_module.mlp is None else maths.mlp(tower_module.mlp, mixture))
            assert found[f"logits_{head.task_names[task]}"][row].reshape(-1).tolist() == pytest.approx(expected, abs=1e-5)


def test_outputs_and_schema(model_of: ModelOf) -> None:
    model = model_of(text())
    outputs = model.outputs_of(model.head({"all": torch.randn(4, 7)}))
    assert list(outputs) == ["logits_ctr", "probs_ctr", "logits_grade", "probs_grade", "y_spend"]
    assert [(spec.name, spec.width) for spec in model.schema().outputs] == [
        (name, tensor.shape[1] if tensor.ndim == 2 else 0) for name, tensor in outputs.items()
    ]
    torch.testing.assert_close(outputs["probs_ctr"], torch.sigmoid(outputs["logits_ctr"]))
    torch.testing.assert_close(outputs["probs_grade"].sum(1), torch.ones(4))


@pytest.mark.parametrize("gate", ["", GATE])
def test_it_traces_and_exports(model_of: ModelOf, programs_agree: Any, gate: str) -> None:
    programs_agree(model_of(text(gate)).head, [{"all": torch.randn(rows, 7)} for rows in (3, 0, 1, 8)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 'feature_groups { group_name: "more" feature_names: "x" }'}, "mmoe reads one feature group, found all, more"),
        ({"groups": "num_class: 2"}, "num_class has no meaning for mmoe"),
        ({"groups": "losses { l2_loss {} }"}, "losses has no meaning for mmoe"),
        ({"tasks": 'task_towers { tower_name: "ctr" label_name: "click" }'}, "2 tasks are called 'ctr'"),
        ({"tasks": 'task_towers { tower_name: "x" label_name: "y" weight: 0 }'}, "weight must be a number above 0"),
        ({"tasks": 'task_towers { tower_name: "x.y" label_name: "y" }'}, "tower_name 'x.y' may only have letters"),
        ({"tasks": 'task_towers { tower_name: "x" }'}, "label_name is missing"),
        ({"tasks": 'task_towers { tower_name: "x" label_name: "y" num_class: 2 }'}, "task 'x': binary_cross_entropy needs num_class: 1"),
        ({"tasks": 'task_towers { tower_name: "x" label_name: "y" metrics { recall_at_k {} } }'}, "task 'x': recall_at_k is for dssm"),
    ],
)
def test_what_can_not_be_is_named(model_of: ModelOf, change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(text(**change))
