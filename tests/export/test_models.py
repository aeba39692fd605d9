"""Models of every make-up export: a user's own head, only zero-collision tables, only numbers, several classes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from emberline.encoding import columns_from_rows, encode
from emberline.errors import CheckpointError, ExportError
from emberline.export.answers import model_answers
from emberline.export.describe import describe
from emberline.export.export import export_model
from emberline.export.remap import write_remap_file
from emberline.export.tables import file_stems
from emberline.schema import TableKind, TableSpec
from emberline.serving.engine import Engine
from emberline.serving.remap import RemapParts
from emberline.train.checkpoint import load_trained
from emberline.train.config import parse_config
from emberline.train.models import build_model
from emberline.train.models.build import features_of
from tests.export.conftest import make_run, make_table, save_checkpoint

_HEADS = '''
import torch
from torch import nn


class Plain(nn.Module):
    """Everything side by side into one hidden layer."""

    def __init__(self, embedding_group, width=6, classes=1):
        super().__init__()
        self.names = embedding_group.group_names()
        self.classes = classes
        total = sum(embedding_group.group_total_dim(name) for name in self.names)
        self.layers = nn.Sequential(nn.Linear(total, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, classes))

    def forward(self, groups):
        out = self.layers(torch.cat([groups[name] for name in self.names], dim=1))
        return {"logits": out.squeeze(1) if self.classes == 1 else out}


class Restless(Plain):
    """Random in eval mode too."""

    def forward(self, groups):
        logits = super().forward(groups)["logits"]
        return {"logits": logits + torch.rand_like(logits)}
'''
_ZCH = """
feature_configs {{
  id_feature {{ feature_name: "uid" expression: "user:uid" embedding_dim: {dim} zch {{ zch_size: 9 eviction_interval: 1 lfu {{}} }} }}
}}
"""
_DENSE = """
feature_configs {
  raw_feature { feature_name: "price" expression: "item:price" value_dim: 2 normalizer: "method=zscore,mean=1,standard_deviation=2" }
}
"""


def _config(features: str, names: str, head: str = "Plain", rest: str = "") -> str:
    return f"""
eval_input_path: "DATA"
data_config {{ fg_mode: FG_NORMAL label_fields: "label" }}
{features}
model_config {{
  feature_groups {{ group_name: "all" group_type: DEEP {names} }}
  custom_model {{ class_path: "export_test_heads.{head}" {rest} }}
}}
"""


@pytest.fixture
def run_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Trains a model of a config whose head lies in a module of the test's own."""
    (tmp_path / "export_test_heads.py").write_text(_HEADS)
    monkeypatch.syspath_prepend(str(tmp_path))
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "uid": pa.array(rng.choice([-(2**63), -1, 0, 5, 2**63 - 2, 77], 96), pa.int64()),
            "price": pa.array(rng.normal(size=(96, 2)).tolist(), pa.list_(pa.float32())),
            "label": pa.array(rng.integers(0, 2, 96).astype(np.float32)),
        }
    )
    return lambda config: make_run(tmp_path / "made", config, table).path


@pytest.mark.parametrize(
    ("features", "names", "dims"),
    [
        (_ZCH.format(dim=4), 'feature_names: "uid"', (4, 0)),
        (_ZCH.format(dim=1), 'feature_names: "uid"', (1, 0)),
        (_DENSE, 'feature_names: "price"', (0, 2)),
        (_ZCH.format(dim=6) + _DENSE, 'feature_names: "uid" feature_names: "price"', (6, 2)),
    ],
    ids=["only zch", "width one", "only numbers", "width six and numbers"],
)
def test_any_mix_of_features_exports_with_a_users_own_head(
    run_of: Callable[[str], Path], tmp_path: Path, features: str, names: str, dims: tuple[int, int]
) -> None:
    engine = Engine.open(export_model(run_of(_config(features, names)), tmp_path / "models", "mixed"))
    assert (engine.schema.pooled_dim, engine.schema.dense_dim) == dims
    assert engine.artifact.manifest.parity["real_rows"] == 96
    row = {column: value for column, value in {"uid": -1, "price": [3.0, -1.0]}.items() if f'"{column}"' in names}
    looked_up = engine.lookup(engine.encode_rows([row]))["all"]
    assert looked_up.shape == (1, sum(dims))
    if dims[1]:
        assert looked_up[0, dims[0] :].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_classes_and_half_precision_tables_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    (tmp_path / "export_test_heads.py").write_text(_HEADS)
    monkeypatch.syspath_prepend(str(tmp_path))
    feature = 'id_feature { feature_name: "uid" expression: "user:uid" embedding_dim: 4 num_buckets: 9 data_type: "DTYPE" pooling: "mean" }'
    feature = feature.replace("DTYPE", dtype.upper())
    text = _config(f"feature_configs {{ {feature} }}", 'feature_names: "uid"', rest='kwargs { name: "classes" int_value: 3 }')
    text = text.replace('eval_input_path: "DATA"', "").replace("model_config {", "model_config { num_class: 3 losses { softmax_cross_entropy {} }")
    config = parse_config(text)
    torch.manual_seed(2)
    model = build_model(config, features_of(config))
    save_checkpoint(tmp_path / "run", model, text)
    engine = Engine.open(export_model(tmp_path / "run", tmp_path / "models", "classes"))
    assert [(output.name, output.width) for output in engine.schema.outputs] == [("logits", 3), ("probs", 3)]
    assert [entry.dtype for entry in engine.artifact.manifest.tables] == [dtype]
    answers = engine.predict(engine.encode_rows([{"uid": [1, 2]}, {"uid": None}]))
    table = model.embedding_group.pooled.table_weights()["uid_emb"].detach().float()
    groups = torch.stack([(table[1] + table[2]) / 2, torch.zeros(4)])
    with torch.no_grad():
        wanted = model.eval().head({"all": groups})["logits"]
    torch.testing.assert_close(answers["logits"], wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(answers["probs"].sum(dim=1), torch.ones(2))


_BAGS = """
feature_configs { id_feature { feature_name: "uid" expression: "user:uid" embedding_dim: 4 TYPE zch { zch_size: 9 eviction_interval: 1 lfu {} } } }
feature_configs { id_feature { feature_name: "tags" expression: "item:tags" embedding_dim: 8 TYPE num_buckets: 10 pooling: "mean" } }
feature_configs {
  id_feature { feature_name: "clicks" expression: "user:clicks" embedding_dim: 4 TYPE num_buckets: 12 pooling: "mean" weighted: true }
}
feature_configs {
  id_feature { feature_name: "buys" expression: "user:buys" embedding_dim: 4 TYPE weighted: true zch { zch_size: 16 eviction_interval: 1 lru {} } }
}
"""


def test_bf16_tables_of_every_kind_answer_as_the_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZCH, weights, means: each row is read from the file as bfloat16, bit for bit, and summed in float32."""
    (tmp_path / "export_test_heads.py").write_text(_HEADS)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = _config(_BAGS.replace("TYPE", 'data_type: "BF16"'), 'feature_names: ["uid", "tags", "clicks", "buys"]')
    run = make_run(tmp_path / "made", text, make_table(96, seed=3).select(["uid", "tags", "clicks", "buys", "label"]))
    path = export_model(run.path, tmp_path / "models", "bf16")
    engine, model = Engine.open(path), run.load().model
    assert {entry.dtype for entry in engine.artifact.manifest.tables} == {"bf16"}
    weights = model.embedding_group.table_weights()
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    for table, rows in engine.artifact.tables.items():
        assert torch.equal(rows, weights[table])
    outputs, groups = run.answers(run.rows)
    request = engine.encode_rows(run.rows)
    for name, wanted in outputs.items():
        torch.testing.assert_close(engine.predict(request)[name], wanted, rtol=0, atol=1e-6)
    for name, wanted in groups.items():
        torch.testing.assert_close(engine.lookup(request)[name], wanted, rtol=0, atol=1e-6)
    described = [line.split() for line in describe(path)]
    assert ["tags_emb", "static", "10", "8", "bf16"] in [words[:5] for words in described]


@pytest.mark.parametrize("dtype", ["BF16", "FP16"])
def test_rounded_group_tensors_are_answered_as_float32_with_the_same_numbers(
    run_of: Callable[[str], Path], tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _config(_ZCH.format(dim=4) + _DENSE, 'feature_names: "uid" feature_names: "price"')
    path = export_model(run_of(text.replace("custom_model", f'embedding_output_dtype: "{dtype}" custom_model')), tmp_path / "models", "rounded")
    engine, trained = Engine.open(path), load_trained(tmp_path / "made" / "run").model
    assert engine.schema.group_dtype == dtype.lower()
    half = {"BF16": torch.bfloat16, "FP16": torch.float16}[dtype]
    assert engine.artifact.manifest.parity["bound"] == torch.finfo(half).eps
    assert set(engine.artifact.manifest.parity["max_abs_difference"].values()) == {0.0}
    row = {"uid": 5, "price": [3.3333, -1.1111]}
    found = engine.lookup(engine.encode_rows([row]))["all"]
    assert found.dtype == torch.float32
    assert torch.equal(found[0, 4:], ((torch.tensor(row["price"]) - 1) / 2).to(half).float())
    assert torch.equal(found, found.to(half).float())
    request = engine.encode_rows([row])
    outputs, _ = model_answers(trained, engine.schema, encode(engine.schema.features, *columns_from_rows(engine.schema.features, [row])))
    for name, wanted in outputs.items():
        torch.testing.assert_close(engine.predict(request)[name], wanted, rtol=0, atol=1e-6)
    assert f"group tensors are rounded to {dtype.lower()}" in "\n".join(describe(path))
    monkeypatch.setattr("emberline.serving.golden.tolerance_of", lambda _: 0.0)
    assert Engine.open(path).version == 1


def test_head_that_is_random_in_eval_mode_is_refused(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    run = run_of(_config(_DENSE, 'feature_names: "price"', head="Restless"))
    with pytest.raises(ExportError, match="not deterministic in eval mode"):
        export_model(run, tmp_path / "models", "restless")
    assert not list((tmp_path / "models").rglob("[!.]*/manifest.json"))


def test_head_whose_module_is_gone_is_refused_by_name(run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(_config(_DENSE, 'feature_names: "price"'))
    monkeypatch.undo()
    monkeypatch.delitem(__import__("sys").modules, "export_test_heads", raising=False)
    with pytest.raises(CheckpointError, match="export_test_heads"):
        export_model(run, tmp_path / "models", "gone")


# --- tables and maps --------------------------------------------------------------------------------------------------


def test_table_names_become_file_names_that_any_file_system_takes() -> None:
    assert file_stems(["user_id_emb", "a/b", "größe"]) == {"user_id_emb": "user_id_emb", "a/b": "a_b", "größe": "gr__e"}
    with pytest.raises(ExportError, match="tables 'a/b' and 'A_b' would both be stored as 'A_b'"):
        file_stems(["a/b", "A_b"])


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        ([5, 3], [0, 1], "not strictly ascending"),
        ([3, 2**63 - 1], [0, 1], "marks free rows"),
        ([3, 5], [0, 8], "points outside the table's 8 rows"),
        ([3, 5], [2, 2], "one row to two ids"),
    ],
)
def test_map_that_contradicts_itself_is_refused(tmp_path: Path, ids: list[int], rows: list[int], message: str) -> None:
    parts = RemapParts(torch.tensor(ids), torch.tensor(rows), torch.tensor([-(2**63)]), torch.tensor([7]), "mixed")
    spec = TableSpec(name="uid_emb", rows=8, dim=4, kind=TableKind.ZCH)
    with pytest.raises(ExportError, match=f"table 'uid_emb': the id map in the checkpoint is damaged: .*{message}"):
        write_remap_file(parts, spec, tmp_path / "uid_emb.safetensors")
    assert list(tmp_path.iterdir()) == []
