"""A small sharded model with three tables, one of them frozen, and an MLP; and the same unsharded, in float64, for oracles.

    small_model.py FOLDER CONFIG [FORM]

trains it as one of two processes, each with a half of every batch, and leaves what came of it in FOLDER. Of the FORM `owned` each table is on one
rank; `spread`: table a is cut by rows, and every rank holds table b.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, data_parallel, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.config import TrainConfig, parse_train_config
from emberline.train.optim import TrainingStep, apply_sparse_optimizer, set_initial_moments
from emberline.train.sharding import create_sharders, create_single_process_plan, process_group, shard_model

TABLES, ROWS, DIM, BATCH = ("a", "b", "frozen"), 7, 4, 6
RANKS = {"a": 1, "b": 1, "frozen": 0}
STEPS = 4


class Bags(nn.Module):
    """The sum of the bags of each table, and an MLP on top: [BATCH] numbers."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection(
            tables=[EmbeddingBagConfig(name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[name]) for name in TABLES],
            device=torch.device(device),
        )
        self.ebc.embedding_bags["frozen"].weight.requires_grad_(False)
        torch.manual_seed(0)
        self.mlp = nn.Sequential(nn.Linear(DIM * len(TABLES), 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, kjt: KeyedJaggedTensor) -> Tensor:
        vectors = self.ebc(kjt).to_dict()
        out: Tensor = self.mlp(torch.cat([vectors[name] for name in TABLES], dim=1)).squeeze(1)
        return out


@dataclass
class Small:
    """A sharded model and its training step."""

    config: TrainConfig
    model: DistributedModelParallel
    step: TrainingStep

    def run(self, seed: int, factor: float = 1.0) -> Tensor:
        """One step on the batch of that seed; the loss is multiplied by `factor`."""
        kjt, target = random_batch(seed)
        return self.step.run(lambda: (self.model(kjt).float() - target).square().mean() * factor)

    def run_part(self, seed: int, part: int, parts: int, factor: float = 1.0) -> Tensor:
        """One of several parts of that batch."""
        kjt, target = part_of_batch(seed, part, parts)
        return self.step.run(lambda: (self.model(kjt).float() - target).square().mean() * factor)

    def tables(self) -> dict[str, Tensor]:
        """The live weights, by table."""
        return tables_of(self.model)

    def moments(self) -> dict[str, Tensor]:
        """The live moments, by table and name."""
        states = self.model.fused_optimizer.state_dict()["state"].values()
        return {name: moment.local_shards()[0].tensor for state in states for name, moment in state.items()}

    def everything(self) -> dict[str, Tensor]:
        """Copies of all that a step may change."""
        dense = {name: parameter.detach() for name, parameter in self.step.optimizer.parameters.items()}
        states = {f"{name}/{part}": value for name, state in self.step.optimizer.dense_state().items() for part, value in state.items()}
        found = {**self.tables(), **self.moments(), **dense, **states, **self.step.tensors()}
        return {name: value.clone() for name, value in found.items()}


def random_batch(seed: int) -> tuple[KeyedJaggedTensor, Tensor]:
    """Bags of 0 to 3 ids, some of them twice, and a target [BATCH]."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(TABLES) * BATCH,), generator=generator, dtype=torch.int32)
    values = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(keys=list(TABLES), values=values, lengths=lengths), torch.randn(BATCH, generator=generator)


def part_of_batch(seed: int, part: int, parts: int) -> tuple[KeyedJaggedTensor, Tensor]:
    """One of several equal parts of a random batch's rows."""
    kjt, target = random_batch(seed)
    own = slice(part * BATCH // parts, (part + 1) * BATCH // parts)
    bags = [bag for table in TABLES for bag in kjt[table].to_dense()[own]]
    lengths = torch.tensor([bag.numel() for bag in bags], dtype=torch.int32)
    return KeyedJaggedTensor(keys=list(TABLES), values=torch.cat(bags), lengths=lengths), target[own]


def make_small(text: str, sharders: list[Any] | None = None, placements: Mapping[str, Any] | None = None) -> Small:
    """The model under the `train_config` of a text; needs a process group. Placements are by table; None: whole on this rank."""
    config, ranks = parse_train_config(text), dist.get_world_size()
    model = Bags("meta")
    weights = {name: bag.weight for name, bag in model.ebc.embedding_bags.items()}
    sharders = sharders or create_sharders()
    if placements is None:
        plan = create_single_process_plan(model, sharders)
    else:
        tables = construct_module_sharding_plan(model.ebc, dict(placements), sharders[0], local_size=ranks, world_size=ranks, device_type="cpu")
        plan = ShardingPlan({"ebc": tables})
    apply_sparse_optimizer(weights, config.sparse_optimizer.optimizer)
    sharded = shard_model(model, plan, sharders, world_size=ranks)
    set_initial_moments(sharded, config.sparse_optimizer.optimizer)
    small = Small(config, sharded, TrainingStep(sharded, config, {"frozen"}))
    fill_tables(sharded)
    return small


def tables_of(model: DistributedModelParallel) -> dict[str, Tensor]:
    """The live weights of this rank's tables, by table."""
    found = {name.split(".")[-2]: value for name, value in model.state_dict().items() if "embedding_bags" in name}
    parts = {name: value.local_shards() if hasattr(value, "local_shards") else [value] for name, value in found.items()}
    return {name: getattr(own[0], "tensor", own[0]) for name, own in parts.items() if own}


def fill_tables(model: DistributedModelParallel) -> None:
    """Give each table values of its own."""
    for name, table in tables_of(model).items():
        values = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(TABLES.index(name)))
        table.copy_(values if len(table) == ROWS else values[-len(table) :] if dist.get_rank() else values[: len(table)])


class Plain:
    """The same model in float64, unsharded; who uses it updates it by hand."""

    def __init__(self, small: Small) -> None:
        self.tables = {name: weight.double().requires_grad_(name != "frozen") for name, weight in small.tables().items()}
        self.mlp = Bags("cpu").mlp.double()
        self.dense = {f"mlp.{name}": parameter for name, parameter in self.mlp.named_parameters()}
        self._bound: float | None = None

    @contextmanager
    def clipped_vectors(self, bound: float) -> Iterator[None]:
        """While the body runs, the gradients of looked-up vectors are clipped."""
        self._bound = bound
        yield
        self._bound = None

    def loss(self, seed: int) -> Tensor:
        """The loss of the batch of that seed."""
        kjt, target = random_batch(seed)
        columns = []
        for name in TABLES:
            bags = kjt[name]
            ends = bags.lengths().cumsum(0)
            columns.append(
                torch.stack([self.tables[name][bags.values()[end - size : end]].sum(0) for end, size in zip(ends, bags.lengths(), strict=True)])
            )
        vectors = torch.cat(columns, dim=1)
        if self._bound is not None:
            bound = self._bound
            vectors.register_hook(lambda gradient: gradient.clamp(-bound, bound))  # type: ignore[no-untyped-call]
        out: Tensor = self.mlp(vectors).squeeze(1)
        return (out - target.double()).square().mean()

    def gradients(self, seed: int) -> dict[str, Tensor]:
        """The gradients of all that learns, on the batch of that seed."""
        wanted = {**{name: table for name, table in self.tables.items() if table.requires_grad}, **self.dense}
        return dict(zip(wanted, torch.autograd.grad(self.loss(seed), list(wanted.values())), strict=True))

    def assert_equals(self, small: Small, tolerance: float = 1e-5) -> None:
        """The sharded model has the same numbers."""
        found: Mapping[str, Tensor] = {**small.tables(), **small.step.optimizer.parameters}
        own: Mapping[str, Tensor] = {**self.tables, **self.dense}
        for name, value in own.items():
            torch.testing.assert_close(found[name].double(), value, atol=tolerance, rtol=tolerance)


def train_on_rank(rank: int, folder: Path, text: str, form: str = "owned") -> None:
    """Train on this rank's half of each batch; with a scaler, only rank 1's loss is spoiled at step 1."""
    placements = {table: table_wise(rank=owner, compute_kernel="fused") for table, owner in RANKS.items()}
    if form == "spread":
        placements |= {"a": row_wise(compute_kernel="fused"), "b": data_parallel()}
    small = make_small(text, placements=placements)
    for seed in range(STEPS):
        small.run_part(seed, rank, 2, factor=torch.inf if small.step.scaler and (seed, rank) == (1, 1) else 1.0)
    found = {name: table.clone() for name, table in small.tables().items()}
    found |= {name: parameter.detach().clone() for name, parameter in small.step.optimizer.parameters.items()} | small.step.tensors()
    save_file(found, folder / f"rank-{rank}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as ranks:
        train_on_rank(ranks.rank, Path(sys.argv[1]), *sys.argv[2:])
