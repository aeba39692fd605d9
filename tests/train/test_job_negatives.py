"""Runs whose negatives are drawn: evaluated, killed, scored, and what must not be in their configs."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from emberline.errors import ConfigError, DataError
from emberline.train.checkpoint import load_trained
from emberline.train.config import PipelineConfig, load_config, parse_config
from emberline.train.data.sampler import Items, open_items
from emberline.train.job import run_training
from emberline.train.job_build import open_evaluation_data
from emberline.train.models import features_of
from emberline.train.scoring.evaluation import evaluate_files
from emberline.train.scoring.model import open_scorer
from emberline.train.scoring.outputs import write_outputs
from emberline.train.sharding.process_group import ALONE
from emberline.train.sharding.traffic import measure_traffic
from tests.train.job_runs import assert_same_end
from tests.train.jobs import TIMEOUT_S

pytestmark = [pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"), pytest.mark.usefixtures("one_thread")]
ITEMS, BATCH, SAMPLES = 40, 12, 5
FEATURES = """
feature_configs { id_feature { feature_name: "user" expression: "user:user" embedding_dim: 8 num_buckets: 30 } }
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 8 num_buckets: 40 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }
"""
MODEL = """model_config {
  feature_groups { group_name: "u" feature_names: "user" }
  feature_groups { group_name: "i" feature_names: "item" feature_names: "price" }
  dssm { user_tower { input: "u" mlp { hidden_units: [8] } } item_tower { input: "i" mlp { hidden_units: [8] } } output_dim: 4 }
  losses { softmax_cross_entropy {} }
}"""


def make_rows(rows: int, seed: int) -> pa.Table:
    generator = np.random.default_rng(seed)
    users = generator.integers(0, 30, rows)
    items = users % ITEMS
    return pa.table({"user": users, "item": items, "price": items.astype(np.float32) / ITEMS, "click": generator.integers(0, 2, rows)})


def make_config(
    folder: Path, train: str = "num_steps: 40 save_checkpoints_steps: 8", features: str = FEATURES, fields: str = '"item", "price"'
) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(make_rows(200, 1), folder / "train.parquet", row_group_size=50)
    pq.write_table(make_rows(30, 2), folder / "eval.parquet")
    items = np.arange(ITEMS)
    pq.write_table(pa.table({"item": items, "price": items.astype(np.float32) / ITEMS, "seen": items % 4}), folder / "items.parquet")
    path = folder / "pipeline.config"
    path.write_text(f"""
train_input_path: "{folder}/train.parquet" eval_input_path: "{folder}/eval.parquet"
data_config {{ batch_size: {BATCH} label_fields: "click" fg_mode: FG_NORMAL shuffle: true
  negative_sampler {{
    input_path: "{folder}/items.parquet" num_sample: {SAMPLES} num_eval_sample: 9 attr_fields: [{fields}] item_id_field: "item" weight_field: "seen"
  }}
}}
train_config {{
  sparse_optimizer {{ adagrad_optimizer {{ lr: 0.1 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} constant_learning_rate {{}} }}
  use_tensorboard: false {train}
}}
{features} {MODEL}
""")
    return path


def by_hand(run: Path) -> dict[str, float]:
    """Recall and log loss of the newest checkpoint, row by row in float64, over the evaluation's own batches."""
    trained = load_trained(run)
    reader = open_evaluation_data(trained.config, trained.features)
    assert reader is not None
    hits, losses = 0, []
    for batch in reader:
        with torch.no_grad():
            outputs = trained.model(batch)
        users, items = (outputs[f"{side}_tower_emb"].double().numpy() for side in ("user", "item"))
        assert len(items) == len(users) + 9
        for row in np.flatnonzero(batch.labels["click"].numpy()):
            scores = [float(users[row] @ item) for item in [items[row], *items[len(users) :]]]
            hits += scores[0] >= max(scores)
            losses.append(math.log(math.fsum(math.exp(score - scores[0]) for score in scores)))
    return {"recall_at_1": hits / len(losses), "log_loss": math.fsum(losses) / len(losses), "rows": len(losses)}


def test_evaluations_are_of_the_same_negatives_and_need_them(tmp_path: Path) -> None:
    config = load_config(make_config(tmp_path / "data"))
    result = run_training(config, tmp_path / "run")
    assert result.metrics == pytest.approx(by_hand(tmp_path / "run"), rel=1e-5)
    with open_scorer(tmp_path / "run", ALONE) as scorer:
        assert evaluate_files(scorer) == evaluate_files(scorer) == pytest.approx(result.metrics, rel=1e-6)
        (tmp_path / "data/items.parquet").unlink()
        with pytest.raises(DataError, match=r"items\.parquet does not exist"):
            evaluate_files(scorer)
        # Scoring needs no items: rows have one answer each.
        assert write_outputs(scorer, tmp_path / "data/eval.parquet", tmp_path / "out", keep=("user",), batch_size=7) == 30
    found = pq.read_table(tmp_path / "out")
    assert found.column_names == ["user", "logits", "user_tower_emb", "item_tower_emb"]
    products = [float(np.dot(row["user_tower_emb"], row["item_tower_emb"])) for row in found.to_pylist()]
    assert found.column("logits").to_pylist() == pytest.approx(products, abs=1e-5)


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_same_bits(tmp_path: Path) -> None:
    path = make_config(tmp_path / "data", train="num_steps: 40 save_checkpoints_steps: 8 keep_checkpoint_max: 2")
    script = Path(__file__).with_name("killed_runs.py")
    done = subprocess.run(
        (sys.executable, str(script), str(path), str(tmp_path), "step"), capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert "step -9" in done.stdout.splitlines(), done.stdout + done.stderr
    config = load_config(path)
    run_training(config, tmp_path / "whole")
    assert run_training(config, tmp_path / "step", resume=True).step == 40
    assert_same_end(tmp_path / "step", tmp_path / "whole")


def test_other_negatives_are_another_run(tmp_path: Path) -> None:
    """So the negatives are learnt from: the same run with items in other proportions ends elsewhere."""
    ends = []
    for number, seen in enumerate((None, np.arange(ITEMS)[::-1] % 4)):
        config = load_config(make_config(tmp_path / str(number), train="num_steps: 3"))
        if seen is not None:
            items = pq.read_table(tmp_path / str(number) / "items.parquet")
            pq.write_table(items.set_column(2, "seen", pa.array(seen)), tmp_path / str(number) / "items.parquet")
        ends.append(run_training(config, tmp_path / f"run-{number}").loss)
    assert ends[0] != ends[1]


def test_traffic_counts_the_negatives(tmp_path: Path) -> None:
    config = load_config(make_config(tmp_path))
    found = measure_traffic(config, features_of(config), 3)
    assert {name: one.rows for name, one in found.items()} == {"user": BATCH, "item": BATCH + SAMPLES}


@pytest.mark.parametrize("batches", [0, 3])
def test_a_run_reads_its_items_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Those that were read to count ids a row are those that training and evaluation draw from."""
    made: list[int] = []
    init = Items.__init__

    def counted(self: Items, *args: Any) -> None:
        init(self, *args)
        made.append(len(self))

    monkeypatch.setattr(Items, "__init__", counted)
    config = load_config(make_config(tmp_path, train=f"num_steps: 2 planner {{ sample_batches: {batches} }}"))
    assert run_training(config, tmp_path / "run").step == 2
    assert made == [np.count_nonzero(np.arange(ITEMS) % 4)]


CROSS = """feature_configs { combo_feature {
  feature_name: "both" expression: "user:user" expression: "item:item" embedding_dim: 8 hash_bucket_size: 40
} }"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": FEATURES + CROSS}, "negative_sampler: feature 'both' reads user beside columns of items, .* only have item, price: .* crossed"),
        ({"fields": '"item", "price", "brand"'}, "data_config: negative_sampler: no feature reads brand; take it out"),
    ],
)
def test_features_and_items_fit_together(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config = load_config(make_config(tmp_path, **change))
    with pytest.raises(ConfigError, match=message):
        run_training(config, tmp_path / "run")


def test_items_crossed_with_themselves_are_fine(tmp_path: Path) -> None:
    cross = CROSS.replace("user:user", "item:kind")
    path = make_config(tmp_path, features=FEATURES + cross, fields='"item", "price", "kind"', train="num_steps: 2")
    for name in ("train", "eval", "items"):
        table = pq.read_table(tmp_path / f"{name}.parquet")
        pq.write_table(table.append_column("kind", pa.array([f"k{item % 3}" for item in table["item"].to_pylist()])), tmp_path / f"{name}.parquet")
    config = load_config(path)
    items = open_items(config.data, features_of(config))
    assert items is not None
    drawn = items.draw(np.empty(0, np.int64), 50, np.random.default_rng(0))
    crossed = dict(zip(drawn.sparse["item"].values.tolist(), drawn.sparse["both"].values.tolist(), strict=True))
    assert len(set(crossed.values())) > 5
    assert run_training(config, tmp_path / "run").step == 2


def test_a_model_that_compares_nothing_draws_nothing(tmp_path: Path) -> None:
    text = make_config(tmp_path).read_text()
    start = text.index("model_config")
    deep = """model_config { feature_groups { group_name: "deep" feature_names: "user" }
      deepfm { deep { hidden_units: [8] } } losses { binary_cross_entropy {} } }"""
    config = replace(parse_config(text[:start] + deep), source="c.pbtxt")
    with pytest.raises(ConfigError, match="negative_sampler is for dssm"):
        run_training(config, tmp_path / "run")


def test_a_batch_of_all_items_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    path = make_config(tmp_path)
    pq.write_table(pq.read_table(tmp_path / "items.parquet").slice(0, 3), tmp_path / "items.parquet")
    text = path.read_text().replace(f"batch_size: {BATCH}", "batch_size: 200")
    config: PipelineConfig = parse_config(text)
    with pytest.raises(DataError, match=r"a batch has all 2 items that can be drawn"):
        run_training(config, tmp_path / "run")
