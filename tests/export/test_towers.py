"""One tower as an artifact of its own: its features, tables and output, no others, and the whole model's vectors for the same rows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from emberline.cli import main
from emberline.encoding import columns_from_rows, encode
from emberline.errors import CheckpointError
from emberline.export.answers import model_answers
from emberline.export.delta import export_delta
from emberline.export.export import export_model
from emberline.serving import Engine
from tests.export.conftest import SmallRun, make_run, save_checkpoint, train_a_little

_CONFIG = """
eval_input_path: "DATA"
data_config { fg_mode: FG_NORMAL label_fields: "label" batch_size: 32 }
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
}
feature_configs { id_feature { feature_name: "uid" expression: "user:uid" embedding_dim: 4 zch { zch_size: 40 eviction_interval: 1 lru {} } } }
feature_configs { id_feature { feature_name: "shown" expression: "item:shown" embedding_dim: 8 num_buckets: 30 embedding_name: "both_emb" } }
feature_configs { id_feature { feature_name: "liked" expression: "user:liked" embedding_dim: 8 num_buckets: 30 embedding_name: "both_emb" } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" embedding_dim: 4 mlp {} } }
feature_configs { raw_feature { feature_name: "age" expression: "user:age" } }
model_config {
  feature_groups { group_name: "u" feature_names: "liked" feature_names: "uid" feature_names: "age" }
  feature_groups { group_name: "i" feature_names: "shown" feature_names: "price" }
  dssm {
    user_tower { input: "u" mlp { hidden_units: [8] } } item_tower { input: "i" mlp { hidden_units: [8] } }
    output_dim: 6 similarity: COSINE temperature: 0.2
  }
}
"""


def _rows(seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {
        "uid": pa.array(rng.integers(0, 60, 96), pa.int64()),
        "shown": pa.array(rng.integers(0, 30, 96), pa.int64()),
        "liked": pa.array([rng.integers(0, 30, rng.integers(0, 4)).tolist() for _ in range(96)], pa.list_(pa.int64())),
        "price": pa.array(rng.normal(size=96).astype(np.float32)),
        "age": pa.array(rng.normal(size=96).astype(np.float32)),
        "label": pa.array(rng.integers(0, 2, 96).astype(np.float32)),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return make_run(tmp_path_factory.mktemp("dssm"), _CONFIG, _rows(1))


@pytest.fixture(scope="module")
def models(run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("towers")
    for tower in ("user", "item"):
        assert main(["export", "--checkpoint", str(run.path), "--output", str(models), "--name", tower, "--tower", tower]) == 0
    return models


def require_same(engine: Engine, run: SmallRun, tower: str, rows: list[dict[str, object]]) -> None:
    trained = run.load()
    schema = trained.model.schema()
    outputs, groups = model_answers(trained.model, schema, encode(schema.features, *columns_from_rows(schema.features, rows)))
    own = [{name: row[name] for name in {column for feature in engine.schema.features for column in feature.columns}} for row in rows]
    request = engine.encode_rows(own)
    output = f"{tower}_tower_emb"
    found = engine.predict(request)
    assert list(found) == [output]
    torch.testing.assert_close(found[output], outputs[output], rtol=1e-6, atol=1e-6)
    for name, tensor in engine.lookup(request).items():
        torch.testing.assert_close(tensor, groups[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("tower", "features", "tables", "group"),
    [("user", ["uid", "liked", "age"], ["uid_emb", "both_emb"], "u"), ("item", ["shown", "price"], ["both_emb"], "i")],
)
def test_a_tower_has_its_own_parts_and_the_models_answers(
    models: Path, run: SmallRun, tower: str, features: list[str], tables: list[str], group: str
) -> None:
    engine = Engine.open(models / tower)
    schema = engine.schema
    assert [feature.name for feature in schema.features] == features
    assert sorted(table.name for table in schema.tables) == sorted(tables)
    assert [found.name for found in schema.groups] == [group]
    assert [output.name for output in schema.outputs] == [f"{tower}_tower_emb"]
    assert {lookup.feature for lookup in schema.lookups} <= set(features)
    assert sorted(path.stem for path in (models / tower / "1" / "tables").iterdir()) == sorted(tables)
    assert engine.artifact.manifest.tower == tower
    require_same(engine, run, tower, [*run.rows, {**run.rows[0], "uid": -7}])


def test_inspect_tells_which_tower_it_is(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(models / "user")]) == 0
    assert capsys.readouterr().out.startswith("artifact user, version 1, tower user, made ")


def test_what_is_no_tower_is_refused_with_those_there_are(run: SmallRun, small_run: SmallRun, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="its model has no tower 'query'; its towers are user, item"):
        export_model(run.path, tmp_path, "m", tower="query")
    with pytest.raises(CheckpointError, match="its model has no tower 'user'; its towers are none"):
        export_model(small_run.path, tmp_path, "m", tower="user")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_delta_of_a_tower_is_of_that_tower(models: Path, run: SmallRun, tmp_path: Path) -> None:
    base = export_model(run.path, tmp_path, "m", tower="item")
    trained = run.load()
    train_a_little(trained.model, _rows(2), trained.features)
    later = SmallRun(tmp_path / "run", run.data, run.rows)
    save_checkpoint(later.path, trained.model, _CONFIG.replace("DATA", str(run.data)), 9)
    assert export_delta(later.path, tmp_path, "m", 1) == base / "deltas" / "1"
    engine = Engine.open(base)
    assert engine.delta == 1
    require_same(engine, later, "item", run.rows[:20])
