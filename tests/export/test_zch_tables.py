"""Tables with raw ids in artifacts: all, some or none of a model's; several tables of one feature; and maps that have no ids yet."""

from pathlib import Path

import pytest
import torch

from emberline.errors import ExportError
from emberline.export.delta import export_delta
from emberline.export.export import export_model
from emberline.serving.artifact import load_manifest
from emberline.serving.deltas.files import load_delta_manifest
from emberline.serving.engine import Engine
from emberline.serving.files import map_tensors
from emberline.train.config import parse_config
from emberline.train.models import RecModel, build_model
from emberline.train.models.build import features_of
from tests.export.conftest import make_run, make_table, save_checkpoint

ZCH = "zch { zch_size: 12 eviction_interval: 1 lfu {} }"
ROWS = {"uid": "hash_bucket_size: 30", "tags": 'num_buckets: 10 pooling: "mean"'}


def config(zch: tuple[str, ...], *, tables: tuple[str, str] = ("uid_emb", "tags_emb")) -> str:
    features = "\n".join(
        f'feature_configs {{ id_feature {{ feature_name: "{name}" expression: "{name}" embedding_name: "{table}" embedding_dim: 4 '
        f"{ZCH if name in zch else ROWS[name]} }} }}"
        for name, table in zip(ROWS, tables, strict=True)
    )
    names = " ".join(f'feature_names: "{name}"' for name in ROWS)
    return f"""
eval_input_path: "DATA"
data_config {{ fg_mode: FG_NORMAL label_fields: "label" batch_size: 32 }}
train_config {{
  sparse_optimizer {{ adagrad_optimizer {{ lr: 0.1 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} constant_learning_rate {{}} }}
}}
{features}
model_config {{
  feature_groups {{ group_name: "wide" group_type: WIDE {names} }}
  feature_groups {{ group_name: "deep" group_type: DEEP {names} }}
  feature_groups {{ group_name: "fm" group_type: DEEP {names} }}
  deepfm {{ deep {{ hidden_units: [8] }} final {{ hidden_units: 4 }} }}
}}
"""


def untrained(text: str) -> RecModel:
    settings = parse_config(text)
    return build_model(settings, features_of(settings))


@pytest.mark.parametrize("zch", [("uid", "tags"), ("uid",), ()])
def test_models_of_all_some_or_no_such_tables(tmp_path: Path, zch: tuple[str, ...]) -> None:
    run = make_run(tmp_path / "made", config(zch), make_table(96, seed=4))
    path = export_model(run.path, tmp_path / "models", "m")
    entries = {entry.table: entry.remap for entry in load_manifest(path).tables}
    assert {table for table, remap in entries.items() if remap is not None} == {f"{name}_emb{wide}" for name in zch for wide in ("", "_wide")}
    rows = [{name: row[name] for name in ROWS} for row in run.rows]
    engine = Engine.open(path)
    request = engine.encode_rows(rows)
    outputs, groups = run.answers(rows)
    for name, answer in engine.lookup(request).items():
        torch.testing.assert_close(answer, groups[name], rtol=0, atol=1e-6)
    torch.testing.assert_close(engine.predict(request)["logits"], outputs["logits"], rtol=0, atol=1e-6)
    known = engine.known(request)
    assert known.numel() == len(rows) + sum(len(row["tags"]) for row in rows)  # type: ignore[arg-type, misc]
    assert bool(known.all()) == (not zch)


def test_tables_of_one_feature_come_out_each_with_its_own_rows(tmp_path: Path) -> None:
    text = config(("uid", "tags"), tables=("shop-uid", "tags_emb"))
    model = untrained(text)
    values = {"shop-uid": 2.0, "shop-uid_wide": 1.0, "tags_emb": 4.0, "tags_emb_wide": 3.0}
    for table, weight in model.embedding_group.table_weights().items():
        weight.data.fill_(values[table])
    save_checkpoint(tmp_path / "run", model, text.replace("DATA", ""))
    path = export_model(tmp_path / "run", tmp_path / "models", "m")
    entries = load_manifest(path).tables
    assert {entry.table: entry.file for entry in entries} == {
        "shop-uid": "tables/shop-uid.safetensors",
        "shop-uid_wide": "tables/shop-uid_wide.safetensors",
        "tags_emb": "tables/tags_emb.safetensors",
        "tags_emb_wide": "tables/tags_emb_wide.safetensors",
    }
    for entry in entries:
        assert set(map_tensors(path / entry.file)["rows"].flatten().tolist()) == {values[entry.table]}
        assert entry.remap is not None
        assert entry.remap.file == entry.file.replace("tables/", "remap/")
    found = Engine.open(path)
    answer = found.lookup(found.encode_rows([{"uid": 5, "tags": [1]}]))
    assert answer["deep"].tolist() == [[2.0] * 4 + [4.0] * 4]
    assert answer["wide"].tolist() == [[1.0] * 4 + [3.0] * 4]


def test_tables_whose_names_would_be_one_file_are_refused(tmp_path: Path) -> None:
    text = config(("uid", "tags"), tables=("Shop", "shop"))
    save_checkpoint(tmp_path / "run", untrained(text), text.replace("DATA", ""))
    with pytest.raises(ExportError, match="tables 'Shop_wide' and 'shop_wide' would both be stored as 'shop_wide': rename one"):
        export_model(tmp_path / "run", tmp_path / "models", "m")
    assert not list((tmp_path / "models").rglob("[!.]*/manifest.json"))


def test_maps_without_ids_are_files_without_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ids read the fallback row then, and a delta of what nobody touched has no tables, and needs nothing that programs are made with."""
    text = config(("uid", "tags"))
    model = untrained(text)
    save_checkpoint(tmp_path / "run", model, text.replace("DATA", ""))
    path = export_model(tmp_path / "run", tmp_path / "models", "m")
    for entry in load_manifest(path).tables:
        assert entry.remap is not None
        parts = {name: part.tolist() for name, part in map_tensors(path / entry.remap.file).items()}
        assert [line[5:] for line in parts.pop("lines")] == [[-1, -1, -1]] * 65
        assert parts == {"raw_ids": [], "rows": [], "fallback_starts": [-(2**63)], "fallback_rows": [11]}
    engine = Engine.open(path)
    request = engine.encode_rows([{"uid": 5, "tags": []}, {"uid": 2**63 - 1, "tags": []}])
    fallback = model.embedding_group.table_weights()["uid_emb"][-1].detach()
    assert torch.equal(engine.lookup(request)["deep"][:, :4], fallback.expand(2, 4))
    assert engine.known(request).tolist() == [False, False]
    monkeypatch.setattr("emberline.export.program.require_needs", lambda formats: pytest.fail("no program is written"))
    delta = export_delta(tmp_path / "run", tmp_path / "models", "m", 1)
    assert load_delta_manifest(delta)[0].tables == ()
    assert engine.apply_delta(delta) == 1
    assert torch.equal(engine.lookup(request)["deep"][:, :4], fallback.expand(2, 4))
