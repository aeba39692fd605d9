"""What one of several ranks does for `test_owners`; started with torchrun's variables.

    owners_on_ranks.py FOLDER

For each sparse optimiser: two ids learn, then others take their rows in a forward that nothing is learned from. Vectors and moments of all rows of
this rank go to FOLDER/OPTIMISER-RANKS-RANK.safetensors, before and after.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.checkpoint.shards import table_shards
from emberline.train.config import parse_config
from emberline.train.data import Batch
from emberline.train.job_build import build_parts
from emberline.train.sharding import Ranks, process_group

INITIAL, FIRST_SUM, ROWS = 0.5, 0.25, 12
OPTIMIZERS = {
    "sgd": "lr: 0.1",
    "adagrad": f"lr: 0.1 initial_accumulator_value: {FIRST_SUM}",
    "rowwise_adagrad": f"lr: 0.1 initial_accumulator_value: {FIRST_SUM}",
    "adam": "lr: 0.1",
    "partial_rowwise_adam": "lr: 0.1",
    "lars_sgd": "lr: 0.1",
    "lamb": "lr: 0.1",
    "partial_rowwise_lamb": "lr: 0.1",
    "adadelta": "lr: 0.1",
    "rmsprop": "lr: 0.1",
}
OLD, NEW = list(range(1, 60)), list(range(101, 160))


def config_text(optimizer: str) -> str:
    """One table, whose ids compete after each batch."""
    return f"""
data_config {{ batch_size: 8 label_fields: "label" fg_mode: FG_NONE dataset_type: ParquetDataset }}
train_config {{
  sparse_optimizer {{ {optimizer}_optimizer {{ {OPTIMIZERS[optimizer]} }} }} dense_optimizer {{ sgd_optimizer {{ lr: 0.01 }} }}
}}
feature_configs {{ id_feature {{
  feature_name: "t" embedding_name: "t" expression: "user:t" embedding_dim: 4
  init_fn: "nn.init.constant_,val={INITIAL}" zch {{ zch_size: {ROWS} eviction_interval: 1 lfu {{}} }}
}} }}
model_config {{
  feature_groups {{ group_name: "g" feature_names: "t" }}
  custom_model {{ class_path: "grid_head.Total" }} losses {{ binary_cross_entropy {{}} }}
}}
"""


def read(ids: list[int], times: int) -> Batch:
    """Each id so often, one a row."""
    values = torch.tensor(ids).repeat(times)
    return Batch(sparse_features={"__BASE__": KeyedJaggedTensor(keys=["t"], values=values, lengths=torch.ones(len(values), dtype=torch.int64))})


def held(sharded: Any) -> dict[str, Tensor]:
    """Weight and moments."""
    (shard,) = table_shards(sharded)
    return {name: value.clone() for name, value in {"weight": shard.weight, **shard.moments}.items()}


def main(folder: Path, ranks: Ranks) -> None:
    """All optimisers, one after the other."""
    for optimizer in OPTIMIZERS:
        parts = build_parts(parse_config(config_text(optimizer), folder=folder), None, ranks)
        parts.sharded.train()
        for _ in range(3):
            parts.step.run(lambda parts=parts: parts.sharded(read(OLD, 1))["logits"].sum())  # type: ignore[misc]
        before = {f"before/{name}": value for name, value in held(parts.sharded).items()}
        with torch.no_grad():
            parts.sharded(read(NEW, 9))
        after = {f"after/{name}": value for name, value in held(parts.sharded).items()}
        save_file({**before, **after}, folder / f"{optimizer}-{ranks.world_size}-{ranks.rank}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[1])
    with process_group() as group:
        main(Path(sys.argv[1]), group)
