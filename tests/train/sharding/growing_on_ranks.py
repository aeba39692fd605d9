"""A model of static tables and tables that grow, pooled, averaged, weighted and by position, on one of several ranks. Not a test.

    growing_on_ranks.py FOLDER

trains it with torchrun's variables, each rank with a part of every batch, of which some are empty, and leaves what rank N of R then has in
FOLDER/R-N.pt.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.checkpoint.shards import by_table, table_shards
from emberline.train.config import parse_train_config
from emberline.train.dynamic.options import DynamicEmbOptions, DynamicRuntime, Initializer, InitializerMode
from emberline.train.dynamic.sharding import with_growth
from emberline.train.optim import TrainingStep, apply_sparse_optimizer, set_initial_moments
from emberline.train.sharding import create_sharders, process_group, shard_model
from emberline.train.sharding.dynamic_kernels import dynamic_tables
from emberline.train.sharding.process_group import Ranks

SEED, ROWS, STEPS, STATIC_ROWS = 11, 12, 5, 20
RATE, FIRST_SUM, EPSILON, DENSE_RATE, UNKNOWN = 0.1, 0.25, 1e-8, 0.05, 0.75
CONFIG = f"""
sparse_optimizer {{ adagrad_optimizer {{ lr: {RATE} initial_accumulator_value: {FIRST_SUM} }} constant_learning_rate {{}} }}
dense_optimizer {{ sgd_optimizer {{ lr: {DENSE_RATE} momentum: 0.0 }} constant_learning_rate {{}} }}
"""
PARTS: Mapping[int, list[list[int]]] = {
    1: [[12]] * STEPS,
    2: [[6, 6], [12, 0], [0, 12], [5, 7], [11, 1]],
    3: [[4, 4, 4], [0, 12, 0], [1, 2, 9], [6, 6, 0], [4, 3, 5]],
}
"""Rows of each rank, step by step."""


@dataclass(frozen=True)
class Asked:
    """A table of the model.

    Args:
        collection: `bags`, `weighted` or `steps`.
        features: what reads it.
        dim: its width.
        grows: whether it grows.
        mean: whether bags are averaged.
    """

    collection: str
    features: tuple[str, ...]
    dim: int
    grows: bool = True
    mean: bool = False


TABLES = {
    "static": Asked("bags", ("fs",), 4, grows=False),
    "shared": Asked("bags", ("f", "g"), 4),
    "mean": Asked("bags", ("h",), 8, mean=True),
    "weighted": Asked("weighted", ("k",), 4),
    "places": Asked("steps", ("t",), 4, grows=False),
    "steps": Asked("steps", ("u",), 4),
}
POOLED = {feature: (name, table) for name, table in TABLES.items() if table.collection != "steps" for feature in table.features}
STEPPED = {feature: name for name, table in TABLES.items() if table.collection == "steps" for feature in table.features}
OPTIONS = DynamicEmbOptions(
    max_capacity=4000,
    initializer=Initializer(mode=InitializerMode.NORMAL, std_dev=0.3),
    eval_initializer=Initializer(mode=InitializerMode.CONSTANT, value=UNKNOWN),
)


Rows = dict[str, list[list[tuple[int, float]]]]
"""Of each feature, of each row: ids and their weights."""


class Growing(nn.Module):
    """A linear layer over all bags, and a sum over all vectors by position: a number for each row."""

    def __init__(self) -> None:
        super().__init__()
        meta = torch.device("meta")
        bags = {
            kind: [
                EmbeddingBagConfig(
                    name=name, num_embeddings=_rows(table), embedding_dim=table.dim, feature_names=list(table.features), pooling=pooling
                )
                for name, table in TABLES.items()
                if table.collection == kind
                for pooling in [PoolingType.MEAN if table.mean else PoolingType.SUM]
            ]
            for kind in ("bags", "weighted")
        }
        steps = [
            EmbeddingConfig(name=name, num_embeddings=_rows(table), embedding_dim=table.dim, feature_names=list(table.features))
            for name, table in TABLES.items()
            if table.collection == "steps"
        ]
        self.bags = EmbeddingBagCollection(tables=bags["bags"], device=meta)
        self.weighted = EmbeddingBagCollection(tables=bags["weighted"], device=meta, is_weighted=True)
        self.steps = EmbeddingCollection(tables=steps, device=meta)
        torch.manual_seed(0)
        self.dense = nn.Linear(sum(table.dim for _, table in POOLED.values()), 1)

    def forward(self, asked: Mapping[str, KeyedJaggedTensor]) -> Tensor:
        """[rows]."""
        pooled = self.bags(asked["bags"]).to_dict() | self.weighted(asked["weighted"]).to_dict()
        out: Tensor = self.dense(torch.cat([pooled[feature] for feature in POOLED], dim=1)).squeeze(1)
        for found in self.steps(asked["steps"]).values():
            places = torch.repeat_interleave(torch.arange(len(out)), found.lengths())
            out = out.index_add(0, places, found.values().sin().sum(1))
        return out


def rows_of(step: int) -> tuple[Rows, Tensor]:
    """A whole batch, and what each row counts in the loss."""
    generator = torch.Generator().manual_seed(step + 1)
    found: Rows = {}
    for feature in (*POOLED, *STEPPED):
        static = feature in ("fs", "t")
        counts = torch.randint(0, 4, (ROWS,), generator=generator).tolist()
        ids = torch.randint(0, STATIC_ROWS, (sum(counts),), generator=generator)
        if not static:
            ids = ids * torch.tensor([1, -1, 2**58 + 3])[torch.randint(0, 3, ids.shape, generator=generator)]
        weights = (torch.rand(sum(counts), generator=generator) + 0.5).tolist() if feature == "k" else [1.0] * sum(counts)
        pairs = iter(zip(ids.tolist(), weights, strict=True))
        found[feature] = [[next(pairs) for _ in range(count)] for count in counts]
    return found, torch.randn(ROWS, generator=generator)


def asked_of(rows: Rows, first: int, end: int) -> dict[str, KeyedJaggedTensor]:
    """Some of a batch's rows, as each collection is asked for them; a row with nothing in it in place of none."""
    found = {}
    for kind in ("bags", "weighted", "steps"):
        keys = [feature for table in TABLES.values() if table.collection == kind for feature in table.features]
        bags = [bag for key in keys for bag in (rows[key][first:end] or [[]])]
        ids, weights = (
            torch.tensor([pair[part] for bag in bags for pair in bag], dtype=kind_) for part, kind_ in ((0, torch.int64), (1, torch.float32))
        )
        lengths = torch.tensor([len(bag) for bag in bags], dtype=torch.int64)
        of_kind = weights if kind == "weighted" else None
        found[kind] = KeyedJaggedTensor(keys=keys, values=ids, lengths=lengths, weights=of_kind, stride=max(end - first, 1))
    return found


def plan_of(model: nn.Module, sharders: list[ModuleSharder[nn.Module]], ranks: int) -> ShardingPlan:
    """Every table cut by rows; those that grow in their kernel."""
    found = {}
    for path, module in model.named_children():
        if not isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            continue
        sharder = next(sharder for sharder in sharders if sharder.module_type is type(module))
        placed = dict.fromkeys(sharder.shardable_parameters(module), row_wise(compute_kernel="fused"))
        plan = construct_module_sharding_plan(module, placed, sharder=sharder, local_size=ranks, world_size=ranks, device_type="cpu")
        for name, own in plan.items():
            if TABLES[name].grows:
                plan[name] = with_growth(own, OPTIONS)
        found[path] = plan
    return ShardingPlan(found)


def built(ranks: int) -> tuple[DistributedModelParallel, TrainingStep]:
    """The model, sharded; needs a process group."""
    config, model, sharders = parse_train_config(CONFIG), Growing(), create_sharders(DynamicRuntime(SEED))
    weights = {name.split(".")[-2]: weight for name, weight in model.named_parameters() if not name.startswith("dense")}
    apply_sparse_optimizer(weights, config.sparse_optimizer.optimizer)
    sharded = shard_model(model, plan_of(model, sharders, ranks), sharders, ranks)
    set_initial_moments(sharded, config.sparse_optimizer.optimizer)
    for name, own in by_table(table_shards(sharded)).items():
        for shard in own:
            shard.weight.copy_(static_values(name)[shard.offsets[0] : shard.offsets[0] + len(shard.weight)])
    return sharded, TrainingStep(sharded, config)


def static_values(name: str) -> Tensor:
    """What a static table begins with."""
    return torch.sin(torch.arange(STATIC_ROWS * 4.0)).view(-1, 4) * (0.5 if name == "static" else 0.25)


def run(ranks: Ranks, folder: Path) -> None:
    """Train, then evaluate a batch with ids that nobody knows."""
    sharded, step = built(ranks.world_size)
    losses = []
    sharded.train()
    for number in range(STEPS):
        rows, counted = rows_of(number)
        first, end = _own(ranks, number)
        asked = asked_of(rows, first, end)
        loss = step.run(lambda: (sharded(asked)[: end - first] * counted[first:end]).sum() * ranks.world_size)  # noqa: B023 - it is called at once
        losses += ranks.sum([float(loss) / ranks.world_size])
    before = sizes(sharded)
    sharded.eval()
    with torch.no_grad():
        rows, _ = rows_of(1000)
        first, end = _own(ranks, 0)
        answers = sharded(asked_of(rows, first, end))[: end - first]
    held = {name: kernel.dump(name) for name, kernel in dynamic_tables(sharded).items()}
    static = {name: [(shard.offsets[0], shard.weight.clone()) for shard in own] for name, own in by_table(table_shards(sharded)).items()}
    dense = {name: parameter.detach() for name, parameter in step.optimizer.parameters.items()}
    names: dict[str, Any] = {"state": list(sharded.state_dict()), "parameters": [name for name, _ in sharded.named_parameters()]}
    tables = {name: (state.keys, state.weights, state.moments["sum"], state.last_steps) for name, state in held.items()}
    found = {"losses": losses, "answers": answers, "held": tables, "static": static, "dense": dense, "names": names}
    torch.save(found | {"kept": before == sizes(sharded), "batched": run_batched(ranks)}, folder / f"{ranks.world_size}-{ranks.rank}.pt")


class Bags(nn.Module):
    """Two tables that grow, one of them read by two features, and one of which is averaged."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=name, num_embeddings=OPTIONS.max_capacity, embedding_dim=table.dim, feature_names=list(table.features), pooling=pooling
            )
            for name, table in TABLES.items()
            if table.collection == "bags" and table.grows
            for pooling in [PoolingType.MEAN if table.mean else PoolingType.SUM]
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """[rows, widths of f, g and h]."""
        found = self.bags(features).to_dict()
        return torch.cat([found[key] for key in BATCHED], 1)


BATCHED = {"f": [3, 1, 3], "g": [2, 4, 1], "h": [1, 1, 1]}
"""Bags of each feature on each rank, from which rows take theirs."""


def batched(rank: int) -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
    """Bags of which each feature has its own number, and where rows find theirs; and the same, row by row."""
    generator = torch.Generator().manual_seed(50 + rank)
    counts = {key: own[rank] for key, own in BATCHED.items()}
    bags = {
        key: [torch.randint(-9, 9, (int(torch.randint(0, 4, (), generator=generator)),), generator=generator) for _ in range(count)]
        for key, count in counts.items()
    }
    places = torch.stack([torch.randint(0, count, (5,), generator=generator) for count in counts.values()])
    short = KeyedJaggedTensor(
        keys=list(BATCHED),
        values=torch.cat([bag for own in bags.values() for bag in own]),
        lengths=torch.tensor([len(bag) for own in bags.values() for bag in own]),
        stride_per_key_per_rank=[[count] for count in counts.values()],
        inverse_indices=(list(BATCHED), places),
    )
    whole = [bags[key][place] for key, own in zip(BATCHED, places.tolist(), strict=True) for place in own]
    long = KeyedJaggedTensor(keys=list(BATCHED), values=torch.cat(whole), lengths=torch.tensor([len(bag) for bag in whole]), stride=5)
    return short, long


def run_batched(ranks: Ranks) -> list[dict[str, Any]]:
    """Two steps with features of different batch sizes, and the same with rows that have all bags."""
    found = []
    for form in (0, 1):
        config, model, sharders = parse_train_config(CONFIG), Bags(), create_sharders(DynamicRuntime(SEED))
        apply_sparse_optimizer({name.split(".")[-2]: weight for name, weight in model.named_parameters()}, config.sparse_optimizer.optimizer)
        sharded = shard_model(model, plan_of(model, sharders, ranks.world_size), sharders, ranks.world_size)
        out = []
        for _ in range(2):
            out.append(sharded(batched(ranks.rank)[form]))
            (out[-1] * torch.arange(1.0, 1.0 + out[-1].shape[1])).sum().backward()
        held = {name: kernel.dump(name) for name, kernel in dynamic_tables(sharded).items()}
        found.append({"out": [one.detach() for one in out], "held": {name: (state.keys, state.weights) for name, state in held.items()}})
    return found


def sizes(sharded: nn.Module) -> dict[str, int]:
    """Rows of each table that grows, on this rank."""
    return {name: kernel.sizes()[name] for name, kernel in dynamic_tables(sharded).items()}


def _own(ranks: Ranks, step: int) -> tuple[int, int]:
    counts = PARTS[ranks.world_size][step]
    first = sum(counts[: ranks.rank])
    return first, first + counts[ranks.rank]


def _rows(table: Asked) -> int:
    return OPTIONS.max_capacity if table.grows else STATIC_ROWS


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as group:
        run(group, Path(sys.argv[1]))
