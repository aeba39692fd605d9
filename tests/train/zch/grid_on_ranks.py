"""What one of several ranks does for `test_grid`; started with torchrun's variables.

    grid_on_ranks.py train FOLDER         on R ranks: four steps, saved as FOLDER/run-R
    grid_on_ranks.py take-up FOLDER       on R ranks: takes up each FOLDER/run-N, and writes what each rank then has, and has after each of two steps
                                          more, to FOLDER/from-N-on-R/STEP-RANK.safetensors

Four tables, one of them large enough for all ids. What a row learns in a step depends on the batch alone, so that what happens to one table changes
nothing in the others.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.checkpoint import store
from emberline.train.checkpoint.run_state import Progress, RunTensors, restore_run, save_run
from emberline.train.checkpoint.shards import by_table, table_shards
from emberline.train.config import parse_config
from emberline.train.data import Batch
from emberline.train.job_build import Parts, build_parts
from emberline.train.sharding import Ranks, process_group
from emberline.train.zch import BY_RANGE, FREE_ROW, MIXED, zch_modules

ReadBags = Callable[[int, str], list[list[int]]]
"""From a step and a table to the ids of each row."""
COUNTS = (1, 2, 3, 4)
SIZES = (8, 10, 11, 10_000)
TABLES = tuple(f"t{size}" for size in SIZES)
LARGE = TABLES[-1]
ROUTINGS = dict.fromkeys(TABLES, MIXED) | {"t10": BY_RANGE}
ROWS, STEPS = 24, 4
RATE, FIRST_SUM, EPSILON, INITIAL = 0.05, 0.1, 1e-8, 0.5
POLICIES = ("lfu {}", "lru { decay_exponent: 1.0 }", "distance_lfu { decay_exponent: 1.0 }", "lfu {}")
FEATURES = "\n".join(
    f'feature_configs {{ id_feature {{ feature_name: "{table}" embedding_name: "{table}" expression: "user:{table}" embedding_dim: 4 '
    f'init_fn: "nn.init.constant_,val={INITIAL}" zch {{ zch_size: {size} eviction_interval: 2 {policy} routing: "{ROUTINGS[table]}" }} }} }}'
    for table, size, policy in zip(TABLES, SIZES, POLICIES, strict=True)
)
HEAD = """
from torch import nn, zeros
class Total(nn.Module):
    def __init__(self, embedding_group):
        super().__init__()
        self.bias = nn.Parameter(zeros(1))
    def forward(self, groups):
        return {"logits": groups["g"].sum(1) + self.bias}
"""


def config_text(features: str, tables: Sequence[str]) -> str:
    """A config whose answer is the sum of all that these tables give."""
    names = " ".join(f'feature_names: "{table}"' for table in tables)
    return f"""
data_config {{ batch_size: {ROWS} label_fields: "label" fg_mode: FG_NONE dataset_type: ParquetDataset }}
train_config {{
  sparse_optimizer {{ adagrad_optimizer {{ lr: {RATE} initial_accumulator_value: {FIRST_SUM} }} }}
  dense_optimizer {{ sgd_optimizer {{ lr: 0.01 }} }}
}}
{features}
model_config {{
  feature_groups {{ group_name: "g" {names} }}
  custom_model {{ class_path: "grid_head.Total" }} losses {{ binary_cross_entropy {{}} }}
}}
"""


def bags_of(step: int, table: str) -> list[list[int]]:
    """The ids of each row of a step."""
    generator = np.random.default_rng((step, TABLES.index(table)))
    pool = 400 if table == LARGE else 26
    places = generator.zipf(1.3, (ROWS, 3)) % pool
    ids = np.where(places % 3 == 0, places, np.where(places % 3 == 1, -places, places * 2**53 + 7))
    return [row[: 1 + place % 3].tolist() for place, row in enumerate(ids)]


def weight_of(step: int, row: int) -> float:
    """What a row's answer counts in the loss."""
    return 0.25 * ((row + step) % 5 - 1.5)


def batch_of(step: int, ranks: Ranks, tables: Sequence[str], read: ReadBags) -> tuple[Batch, Tensor]:
    """A rank's equal part of a step, and what its rows count."""
    size = ROWS // ranks.world_size
    own = range(ranks.rank * size, (ranks.rank + 1) * size)
    bags = [read(step, table)[own.start : own.stop] for table in tables]
    ids = torch.tensor([one for rows in bags for bag in rows for one in bag])
    lengths = torch.tensor([len(bag) for rows in bags for bag in rows])
    weights = torch.tensor([weight_of(step, row) for row in own])
    return Batch(sparse_features={"__BASE__": KeyedJaggedTensor(keys=list(tables), values=ids, lengths=lengths)}), weights


def learn(parts: Parts, step: int, ranks: Ranks, tables: Sequence[str] = TABLES, read: ReadBags = bags_of) -> None:
    """One step; gradients are means over the ranks, so that each takes its loss as many times."""
    batch, weights = batch_of(step, ranks, tables, read)
    parts.sharded.train()
    parts.step.run(lambda: (parts.sharded(batch)["logits"] * weights).sum() * ranks.world_size)


def held(parts: Parts) -> dict[str, Tensor]:
    """What this rank has of each table.

    `TABLE/ids` [n], and of each its `weight` and `sum` [n, 4], and what the policy counts [n]; the history and the counters; vector and moment of the
    fallback row.
    """
    found: dict[str, Tensor] = {}
    shards = by_table(table_shards(parts.sharded))
    for table, module in zch_modules(parts.model).items():
        (shard,), state = shards[table], module.state_for_checkpoint()
        is_owned = state["raw_ids"] != FREE_ROW
        rows = state["rows"][is_owned] - module.first_row
        own = {"ids": state["raw_ids"][is_owned], "weight": shard.weight[rows], "sum": shard.moments["sum"][rows]}
        own |= {name: state[name][is_owned] for name in ("counts", "last_access_iter") if name in state}
        own |= {name: state[name] for name in ("history_ids", "counters")}
        own |= {"fallback": shard.weight[-1], "fallback_sum": shard.moments["sum"][-1]}
        found |= {f"{table}/{name}": value.clone() for name, value in own.items()}
    return found


def main(what: str, folder: Path, ranks: Ranks) -> None:
    """Train, or take up what others trained."""
    config, count = parse_config(config_text(FEATURES, TABLES), folder=folder), ranks.world_size
    for source in COUNTS if what == "take-up" else (0,):
        parts = build_parts(config, None, ranks)
        tensors = RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors(), ranks.group)
        if what == "train":
            for step in range(STEPS):
                learn(parts, step, ranks)
            save_run(folder / f"run-{count}", tensors, config, Progress(step=STEPS))
            continue
        found = folder / f"from-{source}-on-{count}"
        found.mkdir(exist_ok=True)
        _, notes = restore_run(store.find_checkpoint(folder / f"run-{source}"), tensors)
        (found / f"notes-{ranks.rank}.json").write_text(json.dumps(notes))
        save_file(held(parts), found / f"{STEPS}-{ranks.rank}.safetensors")
        for step in (STEPS, STEPS + 1):
            learn(parts, step, ranks)
            save_file(held(parts), found / f"{step + 1}-{ranks.rank}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[2])
    with process_group() as group:
        main(sys.argv[1], Path(sys.argv[2]), group)
