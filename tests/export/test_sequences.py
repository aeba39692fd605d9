"""Models with sequences from checkpoint to answers: every encoder, every kind of group, raw and coded ids, steps of any number of ids."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from emberline.encoding import EncodedColumns, columns_from_rows, encode
from emberline.errors import ParityError, RequestError
from emberline.export.answers import Answers, WantedAnswers, model_answers
from emberline.export.cases import Case
from emberline.export.delta import export_delta
from emberline.export.describe import describe
from emberline.export.explain import explain
from emberline.export.export import export_model
from emberline.export.parity import ParityGate
from emberline.serving.engine import Engine
from emberline.train.models import RecModel
from tests.export.conftest import SmallRun, make_run, save_checkpoint

HEAD = '''
import torch
from torch import nn


class Sums(nn.Module):
    """One hidden layer over the flat groups and the means of sequences."""

    def __init__(self, embedding_group):
        super().__init__()
        self.group = "deep"
        self.layers = nn.Sequential(nn.Linear(embedding_group.group_total_dim("deep") + 2, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, groups):
        padded, lengths = groups["padded.sequence"], groups["padded.sequence_length"]
        mean = padded.sum(dim=(1, 2)) / lengths.clamp(min=1)
        found = torch.cat([groups["deep"], mean.unsqueeze(1), groups["padded.query"].sum(1, keepdim=True)], dim=1)
        return {"logits": self.layers(found).squeeze(1)}
'''
ZCH = "zch { zch_size: 12 eviction_interval: 1 lfu {} }"
CONFIG = f"""
eval_input_path: "DATA"
data_config {{ fg_mode: FG_NORMAL label_fields: "label" batch_size: 32 }}
train_config {{
  sparse_optimizer {{ adagrad_optimizer {{ lr: 0.1 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} constant_learning_rate {{}} }}
}}
feature_configs {{ id_feature {{ feature_name: "item" expression: "item:item" embedding_name: "item_table" embedding_dim: 4 {ZCH} }} }}
feature_configs {{ raw_feature {{ feature_name: "price" expression: "item:price" }} }}
feature_configs {{
  sequence_feature {{
    sequence_name: "click" sequence_length: 6 sequence_delim: ";"
    features {{ id_feature {{ feature_name: "item" expression: "item:item" embedding_name: "item_table" embedding_dim: 4 {ZCH} }} }}
    features {{
      id_feature {{ feature_name: "tags" expression: "item:tags" embedding_dim: 3 num_buckets: 9 value_dim: 0 pooling: "mean" weighted: true }}
    }}
    features {{ raw_feature {{ feature_name: "ago" expression: "user:ago" value_dim: 2 embedding_dim: 3 mlp {{}} }} }}
  }}
}}
feature_configs {{
  sequence_feature {{
    sequence_name: "buy" sequence_length: 4
    features {{ id_feature {{ feature_name: "item" expression: "item:item" embedding_dim: 4 num_buckets: 10 }} }}
    features {{ raw_feature {{ feature_name: "cost" expression: "item:cost" }} }}
  }}
}}
model_config {{
  feature_groups {{
    group_name: "deep" group_type: DEEP feature_names: ["item", "price"]
    sequence_groups {{ group_name: "a" feature_names: ["item", "click__item"] }}
    sequence_groups {{ group_name: "b" feature_names: ["click__ago", "click__tags"] }}
    sequence_encoders {{ din_encoder {{ input: "a" attn_mlp {{ hidden_units: [6, 4] activation: "Dice" use_bn: true }} max_seq_length: 3 }} }}
    sequence_encoders {{ simple_attention {{ input: "a" }} }}
    sequence_encoders {{ multi_window_din_encoder {{ input: "a" attn_mlp {{ hidden_units: 5 }} windows_len: [1, 2] }} }}
    sequence_encoders {{ pooling_encoder {{ input: "b" pooling_type: "sum" }} }}
    sequence_encoders {{ self_attention_encoder {{ input: "b" multihead_attn_dim: 4 num_heads: 2 max_seq_length: 4 keep: "newest" }} }}
    sequence_encoders {{ transformer {{ input: "b" hidden_size: 4 num_heads: 2 pooling_type: "last" }} }}
    sequence_encoders {{ lstm {{ input: "b" hidden_size: 3 bidirectional: true }} }}
    sequence_encoders {{ gru {{ input: "a" hidden_size: 3 }} }}
  }}
  feature_groups {{ group_name: "padded" group_type: SEQUENCE feature_names: ["item", "buy__item", "buy__cost"] }}
  feature_groups {{ group_name: "jagged" group_type: JAGGED_SEQUENCE feature_names: ["price", "click__tags", "click__item"] }}
  feature_groups {{ group_name: "wide" group_type: WIDE feature_names: ["item"] }}
  custom_model {{ class_path: "export_test_sums.Sums" }}
}}
"""
PLAIN = "\n".join(line for line in CONFIG.splitlines() if not line.strip().startswith(("sequence_groups {", "sequence_encoders {")))
"""The same without encoders, whose programs take seconds to make."""
GROUPS = ["deep", "padded.query", "padded.sequence", "padded.sequence_length", "jagged.query", "jagged.sequence", "jagged.sequence_length", "wide"]
ROWS: list[dict[str, Any]] = [
    {"item": 100, "price": 2.5, "click__item": [100, 999, -5], "click__tags": ["1:0.5", "", "2:1\x1d3:2"], "click__ago": [[1, 2], [3, 4], [5, 6]]},
    {},
    {"item": 7, "buy__item": "1;9", "buy__cost": [1.5, -2]},
]


def make_table(num_rows: int, seed: int) -> pa.Table:
    """Histories of no, some and too many steps; a step's tags may be none."""
    draw = np.random.default_rng(seed)
    clicks, buys = draw.integers(0, 9, num_rows), draw.integers(0, 6, num_rows)

    def tags() -> str:
        return "\x1d".join(f"{one}:{draw.random():.3f}" for one in draw.choice(9, int(draw.integers(0, 4)), replace=False))

    return pa.table(
        {
            "item": pa.array(draw.choice([100, 101, -5, 2**62, 7], num_rows).tolist(), pa.int64()),
            "price": pa.array(draw.normal(size=num_rows).astype(np.float32)),
            "click__item": pa.array([draw.choice([100, 101, -5, 999], count).tolist() for count in clicks], pa.list_(pa.int64())),
            "click__tags": pa.array([[tags() for _ in range(count)] for count in clicks], pa.list_(pa.string())),
            "click__ago": pa.array([draw.normal(size=(count, 2)).tolist() for count in clicks], pa.list_(pa.list_(pa.float32()))),
            "buy__item": pa.array([draw.integers(0, 10, count).tolist() for count in buys], pa.list_(pa.int64())),
            "buy__cost": pa.array([draw.normal(size=count).tolist() for count in buys], pa.list_(pa.float32())),
            "label": pa.array(draw.integers(0, 2, num_rows).astype(np.float32)),
        }
    )


@pytest.fixture(scope="module", autouse=True)
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's own head, importable while this module's tests run."""
    folder = tmp_path_factory.mktemp("heads")
    (folder / "export_test_sums.py").write_text(HEAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, head: None) -> SmallRun:
    return make_run(tmp_path_factory.mktemp("sequences"), CONFIG, make_table(96, seed=1))


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory, head: None) -> SmallRun:
    return make_run(tmp_path_factory.mktemp("plain"), PLAIN, make_table(96, seed=1))


@pytest.fixture(scope="module")
def models(run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    export_model(run.path, models, "steps")
    return models


@pytest.fixture(scope="module")
def engine(models: Path) -> Engine:
    return Engine.open(models / "steps")


def require_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6, msg=name)


def test_the_artifact_answers_as_the_trained_model(run: SmallRun, engine: Engine) -> None:
    for rows in (run.rows, ROWS, ROWS[1:2], []):
        outputs, groups = run.answers(rows)
        request = engine.encode_rows(rows)
        require_same(engine.predict(request), outputs)
        require_same(engine.lookup(request), groups)
        assert list(groups) == GROUPS
        assert groups["padded.sequence_length"].dtype == torch.int64


def test_the_gate_compared_every_kind_of_request(engine: Engine) -> None:
    parity = engine.artifact.manifest.parity
    assert parity["real_rows"] == 96
    assert {"no rows", "all bags empty", "known ids", "maximal lengths", "steps of several ids and of none"} <= set(parity["cases"])
    differences = parity["max_abs_difference"]
    assert [name for name in differences if name.startswith("group.")] == [f"group.{name}" for name in GROUPS]
    exact = ("group.padded.", "group.jagged.query", "group.jagged.sequence_length", "group.wide")
    assert {value for name, value in differences.items() if name.startswith(exact)} == {0.0}


class ModelAnswers:
    """What the gate wants, with nothing to refuse."""

    def __init__(self, model: RecModel) -> None:
        self.model = model

    def refused(self, encoded: EncodedColumns) -> dict[str, int]:
        return {}

    def __call__(self, encoded: EncodedColumns) -> Answers:
        return model_answers(self.model, self.model.schema(), encoded)


def encoded_rows(model: RecModel) -> EncodedColumns:
    features = model.schema().features
    return encode(features, *columns_from_rows(features, ROWS))


def test_a_step_that_reads_another_row_is_told_by_group_feature_and_table(run: SmallRun, engine: Engine) -> None:
    model = run.load().model
    with torch.no_grad():
        model.embedding_group.table_weights()["buy__item_emb"][1] += 1
    gate = ParityGate(model, engine, cast(WantedAnswers, ModelAnswers(model)))
    with pytest.raises(ParityError, match=r"feature group 'padded\.sequence', feature 'buy__item' \(table buy__item_emb\) differs in 4 of"):
        gate.compare(Case("rows", encoded_rows(model)))


def test_unknown_ids_of_steps_read_what_they_are_told_to(plain_run: SmallRun, tmp_path: Path) -> None:
    engine = Engine.open(export_model(plain_run.path, tmp_path, "steps", unknown=["click__item=zeros", "item=mean"]))
    assert engine.artifact.manifest.parity["made_rows"] > 500
    row = {"item": 424242, "click__item": [100, 424242], "click__tags": ["", ""], "click__ago": [[0, 0], [0, 0]]}
    found = engine.lookup(engine.encode_rows([row]))
    assert torch.equal(found["jagged.sequence"][1, 3:], torch.zeros(4))
    weight = plain_run.load().model.embedding_group.table_weights()["item_table"].detach()
    mean = weight[engine.artifact.ids["item_table"].rows].double().mean(0).float()
    torch.testing.assert_close(found["padded.query"][0], mean, rtol=0, atol=1e-6)


def test_unknown_ids_of_steps_are_refused_where_they_are_to_be(plain_run: SmallRun, tmp_path: Path) -> None:
    engine = Engine.open(export_model(plain_run.path, tmp_path, "steps", unknown=["click__item=error"]))
    assert engine.artifact.manifest.parity["refused_unknown"] > 0
    row = {"click__item": [424242], "click__tags": [""], "click__ago": [[0, 0]]}
    with pytest.raises(RequestError, match=r"^feature 'click__item': row 1: id 424242 has no row of its own"):
        engine.predict(engine.encode_rows([{"item": 424242}, row]))


def test_a_delta_of_trained_steps_answers_as_the_model(plain_run: SmallRun, tmp_path: Path) -> None:
    export_model(plain_run.path, tmp_path, "steps")
    model = plain_run.load().model
    with torch.no_grad():
        for weight in model.embedding_group.table_weights().values():
            weight[1] += 0.25
    save_checkpoint(tmp_path / "later", model, PLAIN.replace("DATA", str(plain_run.data)), step=8)
    export_delta(tmp_path / "later", tmp_path, "steps", 1)
    engine = Engine.open(tmp_path / "steps")
    assert engine.delta == 1
    outputs, groups = ModelAnswers(model)(encoded_rows(model))
    require_same(engine.predict(engine.encode_rows(ROWS)), outputs)
    require_same(engine.lookup(engine.encode_rows(ROWS)), groups)


def test_explain_follows_an_id_of_a_step(models: Path, run: SmallRun) -> None:
    for path in (models / "steps", run.path):
        facts = explain(path, "click__item", "100")
        assert [(fact["table"], fact["known"], fact["id"]) for fact in facts] == [("item_table", True, 100)]
    weight = run.load().model.embedding_group.table_weights()["buy__item_emb"]
    (fact,) = explain(models / "steps", "buy__item", "3")
    assert fact["vector"] == weight[3].tolist()


def test_inspect_tells_of_sequences(models: Path) -> None:
    lines = [" ".join(line.split()) for line in describe(models / "steps")]
    assert any(line.startswith("click__tags") and "sequence, weighted" in line and "click__tags_emb (per step)" in line for line in lines)
    assert "padded.sequence_length SEQUENCE -" in lines


def test_the_schema_in_the_manifest_is_read_back(engine: Engine, models: Path) -> None:
    data = json.loads((models / "steps" / "1" / "manifest.json").read_text())
    assert {stream["features"][0]: stream["padded"] for stream in data["schema"]["streams"]} == {"click__item": True, "buy__item": True}
    assert type(engine.schema).from_dict(data["schema"]) == engine.schema
