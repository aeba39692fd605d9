"""Artifacts whose tables are stored in other number types: they answer as the trained model with these tables, and tell what that costs."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from emberline.cli import main
from emberline.encoding import columns_from_rows, encode
from emberline.errors import ArtifactError, ExportError, QualityError
from emberline.export.answers import model_answers
from emberline.export.delta import export_delta
from emberline.export.describe import verify
from emberline.export.explain import explain
from emberline.export.export import export_model
from emberline.manifest import TableEntry
from emberline.serving.artifact import load_manifest
from emberline.serving.deltas.files import load_delta_manifest
from emberline.serving.engine import Engine
from emberline.serving.files import map_tensors
from emberline.serving.quantized import STORED_DTYPES, decode_rows, encode_rows, stored_bytes
from emberline.train.zch import ROUTINGS
from tests.export.conftest import SmallRun, make_run, make_table
from tests.export.test_delta import CONFIG, other_ids, train_on
from tests.export.test_ranks import as_two_ranks_wrote_it

BOUND = 1e-6
MIXED = ["int8", "uid_emb=int4", "tags_emb=fp16", "city_emb=fp32", "uid_emb_wide=bf16"]


@pytest.fixture(scope="module")
def models(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one type, and one of all types, whose unknown ids read rows of their own."""
    models = tmp_path_factory.mktemp("models")
    export_model(small_run.path, models, "int8", quantize="int8")
    export_model(small_run.path, models, "mixed", quantize=MIXED, unknown=["uid=mean", "buys=zeros"])
    return models


def entries_of(models: Path, name: str) -> dict[str, TableEntry]:
    return {entry.table: entry for entry in load_manifest(models / name / "1").tables}


def decoded(small_run: SmallRun, types: Mapping[str, str]) -> dict[str, Tensor]:
    """Each trained table as it is after it was stored."""
    weights = small_run.load().model.embedding_group.table_weights()
    return {name: decode_rows(encode_rows(weight.detach(), types[name]), weight.shape[1], types[name]) for name, weight in weights.items()}


def answers_with(small_run: SmallRun, tables: Mapping[str, Tensor], rows: list[dict[str, object]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the trained model answers with other tables."""
    model = small_run.load().model
    for name, weight in model.embedding_group.table_weights().items():
        weight.data = tables[name]
    features = model.schema().features
    return model_answers(model, model.schema(), encode(features, *columns_from_rows(features, rows)))


@pytest.mark.parametrize("name", ["int8", "mixed"])
def test_answers_are_those_of_the_trained_model_with_the_stored_tables(models: Path, small_run: SmallRun, name: str) -> None:
    engine = Engine.open(models / name)
    types = {table: entry.dtype for table, entry in entries_of(models, name).items()}
    known = set(engine.artifact.ids["uid_emb"].raw_ids.tolist())
    rows = small_run.rows if name == "int8" else [row for row in small_run.rows if row["uid"] in known and not row["buys"]]
    assert len(rows) > 50
    outputs, groups = answers_with(small_run, decoded(small_run, types), rows)
    request = engine.encode_rows(rows)
    trained, _ = small_run.answers(rows)
    found = engine.predict(request)
    torch.testing.assert_close(found["logits"], outputs["logits"], rtol=0, atol=BOUND)
    for group, wanted in groups.items():
        torch.testing.assert_close(engine.lookup(request)[group], wanted, rtol=0, atol=BOUND)
    assert 0 < (found["logits"] - trained["logits"]).abs().max() < 1
    assert len(list(verify(models / name))) == 1


@pytest.mark.parametrize("name", ["int8", "mixed"])
def test_files_hold_the_encoded_rows(models: Path, small_run: SmallRun, name: str) -> None:
    weights = small_run.load().model.embedding_group.table_weights()
    artifact = Engine.open(models / name).artifact
    for table, entry in entries_of(models, name).items():
        weight = weights[table].detach()
        stored = artifact.tables[table][: weight.shape[0]]
        assert torch.equal(stored.view(torch.uint8), encode_rows(weight, entry.dtype).view(torch.uint8)), table
        assert artifact.tables[table].dtype == STORED_DTYPES[entry.dtype]
        assert artifact.schema.tables[0].dtype == "fp32"
    wanted = dict.fromkeys(weights, name) if name != "mixed" else {**dict.fromkeys(weights, "int8"), **dict(text.split("=") for text in MIXED[1:])}
    assert {table: entry.dtype for table, entry in entries_of(models, name).items()} == wanted


def test_rows_for_unknown_ids_are_stored_as_all_others(models: Path, small_run: SmallRun) -> None:
    engine = Engine.open(models / "mixed")
    artifact = engine.artifact
    assert artifact.schema.tables[[spec.name for spec in artifact.schema.tables].index("uid_emb")].rows == 41
    weight = small_run.load().model.embedding_group.table_weights()["uid_emb"].detach()
    mean = weight[artifact.ids["uid_emb"].rows].double().mean(0).float()
    found = engine.lookup(engine.encode_rows([{**small_run.rows[0], "uid": 499}]))["deep"][0, :4]
    assert torch.equal(found, decode_rows(encode_rows(mean[None], "int4"), 4, "int4")[0])
    (facts,) = [facts for facts in explain(models / "mixed", "uid", "499") if facts["table"] == "uid_emb"]
    assert (facts["row"], facts["vector"]) == (40, found.tolist())
    zeros = engine.lookup(engine.encode_rows([{**small_run.rows[0], "buys": {12345: 2.0}}]))["deep"][0]
    assert zeros[24:28].tolist() == [0.0] * 4


def test_a_row_is_explained_by_its_codes(models: Path) -> None:
    levels = {"int8": 255, "int4": 15}
    for feature, value, wanted in (("uid", "5", "int4"), ("age", "20", "int8")):
        facts = next(facts for facts in explain(models / "mixed", feature, value) if facts["table"] == f"{feature}_emb")
        assert facts["type"] == f"{wanted}: each number is scale * code + bias"
        codes, scale, bias = facts["codes"], float(str(facts["scale"])), float(str(facts["bias"]))
        assert isinstance(codes, list)
        assert max(codes) == levels[wanted]
        assert facts["vector"] == [float(np.float32(np.float32(scale * code) + np.float32(bias))) for code in codes]
        assert len(bytes.fromhex(str(facts["bytes"]))) == 8
    facts = next(facts for facts in explain(models / "mixed", "tags", "3") if facts["table"] == "tags_emb")
    assert facts["type"] == "fp16, not quantised: no scale"
    assert np.frombuffer(bytes.fromhex(str(facts["bytes"])), np.float16).tolist() == facts["vector"]


# --- the report ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int8", "mixed"])
def test_the_report_tells_errors_of_tables_and_metrics_of_the_model(models: Path, small_run: SmallRun, name: str) -> None:
    report = json.loads((models / name / "1" / "quality.json").read_text())
    weights = small_run.load().model.embedding_group.table_weights()
    types = {table: entry.dtype for table, entry in entries_of(models, name).items()}
    back = decoded(small_run, types)
    assert sorted(one["table"] for one in report["tables"]) == sorted(weights)
    for one in report["tables"]:
        wanted, found = weights[one["table"]].detach().double(), back[one["table"]].double()
        assert one["max_abs_error"] == (found - wanted).abs().max().item()
        assert one["mean_squared_error"] == pytest.approx((found - wanted).square().mean().item())
        assert (one["trained"], one["stored"]) == ("fp32", types[one["table"]])
        assert one["min_cosine"] == pytest.approx(torch.cosine_similarity(wanted, found, dim=1).min().item(), abs=1e-9)
        assert one["bytes_stored"] == stored_bytes(wanted.shape[0], wanted.shape[1], types[one["table"]])
    engine = Engine.open(models / name)
    trained, _ = small_run.answers(small_run.rows)
    stored = engine.predict(engine.encode_rows(small_run.rows))
    labels = pq.read_table(small_run.data)["label"].to_numpy().copy()
    evaluation = report["evaluation"]
    assert (evaluation["data"], evaluation["rows"]) == (str(small_run.data), 320)
    for side, outputs in (("trained", trained), ("artifact", stored)):
        assert evaluation[side]["auc"] == pytest.approx(auc(outputs["logits"].numpy(), labels), abs=1e-4)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs["logits"].double(), torch.from_numpy(labels).double())
        assert evaluation[side]["log_loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert evaluation["change"]["auc"] == evaluation["artifact"]["auc"] - evaluation["trained"]["auc"]
    manifest = load_manifest(models / name / "1")
    assert manifest.quality == {key: report[key] for key in ("bytes_trained", "bytes_stored", "max_abs_error", "min_cosine", "evaluation")}
    assert {"quality.json", "quality.md"} <= manifest.files.keys()
    assert f"| uid_emb | fp32 | {types['uid_emb']} | 40 | 4 |" in (models / name / "1" / "quality.md").read_text()


def auc(scores: np.ndarray, labels: np.ndarray) -> float:  # type: ignore[type-arg]
    """Pair by pair."""
    good, bad = scores[labels == 1], scores[labels == 0]
    return float(((good[:, None] > bad).sum() + 0.5 * (good[:, None] == bad).sum()) / (good.size * bad.size))


def test_a_terminal_and_inspect_tell_it_too(models: Path, small_run: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(models / "mixed")]) == 0
    told = capsys.readouterr().out
    assert "rows of tables: " in told
    assert "  auc: " in told
    lines = [line.split() for line in told.splitlines()]
    (row,) = [line for line in lines if line[:2] == ["uid_emb", "zch"]]
    assert row[2:6] == ["41", "4", "fp32", "int4"]
    assert int(row[-1].replace(",", "")) - int(row[-2].replace(",", "")) == 41 * (16 - 8)
    options = ["export", "--checkpoint", str(small_run.path), "--output", str(tmp_path), "--name", "m", "--quality-rows", "50"]
    assert main([*options, "--quantize", "int4", "--quantize", "city_emb=fp32", "--max-auc-drop", "1"]) == 0
    told = capsys.readouterr().out
    assert "table city_emb: 20 x 4 fp32\n" in told
    assert "  tags_emb: fp32 as int4, largest error " in told
    assert f"metrics as trained and as stored, of 50 rows of {small_run.data}\n" in told


# --- limits and refusals ---------------------------------------------------------------------------------------------


def test_an_auc_that_falls_too_far_publishes_nothing(small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that are the trained model's own answers: its AUC is 1, and any change of the order of rows shows."""
    outputs, _ = small_run.answers(small_run.rows)
    table = pq.read_table(small_run.data)
    place = table.schema.get_field_index("label")
    data = tmp_path / "rows.parquet"
    pq.write_table(table.set_column(place, "label", [(outputs["logits"] > outputs["logits"].median()).float().numpy()]), data)
    with pytest.raises(QualityError, match=r"^auc falls by 0\..*, from 1 to 0\.\d+, by more than --max-auc-drop 1e-06. Errors by table: ") as error:
        export_model(small_run.path, tmp_path / "models", "m", quantize="int4", parity_rows=data, max_auc_drop=1e-6)
    assert "_emb (int4): largest error" in str(error.value)
    assert "Keep the first of them wider: --quantize " in str(error.value)
    assert not any(path.is_file() for path in (tmp_path / "models").rglob("*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int3"}, "--quantize int3: unknown number type 'int3'"),
        ({"quantize": ["int8", "int4"]}, "--quantize: int8 and int4 are given for all tables"),
        ({"quantize": "town_emb=int8"}, "--quantize town_emb=int8: unknown table 'town_emb'"),
        ({"max_auc_drop": -0.1}, "--max-auc-drop must be a number from 0 to 1, not -0.1"),
        ({"max_auc_drop": float("nan")}, "--max-auc-drop must be a number from 0 to 1, not nan"),
        ({"quality_rows": -1}, "--quality-rows must be 0 or more, not -1"),
        ({"quality_rows": 0, "max_auc_drop": 0.1}, "--max-auc-drop needs an AUC, and there is none: --quality-rows is 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(small_run: SmallRun, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export_model(small_run.path, tmp_path / "models", "m", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "models").exists()


def test_data_without_labels_give_no_metrics(small_run: SmallRun, tmp_path: Path) -> None:
    data = tmp_path / "rows.parquet"
    pq.write_table(pq.read_table(small_run.data).drop_columns(["label"]), data)
    path = export_model(small_run.path, tmp_path / "models", "m", quantize="int8", parity_rows=data)
    report = json.loads((path / "quality.json").read_text())
    assert "'label'" in report["evaluation"]["missing"]
    assert load_manifest(path).parity["real_rows"] == 320
    with pytest.raises(ExportError, match=r"--max-auc-drop needs an AUC, and there is none: .*'label'"):
        export_model(small_run.path, tmp_path / "models", "m", quantize="int8", parity_rows=data, max_auc_drop=0.1)


def test_a_report_that_was_changed_is_found_by_its_digest(models: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(models / "int8" / "1", tmp_path / "1")
    (copied / "quality.md").write_text("all is well")
    with pytest.raises(ArtifactError, match=r"quality\.md"):
        Engine.open(copied)


# --- states of a model ------------------------------------------------------------------------------------------------

DELTA_TYPES = ["int8", "tags_emb=fp16", "uid_emb_wide=int4", "tags_emb_wide=fp32"]


def test_a_delta_has_the_version_s_types_and_becomes_the_full_export_to_the_bit(tmp_path: Path) -> None:
    run, models = make_run(tmp_path / "run", CONFIG, make_table(96, seed=1)), tmp_path / "models"
    base = export_model(run.path, models, "m", quantize=DELTA_TYPES, unknown=["uid=mean", "buys=zeros"])
    running = Engine.open(base)
    train_on(run, 8, other_ids(make_table(96, seed=2), 30))
    delta = export_delta(run.path, models, "m", 1)
    full = Engine.open(export_model(run.path, models, "m", quantize=DELTA_TYPES, unknown=["uid=mean", "buys=zeros"]))
    assert running.apply_new_deltas() == [1]
    rows = [{name: row[name] for name in ("uid", "tags", "buys")} for row in run.rows[:40]] + [{"uid": one} for one in (499, -5, 2**62)]
    for found in (running, Engine.open(base)):
        assert found.artifact.table_types == full.artifact.table_types
        assert sorted(set(found.artifact.table_types.values())) == ["fp16", "fp32", "int4", "int8"]
        for table, wanted in full.artifact.tables.items():
            assert torch.equal(found.artifact.tables[table].view(torch.uint8), wanted.view(torch.uint8)), table
        request = found.encode_rows(rows)
        for ask in (Engine.predict, Engine.lookup):
            for name, answer in ask(full, request).items():
                assert torch.equal(ask(found, request)[name], answer)
    assert map_tensors(delta / "changes.safetensors")["uid_emb/rows"].dtype == torch.uint8
    manifest, _ = load_delta_manifest(delta)
    assert {"quality.json", "quality.md"} <= manifest.files.keys()
    assert manifest.quality == full.artifact.manifest.quality
    assert "codes" in explain(models / "m" / "1", "uid", "100")[0]
    with pytest.raises(ExportError, match="--max-auc-drop needs an AUC, and there is none: --quality-rows is 0"):
        export_delta(run.path, models, "m", 1, max_auc_drop=0.0, quality_rows=0)


@pytest.mark.parametrize("routing", ROUTINGS[:1])
def test_a_checkpoint_of_two_ranks_answers_as_its_ranks_and_as_one_rank_do(models: Path, small_run: SmallRun, tmp_path: Path, routing: str) -> None:
    two = SmallRun(as_two_ranks_wrote_it(small_run, tmp_path / "run", routing), small_run.data, small_run.rows)
    one_rank = Engine.open(models / "int8")
    two_ranks = Engine.open(export_model(two.path, tmp_path / "models", "two", quantize="int8"))
    weights = {name: weight.detach() for name, weight in two.load().model.embedding_group.table_weights().items()}
    tables = {name: decode_rows(encode_rows(weight, "int8"), weight.shape[1], "int8") for name, weight in weights.items()}
    outputs, groups = answers_with(two, tables, small_run.rows)
    request = two_ranks.encode_rows(small_run.rows)
    torch.testing.assert_close(two_ranks.predict(request)["logits"], outputs["logits"], rtol=0, atol=1e-6)
    for name, wanted in groups.items():
        torch.testing.assert_close(two_ranks.lookup(request)[name], wanted, rtol=0, atol=1e-6)
    for table, rows in one_rank.artifact.tables.items():
        if table != "uid_emb":
            assert torch.equal(two_ranks.artifact.tables[table], rows), table
    known = two_ranks.known(request)[: len(small_run.rows)]
    uids = [row for row, there in zip(small_run.rows, known.tolist(), strict=True) if there]
    assert len(uids) > 100
    asked = one_rank.encode_rows(uids)
    torch.testing.assert_close(two_ranks.predict(asked)["logits"], one_rank.predict(asked)["logits"], rtol=0, atol=1e-6)
