"""Every built-in model beside DLRM and DeepFM: a few steps of a real run, read back, and for two towers each by itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import Trained, load_trained, store, tower_of
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.config import load_config
from emberline.train.data import Batch, DataReader
from emberline.train.job import TrainResult, run_training

pytestmark = [pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"), pytest.mark.usefixtures("one_thread")]

USERS, ITEMS, EACH = 30, 20, 3
FEATURES = """
feature_configs { id_feature {
  feature_name: "user" expression: "user:user" embedding_dim: 8 zch { zch_size: 40 eviction_interval: 2 lfu {} }
} }
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 8 num_buckets: 20 embedding_name: "item_emb" } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" embedding_dim: 4 mlp {} } }
feature_configs { sequence_id_feature {
  feature_name: "seen" expression: "user:seen" embedding_dim: 8 num_buckets: 20 embedding_name: "item_emb" sequence_length: 5
} }
"""
SIDES = """
feature_groups { group_name: "u" feature_names: "user" }
feature_groups { group_name: "i" feature_names: "item" feature_names: "price" }
"""
TOWERS = """
user_tower { input: "u" mlp { hidden_units: [16] } } item_tower { input: "i" mlp { hidden_units: [16] } }
output_dim: 8 similarity: COSINE temperature: 0.2
"""
DEEP = 'feature_groups { group_name: "deep" feature_names: "user" feature_names: "item" feature_names: "price" }'
CANDIDATES = "losses { softmax_cross_entropy {} } metrics { recall_at_k { top_k: 1 } } metrics { recall_at_k { top_k: 2 } }"
NEGATIVES = """negative_columns {
  num_negatives: 3 columns { key: "item" value: "other_items" } columns { key: "price" value: "other_prices" }
}"""
MODELS = {
    "wide_and_deep": f"""{DEEP} feature_groups {{ group_name: "wide" group_type: WIDE feature_names: "user" feature_names: "item" }}
      wide_and_deep {{ deep {{ hidden_units: [16] }} final {{ hidden_units: [8] }} }}""",
    "multi_tower_din": f"""{DEEP} feature_groups {{ group_name: "s" group_type: SEQUENCE feature_names: "item" feature_names: "seen" }}
      multi_tower_din {{
        towers {{ input: "deep" mlp {{ hidden_units: [16] }} }} din_towers {{ input: "s" attn_mlp {{ hidden_units: [8] }} }}
        final {{ hidden_units: [8] }}
      }}""",
    "pointwise": f"{SIDES} dssm {{ {TOWERS} }}",
    "in_batch": f"{SIDES} {CANDIDATES} dssm {{ {TOWERS} in_batch_negative: true }}",
    "sampled": f"{SIDES} {CANDIDATES} dssm {{ {TOWERS} }}",
    "both": f"{SIDES} {CANDIDATES} dssm {{ {TOWERS} in_batch_negative: true }}",
    "drawn": f"{SIDES} {CANDIDATES} dssm {{ {TOWERS} }}",
    "drawn_and_in_batch": f"{SIDES} {CANDIDATES} dssm {{ {TOWERS} in_batch_negative: true }}",
    "mmoe": f"""{DEEP} mmoe {{
      expert_mlp {{ hidden_units: [16] }} num_expert: 2
      task_towers {{ tower_name: "ctr" label_name: "click" mlp {{ hidden_units: [8] }} }}
      task_towers {{ tower_name: "grade" label_name: "grade" num_class: 3 losses {{ softmax_cross_entropy {{}} }} weight: 0.5 }}
      task_towers {{ tower_name: "spend" label_name: "spent" losses {{ l2_loss {{}} }} }}
    }}""",
}
MODELS["history"] = MODELS["sampled"].replace(
    'feature_names: "user"',
    """feature_names: "user"
      sequence_groups { group_name: "past" feature_names: "seen" } sequence_encoders { pooling_encoder { pooling_type: "mean" } }""",
)
DRAWN = """eval_batch_size: 8 negative_sampler {
  input_path: "FOLDER/items.parquet" num_sample: 4 num_eval_sample: 3 attr_fields: ["item", "price"] item_id_field: "item" weight_field: "seen_by"
}"""
DATA = {"sampled": NEGATIVES, "both": NEGATIVES, "history": NEGATIVES, "drawn": DRAWN, "drawn_and_in_batch": DRAWN}
DRAWN_MODELS = ("drawn", "drawn_and_in_batch")
RECALL = {"in_batch": 0.15, "sampled": 0.8, "both": 0.15, "history": 0.7, "drawn": 0.8, "drawn_and_in_batch": 0.5}
LABELS = {"mmoe": '["click", "grade", "spent"]'}


def make_table(rows: int, seed: int) -> pa.Table:
    """Each user likes one item; rows with it are clicks."""
    generator = np.random.default_rng(seed)
    users = generator.integers(0, USERS, rows)
    liked = users * 7 % ITEMS
    items = np.where(generator.random(rows) < 0.7, liked, generator.integers(0, ITEMS, rows))
    others = generator.integers(0, ITEMS, (rows, EACH))
    click = (items == liked).astype(np.int64)
    columns = {
        "user": pa.array(users * 1_000_003),
        "item": pa.array(items),
        "price": pa.array((items / ITEMS).astype(np.float32)),
        "seen": pa.array([generator.integers(0, ITEMS, count).tolist() for count in generator.integers(0, 8, rows)], pa.list_(pa.int64())),
        "other_items": pa.array(others.tolist()),
        "other_prices": pa.array((others / ITEMS).tolist()),
        "click": pa.array(click),
        "grade": pa.array(users % 3),
        "spent": pa.array((users / USERS).astype(np.float32)),
    }
    return pa.table(columns)


@pytest.fixture(scope="session")
def model_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train.parquet`, `eval.parquet` and `items.parquet`."""
    folder = tmp_path_factory.mktemp("model_data")
    pq.write_table(make_table(960, 1), folder / "train.parquet", row_group_size=100)
    pq.write_table(make_table(90, 2), folder / "eval.parquet")
    items = np.arange(ITEMS)
    pq.write_table(pa.table({"item": items, "price": (items / ITEMS).astype(np.float32), "seen_by": 1 + items % 3}), folder / "items.parquet")
    return folder


def write_config(folder: Path, data: Path, model: str, labels: str = "") -> Path:
    path, batch_size = folder / "pipeline.config", 16 if model in DRAWN_MODELS else 48
    path.write_text(f"""
train_input_path: "{data}/train.parquet"
eval_input_path: "{data}/eval.parquet"
data_config {{
  batch_size: {batch_size} label_fields: {labels or LABELS.get(model, '"click"')} fg_mode: FG_NORMAL shuffle: true
  {DATA.get(model, "").replace("FOLDER", str(data))}
}}
train_config {{
  sparse_optimizer {{ adagrad_optimizer {{ lr: 0.1 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} constant_learning_rate {{}} }}
  num_epochs: 3 seed: 3 use_tensorboard: false
}}
{FEATURES}
model_config {{ {MODELS[model]} }}
""")
    return path


def train(folder: Path, data: Path, model: str) -> TrainResult:
    return run_training(load_config(write_config(folder, data, model)), folder / "run")


def first_batch(trained: Trained) -> Batch:
    path = trained.config.eval_input_path
    return next(iter(DataReader(trained.config.data, trained.features, path, batch_size=50, shuffle=False, with_labels=False)))


@pytest.mark.parametrize("model", list(MODELS))
def test_it_learns_and_is_read_back(model_data: Path, tmp_path: Path, model: str) -> None:
    result = train(tmp_path, model_data, model)
    assert (result.step, result.epoch) == (180 if model in DRAWN_MODELS else 60, 3)
    numbers = result.metrics
    if model == "mmoe":
        by_task = {"ctr": ("auc", "log_loss", "rows"), "grade": ("accuracy", "log_loss", "rows"), "spend": ("mean_squared_error", "rows")}
        assert list(numbers) == [f"{name}_{task}" for task, names in by_task.items() for name in names]
        assert numbers["auc_ctr"] > 0.7
        assert numbers["accuracy_grade"] > 0.8
        assert numbers["mean_squared_error_spend"] < 0.03
    elif model in ("in_batch", "sampled", "both", "history", *DRAWN_MODELS):
        assert list(numbers) == ["recall_at_1", "recall_at_2", "log_loss", "rows"]
        assert numbers["recall_at_1"] > RECALL[model]
        assert numbers["rows"] == sum(make_table(90, 2).column("click").to_pylist())
    else:
        assert numbers["auc"] > 0.6
        assert numbers["rows"] == 90
    trained = load_trained(tmp_path / "run")
    batch = first_batch(trained)
    outputs = trained.model(batch)
    assert [spec.name for spec in trained.model.schema().outputs] == list(outputs)
    assert all(bool(tensor.isfinite().all()) for tensor in outputs.values())
    assert len(next(iter(outputs.values()))) == 50


@pytest.mark.filterwarnings("ignore:Please use DTensor instead")
@pytest.mark.parametrize("model", ["sampled", "history", "mmoe", "drawn"])
def test_a_run_that_goes_on_is_one_that_never_stopped(model_data: Path, tmp_path: Path, model: str) -> None:
    config = load_config(write_config(tmp_path, model_data, model))
    for name, all_steps in (("whole", (33,)), ("parts", (11, 25, 33))):
        for steps in all_steps:
            part = replace(config, train=replace(config.need_train(), num_steps=steps))
            run_training(part, tmp_path / name, resume=(tmp_path / name).exists())
    first, second = (read_tensors(store.find_checkpoint(tmp_path / name) / "tensors") for name in ("whole", "parts"))
    assert sorted(first) == sorted(second)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.parametrize("model", ["in_batch", "sampled", "drawn"])
def test_each_tower_is_a_model_of_its_own(model_data: Path, tmp_path: Path, model: str) -> None:
    train(tmp_path, model_data, model)
    trained = load_trained(tmp_path / "run")
    whole = trained.model(first_batch(trained))
    for side, names in (("user", ["user"]), ("item", ["item", "price"])):
        tower = tower_of(trained, side)
        assert [feature.name for feature in tower.features] == names
        schema = tower.model.schema()
        assert [table.name for table in schema.tables] == [f"{side}_emb"]
        assert [output.name for output in schema.outputs] == [f"{side}_tower_emb"]
        features = tower.features
        data = load_config(write_config(tmp_path, model_data, "pointwise")).data
        batch = next(iter(DataReader(data, features, f"{model_data}/eval.parquet", batch_size=50, shuffle=False, with_labels=False)))
        found = tower.model(batch)
        assert list(found) == [f"{side}_tower_emb"]
        assert torch.equal(found[f"{side}_tower_emb"], whole[f"{side}_tower_emb"][:50])
    with pytest.raises(CheckpointError, match="its model has no tower 'query'; its towers are user, item"):
        tower_of(trained, "query")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ('["click", "grade"]', "label_fields must have 'spent', the label of a task"),
        ('["click", "grade", "spent", "price"]', "label_fields has 'price', which no task learns"),
    ],
)
def test_labels_are_those_of_the_tasks(model_data: Path, tmp_path: Path, labels: str, message: str) -> None:
    config = load_config(write_config(tmp_path, model_data, "mmoe", labels))
    with pytest.raises(ConfigError, match=message):
        run_training(config, tmp_path / "run")
