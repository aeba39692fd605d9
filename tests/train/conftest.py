"""A small training run on made data: every kind of table, dense numbers, weights, an evaluation set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberline.train.config import PipelineConfig, load_config
from emberline.train.job import run_training
from tests.train.jobs import Job
from tests.train.rank_runs import forked_results, start_forked

TRAIN_ROWS, EVAL_ROWS = 640, 100

FEATURES = """
feature_configs { id_feature {
  feature_name: "user" expression: "user:user" embedding_dim: 8 zch { zch_size: 40 eviction_interval: 2 lfu {} }
} }
feature_configs { id_feature {
  feature_name: "item" expression: "item:item" embedding_dim: 8 hash_bucket_size: 50 init_fn: "nn.init.normal_,std=0.1"
} }
feature_configs { id_feature {
  feature_name: "tags" expression: "item:tags" embedding_dim: 8 num_buckets: 12 pooling: "mean" weighted: true
} }
feature_configs { id_feature { feature_name: "hour" expression: "context:hour" embedding_dim: 8 num_buckets: 24 trainable: false } }
feature_configs { raw_feature { feature_name: "age" expression: "user:age" normalizer: "method=zscore,mean=30,standard_deviation=10" } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" embedding_dim: 4 autodis { num_channels: 3 } } }
"""
GROUPS = """
  feature_groups { group_name: "dense" feature_names: "age" feature_names: "price" }
  feature_groups { group_name: "sparse" feature_names: "user" feature_names: "item" feature_names: "tags" feature_names: "hour" }
"""
DLRM = "dlrm { dense_mlp { hidden_units: [16, 8] dropout_ratio: [0.2] } final { hidden_units: [16] dropout_ratio: [0.2] use_bn: true } }"
SPARSE = "adagrad_optimizer { lr: 0.05 }"
DENSE = "adam_optimizer { lr: 0.01 }"

MakeConfig = Callable[..., PipelineConfig]


def _weighted_tags(generator: np.random.Generator, count: int) -> list[str]:
    return [f"{tag}:{weight:.2f}" for tag, weight in zip(generator.integers(0, 12, count), generator.random(count), strict=True)]


def make_table(rows: int, seed: int) -> pa.Table:
    generator = np.random.default_rng(seed)
    users, items = generator.zipf(1.3, rows) % 90, generator.integers(0, 30, rows)
    tags = [_weighted_tags(generator, count) for count in generator.integers(0, 4, rows)]
    chance = 1 / (1 + np.exp(-2 * np.sin(users) - 2 * np.cos(items)))
    columns = {
        "user": pa.array(users.astype(np.int64) * 1_000_003 - 7),
        "item": pa.array([f"i{item}" for item in items]),
        "tags": pa.array(tags, pa.list_(pa.string())),
        "hour": pa.array(generator.integers(0, 24, rows)),
        "age": pa.array(generator.normal(30, 10, rows).astype(np.float32)),
        "price": pa.array(generator.random(rows).astype(np.float32)),
        "label": pa.array((generator.random(rows) < chance).astype(np.int64)),
        "grade": pa.array(generator.integers(0, 3, rows)),
        "weight": pa.array(generator.random(rows).astype(np.float32)),
    }
    return pa.table(columns)


@pytest.fixture(scope="session")
def train_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train.parquet` and `eval.parquet`."""
    folder = tmp_path_factory.mktemp("data")
    pq.write_table(make_table(TRAIN_ROWS, 1), folder / "train.parquet", row_group_size=100)
    pq.write_table(make_table(EVAL_ROWS, 2), folder / "eval.parquet")
    return folder


def config_text(
    data: Path,
    *,
    train: str = "",
    save: int = 8,
    log: int = 5,
    sparse: str = SPARSE,
    dense: str = DENSE,
    model: str = DLRM,
    groups: str = GROUPS,
    features: str = FEATURES,
    data_config: str = "",
) -> str:
    return f"""
train_input_path: "{data}/train.parquet"
eval_input_path: "{data}/eval.parquet"
data_config {{ batch_size: 32 label_fields: "label" fg_mode: FG_NORMAL dataset_type: ParquetDataset shuffle: true {data_config} }}
train_config {{
  sparse_optimizer {{ {sparse} }}
  dense_optimizer {{ {dense} }}
  save_checkpoints_steps: {save} log_step_count_steps: {log} seed: 3 use_tensorboard: false {train}
}}
{features}
model_config {{ {groups} {model} }}
"""


@pytest.fixture
def make_config(train_data: Path, tmp_path: Path) -> MakeConfig:
    """Writes a config file and reads it; keywords replace parts of the standard one."""

    def make(name: str = "pipeline.config", **parts: Any) -> PipelineConfig:
        path = tmp_path / name
        path.write_text(config_text(train_data, **parts))
        return load_config(path)

    return make


@pytest.fixture(scope="session")
def finished_run(train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 4 steps with checkpoints at 2 and 4. Copy it before you change it."""
    folder = tmp_path_factory.mktemp("finished")
    path = folder / "pipeline.config"
    path.write_text(config_text(train_data, train="num_steps: 4", save=2))
    run_training(load_config(path), folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[tuple[int, str]]]]:
    """What ranks did together in each check of `rank_checks`: its folder, and each rank's exit status and output."""
    folder = tmp_path_factory.mktemp("checks")
    jobs = [Job(ranks, [str(folder), name]) for name, ranks in (("small_talk", 3), ("norms", 3), ("stuck", 2))]
    found = forked_results(start_forked(folder, jobs), folder, jobs)
    return {job.arguments[1]: (folder, ranks) for job, ranks in zip(jobs, found, strict=True)}
