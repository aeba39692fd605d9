"""A model with every kind of lookup, sequences among them, and its artifact in every format: exported once for all tests of a process."""

from pathlib import Path

import pytest
import torch

from emberline.export.export import export_model
from emberline.train.checkpoint import Trained, load_trained
from emberline.train.config import parse_config
from emberline.train.models import build_model
from emberline.train.models.build import features_of
from tests.export.conftest import save_checkpoint

EVERYTHING = """
data_config { fg_mode: FG_NORMAL label_fields: "label" batch_size: 32 }
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
}
feature_configs { id_feature { feature_name: "uid" expression: "user:uid" embedding_dim: 4 zch { zch_size: 16 eviction_interval: 1 lfu {} } } }
feature_configs { id_feature { feature_name: "tags" expression: "user:tags" embedding_dim: 3 num_buckets: 10 pooling: "mean" weighted: true } }
feature_configs { id_feature { feature_name: "liked" expression: "user:liked" embedding_dim: 4 num_buckets: 12 weighted: true } }
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_name: "item_table" embedding_dim: 4 num_buckets: 30 } }
feature_configs { id_feature { feature_name: "words" expression: "item:words" embedding_dim: 4 num_buckets: 9 pooling: "mean" } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" value_dim: 2 } }
feature_configs {
  sequence_feature {
    sequence_name: "click" sequence_length: 7 sequence_delim: ";"
    features { id_feature { feature_name: "item" expression: "item:item" embedding_name: "item_table" embedding_dim: 4 num_buckets: 30 } }
    features { id_feature { feature_name: "words" expression: "item:words" value_dim: 0 embedding_dim: 3 num_buckets: 9 pooling: "mean" } }
    features { raw_feature { feature_name: "hours" expression: "user:hours" } }
  }
}
model_config {
  feature_groups {
    group_name: "flat" group_type: DEEP feature_names: "uid" feature_names: "tags" feature_names: "liked" feature_names: "item"
    feature_names: "words" feature_names: "price"
  }
  feature_groups {
    group_name: "clicks" group_type: SEQUENCE
    feature_names: "item" feature_names: "click__item" feature_names: "click__words" feature_names: "click__hours"
  }
  multi_tower_din {
    towers { input: "flat" mlp { hidden_units: [8] dropout_ratio: 0.5 use_bn: true } }
    din_towers { input: "clicks" attn_mlp { hidden_units: [6] } }
    final { hidden_units: [6] }
  }
  losses { binary_cross_entropy {} }
}
"""


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Every test of this folder."""


def save_run(folder: Path, seed: int = 3, step: int = 7) -> Path:
    """A checkpoint of the model with numbers drawn at random, and its run's folder."""
    torch.manual_seed(seed)
    config = parse_config(EVERYTHING)
    model = build_model(config, features_of(config))
    with torch.no_grad():
        for weight in model.embedding_group.table_weights().values():
            weight.normal_()
    save_checkpoint(folder / "run", model, EVERYTHING, step)
    return folder / "run"


@pytest.fixture(scope="session")
def everything_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint."""
    return save_run(tmp_path_factory.mktemp("everything"))


@pytest.fixture(scope="session")
def trained(everything_run: Path) -> Trained:
    """The oracle: the model in one piece, in eval mode."""
    return load_trained(everything_run)


@pytest.fixture(scope="module")
def everything(everything_run: Path, tmp_path_factory: pytest.TempPathFactory, one_thread: None, quick_wrappers: None) -> Path:
    """The artifact: three formats, each with a full program. Compiling takes most of a minute."""
    return export_model(everything_run, tmp_path_factory.mktemp("models"), "m", format="torchscript,aoti,onnx", full=True)
