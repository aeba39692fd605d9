"""The whole export: what is published answers as the trained model does, and what is not right is not published."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from emberline.errors import CheckpointError, DataError, ExportError, ParityError, RequestError
from emberline.export import program
from emberline.export.export import export_model
from emberline.export.row_source import RowSource
from emberline.manifest import find_damage
from emberline.serving.artifact import load_manifest
from emberline.serving.engine import Engine
from emberline.serving.request import PackedRequest
from emberline.train.checkpoint import Trained
from emberline.train.checkpoint.store import CONFIG_NAME, CheckpointInfo
from emberline.train.checkpoint.trained import read_trained
from emberline.train.config import parse_config
from emberline.train.embedding.collections import RowReader
from emberline.train.models import build_model
from emberline.train.models.build import features_of
from tests.export.conftest import SmallRun, save_checkpoint

BOUND = 1e-6


@pytest.fixture(scope="module")
def artifact(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(small_run.path, tmp_path_factory.mktemp("models"), "small")


@pytest.fixture(scope="module")
def engine(artifact: Path) -> Engine:
    return Engine.open(artifact)


def _nothing_published(models_dir: Path) -> bool:
    return not models_dir.exists() or not any(path.is_file() or path.name.startswith(".") for path in models_dir.rglob("*"))


def test_answers_for_raw_rows_are_the_trained_models(small_run: SmallRun, engine: Engine) -> None:
    outputs, groups = small_run.answers(small_run.rows)
    request = engine.encode_rows(small_run.rows)
    for name, wanted in outputs.items():
        torch.testing.assert_close(engine.predict(request)[name], wanted, rtol=0, atol=BOUND)
    for name, wanted in groups.items():
        torch.testing.assert_close(engine.lookup(request)[name], wanted, rtol=0, atol=BOUND)
    assert outputs["logits"].std() > 0.01
    torch.testing.assert_close(outputs["probs"], torch.sigmoid(outputs["logits"]))


def test_manifest_says_what_was_made_and_compared(small_run: SmallRun, artifact: Path, engine: Engine) -> None:
    manifest = load_manifest(artifact)
    assert (manifest.name, manifest.version, artifact.name) == ("small", 1, "1")
    assert find_damage(artifact, manifest.files) == []
    assert [(program.role, program.file, program.libraries) for program in manifest.programs] == [
        ("outputs", "programs/dense.ts", ()),
        ("groups", "programs/groups.ts", ()),
    ]
    assert manifest.parity["real_rows"] == len(small_run.rows) == 320
    assert manifest.parity["made_rows"] > 500
    assert manifest.parity["rows_from"] == str(small_run.data)
    assert manifest.parity["checkpoint_step"] == 7
    assert {"no rows", "all bags empty", "edge ids", "maximal lengths", "zero weights"} <= manifest.parity["cases"].keys()
    assert set(manifest.parity["max_abs_difference"]) == {"group.wide", "group.deep", "group.fm", "output.logits", "output.probs"}
    assert max(manifest.parity["max_abs_difference"].values()) <= BOUND
    assert {"torch", "torchrec", "numpy", "emberline", "python"} <= manifest.versions.keys()
    assert engine.artifact.golden()["lengths"].numel() == 8 * len(manifest.schema.sparse_features)
    assert (manifest.quality, "quality.json" in manifest.files) == ({}, False)
    assert sorted(entry.table for entry in manifest.tables if entry.remap) == ["buys_emb", "uid_emb", "uid_emb_wide"]


def test_same_name_again_gets_the_next_version(small_run: SmallRun, artifact: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    models = tmp_path / "models"
    shutil.copytree(artifact.parent, models / "small")
    again = export_model(small_run.path, models, "small", progress=lines.append)
    assert again == models / "small" / "2"
    assert Engine.open(again).version == 2
    assert Engine.open(models / "small" / "1").version == 1
    assert lines[0] == f"checkpoint {small_run.path / 'step-7'} (step 7)"
    assert lines[-1] == f"published {again}"
    assert any(line.startswith("parity (torchscript): 320 real rows") for line in lines)
    with pytest.raises(ExportError, match="version 2 is already there"):
        export_model(small_run.path, models, "small", version=2)


def test_artifact_that_was_moved_still_answers(small_run: SmallRun, artifact: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(artifact, tmp_path / "elsewhere" / "other name")
    engine = Engine.open(moved)
    outputs, _ = small_run.answers(small_run.rows[:9])
    torch.testing.assert_close(engine.predict(engine.encode_rows(small_run.rows[:9]))["logits"], outputs["logits"], rtol=0, atol=BOUND)


_FRESH = """
import sys
from emberline.serving import Engine
import torch
engine = Engine.open(sys.argv[1])
rows = [{"uid": 100, "clicks": {"3": 0.5, "4": -2}}, {"uid": 100, "clicks": {"3": 1, "4": 1}}, {}]
print(engine.predict(engine.encode_rows(rows))["logits"].tolist())
print(engine.predict(engine.encode_rows([]))["logits"].tolist())
unwanted = ("torchrec", "fbgemm_gpu", "pyarrow", "pandas", "google.protobuf", "emberline.train", "emberline.export")
print([name for name in unwanted if name in sys.modules])
"""


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.strip("[]").split(",")]


def test_fresh_process_needs_only_torch_and_serving(small_run: SmallRun, artifact: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FRESH, str(artifact)], capture_output=True, text=True, check=True)
    logits, empty, loaded = done.stdout.splitlines()
    rows: list[dict[str, object]] = [{"uid": 100, "clicks": {3: 0.5, 4: -2}}, {"uid": 100, "clicks": {3: 1, 4: 1}}, {}]
    wanted = small_run.answers(rows)[0]["logits"]
    torch.testing.assert_close(torch.tensor(_floats(logits)), wanted, rtol=0, atol=BOUND)
    assert wanted[0] != wanted[1]
    assert (empty, loaded) == ("[]", "[]")


# --- columns, poolings, ids ------------------------------------------------------------------------------------------

_THREE_TABLES = """
data_config { fg_mode: FG_NORMAL label_fields: "label" }
feature_configs { id_feature { feature_name: "f2" expression: "user:f2" embedding_dim: 4 num_buckets: 10 } }
feature_configs { id_feature { feature_name: "f0" expression: "user:f0" embedding_dim: 4 num_buckets: 10 } }
feature_configs { id_feature { feature_name: "f1" expression: "user:f1" embedding_dim: 8 num_buckets: 10 pooling: "mean" } }
model_config {
  feature_groups { group_name: "wide" group_type: WIDE feature_names: "f0" }
  feature_groups { group_name: "deep" group_type: DEEP feature_names: "f0" feature_names: "f1" feature_names: "f2" }
  feature_groups { group_name: "fm" group_type: DEEP feature_names: "f2" feature_names: "f0" }
  deepfm { deep { hidden_units: 4 } }
}
"""


def test_columns_keep_training_order_with_dims_and_poolings_mixed(tmp_path: Path) -> None:
    config = parse_config(_THREE_TABLES)
    model = build_model(config, features_of(config))
    for name, weight in model.embedding_group.pooled.table_weights().items():
        base = 100 * int(name[1])
        weight.data.copy_((base + torch.arange(10.0))[:, None].expand_as(weight))
    save_checkpoint(tmp_path / "run", model, _THREE_TABLES)
    engine = Engine.open(export_model(tmp_path / "run", tmp_path / "models", "three"))
    assert [feature.name for feature in engine.schema.sparse_features] == ["f2", "f0", "f1"]
    request = PackedRequest(ids=np.array([1, 2, 3, 4, 5]), lengths=np.array([1, 1, 2, 0, 0, 1], np.int32))
    rows = engine.lookup(request)
    assert rows["deep"].tolist() == [[7.0] * 4 + [0.0] * 8 + [201.0] * 4, [0.0] * 4 + [105.0] * 8 + [202.0] * 4]
    assert rows["fm"].tolist() == [[201.0] * 4 + [7.0] * 4, [202.0] * 4 + [0.0] * 4]
    assert load_manifest(tmp_path / "models" / "three" / "1").parity["rows_from"] == ""


def _uid_request(engine: Engine, ids: list[int]) -> PackedRequest:
    """One row for each id of `uid`; all other bags are empty."""
    features = [feature.name for feature in engine.schema.sparse_features]
    lengths = np.array([[int(name == "uid")] * len(ids) for name in features], np.int32)
    return PackedRequest(ids=np.array(ids, np.int64), lengths=lengths.reshape(-1), dense=np.zeros(len(ids) * engine.schema.dense_dim, np.float32))


def test_unseen_and_extreme_ids_read_the_one_default_row(small_run: SmallRun, engine: Engine) -> None:
    weights = small_run.load().model.embedding_group.pooled.table_weights()
    unseen = [999, -6, 2**63 - 1, -1, 0, 499, 995]
    found = engine.lookup(_uid_request(engine, unseen))["wide"][:, :4]
    assert torch.equal(found, weights["uid_emb_wide"][-1].detach().expand(len(unseen), 4))
    seen = [5, -5, 2**62, -(2**63), 2**63 - 2, 100]
    assert engine.known(_uid_request(engine, [*seen, *unseen])).tolist() == [True] * len(seen) + [False] * len(unseen)
    rows = engine.lookup(_uid_request(engine, seen))["wide"][:, :4]
    assert len({tuple(row) for row in rows.tolist()}) == len(seen)


def test_odd_requests_are_answered_or_refused_by_name(engine: Engine) -> None:
    empty = _uid_request(engine, [])
    assert engine.predict(empty)["logits"].shape == (0,)
    assert engine.lookup(empty)["deep"].shape == (0, engine.schema.groups[1].dim)
    good = _uid_request(engine, [100, 101])
    assert good.ids is not None
    for lengths in ([1, 1], [3, 1], [4, -1]):
        broken = PackedRequest(ids=np.array([1, 2, 3]), lengths=np.array(lengths, np.int32), dense=good.dense)
        with pytest.raises(RequestError, match="lengths"):
            engine.predict(broken)
    with pytest.raises(RequestError, match="uidd"):
        engine.encode_rows([{"uidd": 1}])


# --- what is not let pass --------------------------------------------------------------------------------------------


def test_model_left_in_train_mode_is_exported_in_eval_mode(
    small_run: SmallRun, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_train_mode(info: CheckpointInfo, reader: RowReader) -> Trained:
        trained = read_trained(info, reader)
        trained.model.train()
        return trained

    monkeypatch.setattr("emberline.export.opened.read_trained", in_train_mode)
    engine = Engine.open(export_model(small_run.path, tmp_path, "small"))
    request = engine.encode_rows(small_run.rows)
    wanted = small_run.answers(small_run.rows)[0]["logits"]
    for _ in range(3):
        torch.testing.assert_close(engine.predict(request)["logits"], wanted, rtol=0, atol=BOUND)
    assert Engine.open(artifact).artifact.manifest.files["programs/dense.ts"].bytes > 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("city_emb", r"feature group 'deep', feature 'city' \(table city_emb\) differs in .* numbers \(case 'rows.parquet, rows 0 to 255'\)"),
        ("uid_emb_wide", r"feature group 'wide', feature 'uid' \(table .*uid_emb_wide.*\) differs"),
        ("clicks_emb", r"feature group 'deep', feature 'clicks' \(table clicks_emb\) differs"),
    ],
)
def test_changed_table_is_named_and_not_published(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, message: str
) -> None:
    blocks = RowSource.blocks

    def shifted(source: RowSource, name: str, max_rows: int) -> Iterator[Tensor]:
        return (block + 1e-4 if name == table else block for block in blocks(source, name, max_rows))

    monkeypatch.setattr(RowSource, "blocks", shifted)
    with pytest.raises(ParityError, match=message):
        export_model(small_run.path, tmp_path, "small")
    assert _nothing_published(tmp_path)


def test_changed_program_is_named_and_not_published(small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = program.write_programs

    def write(model: Any, *arguments: Any, **more: Any) -> Any:
        bias = list(model.head.output.parameters())[-1]
        before = bias.detach().clone()
        bias.data += 1e-3
        written = original(model, *arguments, **more)
        bias.data = before
        return written

    monkeypatch.setattr("emberline.export.export.write_programs", write)
    with pytest.raises(ParityError, match="output 'logits' differs in 256 of 256 numbers"):
        export_model(small_run.path, tmp_path, "small")
    assert _nothing_published(tmp_path)


def test_rows_that_only_training_can_read_stop_the_export(small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(engine: Engine, rows: object) -> None:
        raise RequestError("no such value")

    monkeypatch.setattr(Engine, "encode_rows", refuse)
    with pytest.raises(ParityError, match="rows 0 to 255: training reads these rows, but the artifact refuses them: no such value"):
        export_model(small_run.path, tmp_path, "small")
    assert _nothing_published(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_table_with_nan_is_refused_by_table_and_row(small_run: SmallRun, tmp_path: Path, bad: float) -> None:
    trained = small_run.load()
    trained.model.embedding_group.pooled.table_weights()["tags_emb"].data[3, 1] = bad
    save_checkpoint(tmp_path / "run", trained.model, (trained.path / CONFIG_NAME).read_text())
    with pytest.raises(ExportError, match="table 'tags_emb': row 3 holds NaN"):
        export_model(tmp_path / "run", tmp_path / "models", "small")
    assert _nothing_published(tmp_path / "models")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "pickle"}, "unknown format 'pickle'; known: torchscript, aoti, onnx"),
        ({"quantize": "int3"}, "--quantize int3: unknown number type 'int3'"),
        ({"name": "../up"}, "model name '../up'"),
        ({"version": 0}, "version must be 1 or more"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(small_run: SmallRun, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export_model(small_run.path, tmp_path / "models", **{"name": "small", **options})
    assert _nothing_published(tmp_path / "models")


def test_missing_incomplete_and_damaged_checkpoints_are_refused(small_run: SmallRun, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        export_model(tmp_path / "nowhere", tmp_path / "models", "m")
    run = shutil.copytree(small_run.path, tmp_path / "run")
    manifest = run / "step-7" / "manifest.json"
    text = manifest.read_text()
    manifest.unlink()
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        export_model(run, tmp_path / "models", "m")
    manifest.write_text(text)
    (run / "step-7" / "config.pbtxt").write_text("")
    with pytest.raises(CheckpointError, match=r"config\.pbtxt"):
        export_model(run, tmp_path / "models", "m")
    assert _nothing_published(tmp_path / "models")


def test_parity_rows_that_are_missing_or_wrong_stop_the_export(small_run: SmallRun, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.parquet does not exist"):
        export_model(small_run.path, tmp_path / "models", "m", parity_rows=tmp_path / "gone.parquet")
    pa.parquet.write_table(pa.table({"uid": [1]}), tmp_path / "short.parquet")
    with pytest.raises(DataError, match=r"short\.parquet"):
        export_model(small_run.path, tmp_path / "models", "m", parity_rows=tmp_path / "short.parquet")
    assert _nothing_published(tmp_path / "models")


def test_tensors_of_the_golden_sample_are_the_trained_models(small_run: SmallRun, engine: Engine) -> None:
    sample: dict[str, Tensor] = engine.artifact.golden()
    outputs, groups = small_run.answers(small_run.rows[:8])
    assert torch.equal(sample["output.logits"], outputs["logits"])
    assert torch.equal(sample["group.deep"], groups["deep"])
