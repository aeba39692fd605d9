"""The whole model: outputs, schema, and the programs cut out of it."""

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from emberline.schema import ModelSchema, OutputSpec
from emberline.train.config import parse_config
from emberline.train.data import Batch
from emberline.train.models import DenseProgram, GroupsProgram, RecModel, build_model, features_of

TEXT = """
feature_configs {{ id_feature {{ feature_name: "a" embedding_dim: 4 num_buckets: 5 }} }}
feature_configs {{ id_feature {{ feature_name: "z" embedding_dim: 4 zch {{ zch_size: 6 eviction_interval: 1 lfu {{}} }} }} }}
feature_configs {{ raw_feature {{ feature_name: "x" value_dim: 2 }} }}
feature_configs {{ raw_feature {{ feature_name: "y" embedding_dim: 4 mlp {{}} }} }}
model_config {{
  feature_groups {{ group_name: "dense" feature_names: "x" feature_names: "y" }}
  feature_groups {{ group_name: "sparse" feature_names: "z" feature_names: "a" }}
  {losses}
  dlrm {{ dense_mlp {{ hidden_units: [8, 4] dropout_ratio: 0.5 }} final {{ hidden_units: 8 use_bn: true }} }}
}}
"""
LOSSES = {"binary": "", "classes": "num_class: 3 losses { softmax_cross_entropy {} }", "value": "losses { l2_loss {} }"}


def make(kind: str = "binary", device: str | None = None) -> RecModel:
    config = parse_config(TEXT.format(losses=LOSSES[kind]))
    return build_model(config, features_of(config), torch.device(device) if device else None).eval()


def batch_of(rows: int) -> Batch:
    generator = torch.Generator().manual_seed(rows)
    lengths = torch.randint(0, 3, (2 * rows,), generator=generator, dtype=torch.int32)
    values = torch.randint(0, 5, (int(lengths.sum()),), generator=generator)
    sparse = KeyedJaggedTensor(keys=["a", "z"], values=values, lengths=lengths, stride=rows)
    dense = KeyedTensor(keys=["x", "y"], length_per_key=[2, 1], values=torch.randn(rows, 3, generator=generator))
    return Batch(sparse_features={"__BASE__": sparse}, dense_features={"__BASE__": dense})


def test_outputs_by_loss() -> None:
    batch = batch_of(4)
    outputs = make("binary")(batch)
    assert list(outputs) == ["logits", "probs"]
    torch.testing.assert_close(outputs["probs"], 1 / (1 + torch.exp(-outputs["logits"])))
    outputs = make("classes")(batch)
    assert outputs["logits"].shape == (4, 3)
    torch.testing.assert_close(outputs["probs"].sum(1), torch.ones(4))
    assert list(make("value")(batch)) == ["y"]


@pytest.mark.parametrize("kind", list(LOSSES))
def test_schema_tells_what_forward_returns(kind: str) -> None:
    model = make(kind)
    schema = model.schema()
    outputs = model(batch_of(4))
    assert [output.name for output in schema.outputs] == list(outputs)
    assert [(4, output.width) if output.width else (4,) for output in schema.outputs] == [tuple(tensor.shape) for tensor in outputs.values()]
    assert ModelSchema.from_dict(schema.to_dict()) == schema
    assert [feature.name for feature in schema.features] == ["a", "z", "x", "y"]
    assert {table.name: (table.rows, table.dim, str(table.kind)) for table in schema.tables} == {"a_emb": (5, 4, "static"), "z_emb": (6, 4, "zch")}
    assert [(group.name, group.dim) for group in schema.groups] == [("dense", 6), ("sparse", 8)]


def test_binary_schema_outputs() -> None:
    assert make().schema().outputs == (OutputSpec(name="logits"), OutputSpec(name="probs"))


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", list(LOSSES))
def test_programs_give_the_model_s_answers(kind: str, rows: int) -> None:
    model, batch = make(kind), batch_of(rows)
    group = model.embedding_group
    pooled, dense = group.lookup(batch), group.dense(batch)
    expected = model(batch)
    for found, (name, tensor) in zip(DenseProgram(model)(pooled, dense), expected.items(), strict=True):
        assert torch.equal(found, tensor), name
    for found, tensor in zip(GroupsProgram(model)(pooled, dense), group(batch).values(), strict=True):
        assert torch.equal(found, tensor)


def test_programs_have_no_tables_inside() -> None:
    model = make()
    tables = {id(weight) for weight in model.embedding_group.pooled.parameters()}
    for program in (DenseProgram(model), GroupsProgram(model)):
        assert not tables & {id(parameter) for parameter in program.parameters()}
        assert not any("pooled" in name for name, _ in program.named_modules())
    assert hasattr(model.embedding_group, "pooled")


@pytest.mark.parametrize("program_class", [DenseProgram, GroupsProgram])
def test_programs_trace_and_export_for_any_number_of_rows(program_class: type[DenseProgram] | type[GroupsProgram]) -> None:
    model = make()
    program = program_class(model).eval()
    group = model.embedding_group
    sample = (group.lookup(batch_of(3)).detach(), group.dense(batch_of(3)))
    traced = torch.jit.trace(program, sample)  # type: ignore[no-untyped-call]
    rows = torch.export.Dim("rows")
    exported = torch.export.export(program, sample, dynamic_shapes=(({0: rows}, {0: rows}),)).module()
    for count in (0, 1, 2, 9):
        inputs = (group.lookup(batch_of(count)).detach(), group.dense(batch_of(count)))
        for found in (traced(*inputs), exported(*inputs)):
            for one, other in zip(found, program(*inputs), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_meta_tables_leave_the_rest_real() -> None:
    model = make(device="meta")
    tables = model.embedding_group.pooled.table_weights()
    assert all(weight.is_meta for weight in tables.values())
    rest = [parameter for name, parameter in model.named_parameters() if not name.startswith("embedding_group.pooled.")]
    assert rest
    assert all(parameter.device.type == "cpu" and bool(parameter.isfinite().all()) for parameter in rest)
