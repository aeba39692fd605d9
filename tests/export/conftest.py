"""A small trained model of every kind of feature, as a checkpoint on disk; trained once for all export tests."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from emberline.encoding import columns_from_arrow, columns_from_rows, encode
from emberline.export.answers import model_answers
from emberline.train.checkpoint import Trained, load_trained, names, store
from emberline.train.checkpoint.id_maps import id_map_tensors
from emberline.train.checkpoint.run_state import Progress, package_versions
from emberline.train.checkpoint.tensors import Stored, save_tensors
from emberline.train.config import parse_config
from emberline.train.data import batch_from_encoded
from emberline.train.features import Feature
from emberline.train.models import RecModel, build_model
from emberline.train.models.build import features_of

CONFIG = """
eval_input_path: "DATA"
data_config { fg_mode: FG_NORMAL label_fields: "label" batch_size: 32 }
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
}
feature_configs { id_feature { feature_name: "uid" expression: "user:uid" embedding_dim: 4 zch { zch_size: 40 eviction_interval: 1 lfu {} } } }
feature_configs { id_feature { feature_name: "tags" expression: "item:tags" embedding_dim: 8 num_buckets: 10 pooling: "mean" } }
feature_configs { id_feature { feature_name: "city" expression: "user:city" embedding_dim: 4 hash_bucket_size: 20 } }
feature_configs { id_feature { feature_name: "color" expression: "item:color" embedding_dim: 4 vocab_list: ["red", "blue"] value_dim: 3 } }
feature_configs { id_feature { feature_name: "clicks" expression: "user:clicks" embedding_dim: 4 num_buckets: 12 pooling: "mean" weighted: true } }
feature_configs {
  id_feature { feature_name: "buys" expression: "user:buys" embedding_dim: 4 weighted: true zch { zch_size: 16 eviction_interval: 1 lru {} } }
}
feature_configs { raw_feature { feature_name: "price" expression: "item:price" value_dim: 2 } }
feature_configs { raw_feature { feature_name: "score" expression: "item:score" embedding_dim: 4 autodis { num_channels: 3 } } }
feature_configs { raw_feature { feature_name: "age" expression: "user:age" embedding_dim: 4 boundaries: [18, 40] } }
feature_configs { combo_feature { feature_name: "cross" expression: "user:city" expression: "item:color" embedding_dim: 4 hash_bucket_size: 64 } }
model_config {
  feature_groups { group_name: "wide" group_type: WIDE feature_names: "uid" feature_names: "tags" feature_names: "cross" }
  feature_groups {
    group_name: "deep" group_type: DEEP feature_names: "uid" feature_names: "tags" feature_names: "city" feature_names: "color"
    feature_names: "clicks" feature_names: "buys" feature_names: "price" feature_names: "score" feature_names: "age" feature_names: "cross"
  }
  feature_groups { group_name: "fm" group_type: DEEP feature_names: "city" feature_names: "color" feature_names: "age" }
  deepfm {
    deep { hidden_units: [16, 8] dropout_ratio: 0.5 use_bn: true }
    final { hidden_units: 8 dropout_ratio: 0.5 }
  }
}
"""
_CITIES, _COLORS = ["bern", "lima", "oslo", "", None], ["red", "blue", "green", "red\x1dblue", None]


@dataclass(frozen=True)
class SmallRun:
    """A checkpoint and what it was trained on.

    Args:
        path: the run's folder, with one complete checkpoint.
        data: the parquet file that its config evaluates on.
        rows: the file's rows as plain values, without labels.
    """

    path: Path
    data: Path
    rows: list[dict[str, object]]

    def load(self) -> Trained:
        """The model, in eval mode."""
        return load_trained(self.path)

    def answers(self, rows: list[dict[str, object]]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The trained model's outputs and group tensors for raw rows."""
        model = self.load().model
        features = model.schema().features
        return model_answers(model, model.schema(), encode(features, *columns_from_rows(features, rows)))


def make_table(num_rows: int, seed: int) -> pa.Table:
    """Rows with missing values, empty and long lists, unknown words, negative and very large ids."""
    rng = np.random.default_rng(seed)

    def bag(high: int, most: int) -> list[int]:
        return [int(one) for one in rng.integers(0, high, rng.integers(0, most))]

    columns = {
        "uid": pa.array([int(rng.choice([5, -5, 2**62, -(2**63), 2**63 - 2, *range(100, 120)])) for _ in range(num_rows)], pa.int64()),
        "tags": pa.array([bag(10, 5) for _ in range(num_rows)], pa.list_(pa.int64())),
        "city": pa.array(rng.choice(np.array(_CITIES, dtype=object), num_rows).tolist(), pa.string()),
        "color": pa.array(rng.choice(np.array(_COLORS, dtype=object), num_rows).tolist(), pa.string()),
        "clicks": pa.array([[(one, float(rng.normal())) for one in set(bag(12, 4))] for _ in range(num_rows)], pa.map_(pa.int64(), pa.float32())),
        "buys": pa.array([[(one, float(rng.random())) for one in set(bag(30, 4))] for _ in range(num_rows)], pa.map_(pa.int64(), pa.float32())),
        "price": pa.array(rng.normal(size=(num_rows, 2)).tolist(), pa.list_(pa.float32())),
        "score": pa.array([None if rng.random() < 0.1 else float(rng.random()) for _ in range(num_rows)], pa.float32()),
        "age": pa.array(rng.integers(0, 90, num_rows), pa.int64()),
        "label": pa.array(rng.integers(0, 2, num_rows).astype(np.float32)),
    }
    return pa.table(columns)


def train_a_little(model: RecModel, trained_on: pa.Table, features: Sequence[Feature]) -> None:
    """A few steps of plain PyTorch training, so that tables, maps and normalisation hold something."""
    specs = model.schema().features
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    model.train()
    for chunk in trained_on.to_batches(32):
        encoded = encode(specs, columns_from_arrow(specs, chunk), chunk.num_rows)
        labels = torch.from_numpy(chunk.column("label").to_numpy().copy())
        logits = model(batch_from_encoded(features, encoded))["logits"]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def save_checkpoint(
    run: Path, model: RecModel, config_text: str, step: int = 7, more: Mapping[str, Stored] | None = None, notes: Mapping[str, Any] | None = None
) -> Path:
    """What a training run leaves of a model, without its optimisers; with `more` tensors, and `notes` in the manifest."""
    tensors = {**names.table_tensors(model), **names.dense_tensors(model), **id_map_tensors(model), **(more or {})}
    run.mkdir(parents=True, exist_ok=True)
    with store.write_checkpoint(run, step, package_versions(), notes) as draft:
        save_tensors(draft / store.TENSORS_NAME, tensors)
        (draft / store.CONFIG_NAME).write_text(config_text)
        (draft / store.SCHEMA_NAME).write_text(json.dumps(model.schema().to_dict()))
        (draft / store.STATE_NAME).write_text(json.dumps(asdict(Progress(step=step))))
    return store.step_path(run, step)


def make_run(root: Path, config_text: str, table: pa.Table) -> SmallRun:
    """Train a model of this config on a table for a little while, and save both."""
    root.mkdir(parents=True, exist_ok=True)
    data = root / "rows.parquet"
    pq.write_table(table, data)
    text = config_text.replace("DATA", str(data))
    config = parse_config(text)
    torch.manual_seed(5)
    features = tuple(features_of(config))
    model = build_model(config, features)
    train_a_little(model, table, features)
    save_checkpoint(root / "run", model, text)
    rows = table.drop_columns(["label"]).to_pylist()
    for row in rows:
        for name, value in row.items():
            if pa.types.is_map(table.schema.field(name).type):
                row[name] = dict(value)
    return SmallRun(root / "run", data, rows)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """The checkpoint that most export tests read; they never change it."""
    return make_run(tmp_path_factory.mktemp("small"), CONFIG, make_table(320, seed=1))


@pytest.fixture(scope="module")
def quick_wrappers() -> Iterator[None]:
    """Compiled programs whose wrapper, not their kernels, is left as it is by g++: in a third less time. Other tests compile as exports do."""
    from torch._inductor import config

    with config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
        yield
