"""Every model over group tensors that are rounded to a half type: heads compute in float32 on the rounded numbers, and everything learns."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from emberline.train.data import Batch
from emberline.train.models import RecModel
from emberline.train.models.programs import DenseProgram, GroupsProgram
from tests.train.embedding.conftest import Make

FEATURES = """
feature_configs { id_feature { feature_name: "a" embedding_dim: 4 num_buckets: 10 data_type: "BF16" } }
feature_configs { id_feature { feature_name: "b" embedding_dim: 4 num_buckets: 10 pooling: "mean" } }
feature_configs { raw_feature { feature_name: "x" value_dim: 2 } }
feature_configs { sequence_feature {
  sequence_name: "seen" sequence_length: 5 features { id_feature { feature_name: "a" embedding_dim: 4 num_buckets: 10 embedding_name: "steps" } }
} }
"""
DEEP = 'feature_groups { group_name: "deep" feature_names: ["a", "b", "x"] }'
WIDE = 'feature_groups { group_name: "wide" group_type: WIDE feature_names: ["a", "b"] }'
PAIR = 'feature_groups { group_name: "s" group_type: SEQUENCE feature_names: ["b", "seen__a"] }'
SIDES = 'feature_groups { group_name: "u" feature_names: ["a", "x"] } feature_groups { group_name: "i" feature_names: "b" }'
MLP = "{ hidden_units: [8] }"
MODELS = {
    "dlrm": f"""feature_groups {{ group_name: "dense" feature_names: "x" }} feature_groups {{ group_name: "sparse" feature_names: ["a", "b"] }}
      dlrm {{ dense_mlp {{ hidden_units: [8, 4] }} final {MLP} }}""",
    "deepfm": f'{DEEP} {WIDE} feature_groups {{ group_name: "fm" feature_names: ["a", "b"] }} deepfm {{ deep {MLP} final {MLP} }}',
    "wide_and_deep": f"{DEEP} {WIDE} wide_and_deep {{ deep {MLP} final {MLP} }}",
    "multi_tower_din": f"""{DEEP} {PAIR} multi_tower_din {{
      towers {{ input: "deep" mlp {MLP} }} din_towers {{ input: "s" attn_mlp {MLP} }} final {MLP} }}""",
    "dssm": f"""{SIDES} dssm {{
      user_tower {{ input: "u" mlp {MLP} }} item_tower {{ input: "i" mlp {MLP} }} output_dim: 4 similarity: COSINE temperature: 0.2 }}""",
    "mmoe": f"""{DEEP} mmoe {{ expert_mlp {MLP} num_expert: 2
      task_towers {{ tower_name: "t" label_name: "l" mlp {MLP} }} task_towers {{ tower_name: "r" label_name: "m" }} }}""",
}
ModelOf = Callable[[str], RecModel]


def text_of(model: str, dtype: str) -> str:
    labels = 'label_fields: "l" label_fields: "m"' if model == "mmoe" else 'label_fields: "l"'
    return f'data_config {{ {labels} }} {FEATURES} model_config {{ {MODELS[model]} embedding_output_dtype: "{dtype}" }}'


def batch() -> Batch:
    ids = {"a": [[1], [2, 3], [], [4]], "b": [[1, 2], [], [5], [6, 7, 8]], "seen__a": [[1, 2], [], [3], [4, 5, 6]]}
    return Make.steps(ids, dense={"x": [[0.123, 1.0], [-0.7, 3.3], [0.0, 0.0], [2.2, -1.1]]})


@pytest.mark.parametrize("dtype", ["BF16", "FP16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_head_takes_the_rounded_numbers_as_float32(model_of: ModelOf, name: str, dtype: str) -> None:
    model, plain = model_of(text_of(name, dtype)), model_of(text_of(name, "FP32"))
    plain.load_state_dict(model.state_dict())
    half = {"BF16": torch.bfloat16, "FP16": torch.float16}[dtype]
    assert model.schema().group_dtype == dtype.lower()
    assert plain.schema().group_dtype == "fp32"
    exact = plain.embedding_group(batch())
    groups = {key: tensor.to(half).float() if tensor.is_floating_point() else tensor for key, tensor in exact.items()}
    expected, found = plain.outputs_of(plain.head(groups)), model(batch())
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == torch.float32
        assert torch.equal(found[key], tensor), key
    assert any(not torch.equal(groups[key], tensor) for key, tensor in exact.items())


@pytest.mark.parametrize("name", MODELS)
def test_it_learns(model_of: ModelOf, name: str) -> None:
    torch.manual_seed(1)
    model = model_of(text_of(name, "BF16")).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    label, losses = torch.tensor([1.0, 0.0, 0.0, 1.0]), []
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    for _ in range(30):
        logits = [tensor for key, tensor in model(batch()).items() if "logits" in key]
        assert logits
        loss = sum((functional.binary_cross_entropy_with_logits(one, label) for one in logits), torch.zeros(()))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]
    assert [key for key, parameter in model.named_parameters() if torch.equal(parameter, before[key])] == []


@pytest.mark.parametrize("name", [name for name in MODELS if name != "multi_tower_din"])
def test_programs_answer_in_float32_with_the_same_numbers(model_of: ModelOf, name: str) -> None:
    model = model_of(text_of(name, "BF16"))
    group = model.embedding_group
    inputs = (group.lookup(batch()), group.dense(batch()))
    with torch.no_grad():
        groups, outputs = GroupsProgram(model)(*inputs), DenseProgram(model)(*inputs)
        expected: list[Tensor] = [tensor.float() for tensor in group(batch()).values()]
    assert {tensor.dtype for tensor in groups} == {torch.float32}
    assert all(torch.equal(one, other) for one, other in zip(groups, expected, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(outputs, model(batch()).values(), strict=True))
