"""Tables trained step by step, each step by another plan, with a checkpoint after each. Also a script: one rank of several.

    table_runs.py FOLDER OPTIMIZER,... PLACEMENT PLACEMENT...

The first step begins with FOLDER/OPTIMIZER-1, which the first placement has made; each further placement makes one step and writes the next.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, data_parallel, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.checkpoint.shards import table_shards
from emberline.train.checkpoint.table_state import restore_tables, table_state
from emberline.train.checkpoint.tensors import describe_tensors, save_tensors
from emberline.train.config import parse_train_config
from emberline.train.optim import apply_sparse_optimizer
from emberline.train.sharding import create_sharders, process_group

TABLES = {"a": (11, 8), "b": (7, 16), "s": (9, 8)}
BATCH_ROWS = 4
OPTIMIZERS = {
    "sgd": "lr: 0.2",
    "adagrad": "lr: 0.2",
    "rowwise_adagrad": "lr: 0.2",
    "adam": "lr: 0.1 beta2: 0.9 weight_decay: 0.1",
    "partial_rowwise_adam": "lr: 0.1 beta1: 0.8",
    "lamb": "lr: 0.1 beta1: 0.8 weight_decay: 0.1",
    "partial_rowwise_lamb": "lr: 0.1 beta2: 0.9",
    "lars_sgd": "lr: 20 momentum: 0.8 weight_decay: 0.1",
    "adadelta": "lr: 2 rho: 0.8 eps: 0.01 weight_decay: 0.1",
    "rmsprop": "lr: 0.05 alpha: 0.8 weight_decay: 0.1",
}
"""Optimiser -> its settings in a config."""


class Model(nn.Module):
    """Two tables that are read pooled, one that is read step by step."""

    def __init__(self) -> None:
        super().__init__()
        (a, b, s), meta = TABLES.values(), torch.device("meta")
        bags = [EmbeddingBagConfig(name=n, num_embeddings=r, embedding_dim=d, feature_names=[n]) for n, (r, d) in (("a", a), ("b", b))]
        self.bags = EmbeddingBagCollection(tables=bags, device=meta)
        steps = [EmbeddingConfig(name="s", num_embeddings=s[0], embedding_dim=s[1], feature_names=["s"])]
        self.steps = EmbeddingCollection(tables=steps, device=meta)

    def forward(self, bags: KeyedJaggedTensor, steps: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        return self.bags(bags).values(), self.steps(steps)["s"].values()


def build(optimizer: str, placement: str, sharders: list[Any] | None = None) -> DistributedModelParallel:
    """Sharded by one placement for all tables."""
    model, sharders, ranks = Model(), sharders or create_sharders(), dist.get_world_size()
    text = f"sparse_optimizer {{ {optimizer}_optimizer {{ {OPTIMIZERS[optimizer]} }} }} dense_optimizer {{ sgd_optimizer {{}} }}"
    apply_sparse_optimizer(dict(model.named_parameters()), parse_train_config(text).sparse_optimizer.optimizer)
    plan = {}
    for name in ("bags", "steps"):
        module = getattr(model, name)
        sharder = next(one for one in sharders if one.module_type is type(module))
        tables = {table: _placed(placement, place) for place, table in enumerate(sharder.shardable_parameters(module))}
        plan[name] = construct_module_sharding_plan(module, tables, sharder=sharder, local_size=ranks, world_size=ranks, device_type="cpu")
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan(plan), sharders=sharders, init_data_parallel=False)


def _placed(placement: str, place: int) -> Any:
    last = dist.get_world_size() - 1
    if placement == "row_wise":
        return row_wise(compute_kernel="fused")
    if placement == "column_wise":
        return column_wise(ranks=[last, 0], compute_kernel="fused")
    if placement == "data_parallel":
        return data_parallel()
    return table_wise(rank=min(place, last), compute_kernel="fused")


def make_batch(step: int) -> tuple[dict[str, list[Tensor]], Tensor, Tensor]:
    """Three ids of each table for each row; the gradients of pooled vectors [rows, 24] and of vectors by position [rows, 3, 8]."""
    generator = torch.Generator().manual_seed(step)
    ids = {name: [torch.randint(count, (3,), generator=generator) for _ in range(BATCH_ROWS)] for name, (count, _) in TABLES.items()}
    return ids, torch.randn(BATCH_ROWS, 24, generator=generator), torch.randn(BATCH_ROWS, 3, 8, generator=generator)


def train(model: DistributedModelParallel, step: int) -> None:
    """One step on a batch that depends on the step alone: this rank's rows of it."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    rows = range(rank * BATCH_ROWS // ranks, (rank + 1) * BATCH_ROWS // ranks)
    ids, *wanted = make_batch(step)

    def bags(*names: str) -> KeyedJaggedTensor:
        values = [ids[name][row] for name in names for row in rows]
        return KeyedJaggedTensor(keys=list(names), values=torch.cat(values), lengths=torch.full((len(values),), 3))

    pooled, steps = model(bags("a", "b"), bags("s"))
    # ranks average their gradients, as if each had the mean of its rows as its loss
    gradients = [wanted[0][list(rows)] * ranks, wanted[1][list(rows)].flatten(0, 1) * ranks]
    torch.autograd.backward([pooled, steps], gradients)


def save(model: DistributedModelParallel, folder: Path) -> None:
    save_tensors(folder, table_state(table_shards(model)))


def restore(model: DistributedModelParallel, folder: Path, columns: dict[str, tuple[int, ...]]) -> None:
    restore_tables(folder, table_shards(model), describe_tensors(folder), columns)


def columns_of(placement: str) -> dict[str, tuple[int, ...]]:
    """How tables are cut by a placement here."""
    return {name: (0, dim // 2) for name, (_, dim) in TABLES.items()} if placement == "column_wise" else {}


def chain(folder: Path, optimizer: str, first: int, before: str, placements: list[str]) -> None:
    """Steps from one checkpoint to the next."""
    for step, placement in enumerate(placements, first):
        model = build(optimizer, placement)
        restore(model, folder / f"{optimizer}-{step}", columns_of(before))
        assert all(columns_of(placement)[shard.table] == shard.starts for shard in table_shards(model) if len(shard.starts) > 1)
        train(model, step)
        save(model, folder / f"{optimizer}-{step + 1}")
        before = placement


def steps_under(placement: str, folder: Path, optimizer: str, steps: int) -> None:
    """That many steps by one plan, from `OPTIMIZER-0` to `OPTIMIZER-PLACEMENT`."""
    model = build(optimizer, placement)
    restore(model, folder / f"{optimizer}-0", {})
    for step in range(steps):
        train(model, step)
    save(model, folder / f"{optimizer}-{placement}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group():
        for name in sys.argv[2].split(","):
            chain(Path(sys.argv[1]), name, 1, sys.argv[3], sys.argv[4:])
