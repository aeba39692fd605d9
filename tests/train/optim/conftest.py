"""A small sharded model with three tables, one of them frozen, and an MLP; and the same unsharded, in float64, for oracles."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.config import TrainConfig, parse_train_config
from emberline.train.optim import TrainingStep, apply_sparse_optimizer, set_initial_moments
from emberline.train.sharding import create_sharders, create_single_process_plan, process_group, shard_model

TABLES, ROWS, DIM, BATCH = ("a", "b", "frozen"), 7, 4, 6


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
        out: Tensor = self.mlp(self.ebc(kjt).values()).squeeze(1)
        return out


@dataclass
class Small:
    """A sharded model and its training step."""

    config: TrainConfig
    model: DistributedModelParallel
    step: TrainingStep

    def run(self, seed: int, factor: float = 1.0, done: int = 0) -> Tensor:
        """One step on the batch of that seed; the loss is multiplied by `factor`."""
        kjt, target = random_batch(seed)
        return self.step.run(lambda: (self.model(kjt).float() - target).square().mean() * factor, done)

    def tables(self) -> dict[str, Tensor]:
        """The live weights, by table."""
        found = {name.split(".")[-2]: value for name, value in self.model.state_dict().items() if "embedding_bags" in name}
        return {name: value.local_shards()[0].tensor for name, value in found.items()}

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


def make_small(text: str, **parts: object) -> Small:
    """The model under the `train_config` of a text, or with other parts of it; needs a process group."""
    config = replace(parse_train_config(text), **parts)  # type: ignore[arg-type]
    model = Bags("meta")
    weights = {name: bag.weight for name, bag in model.ebc.embedding_bags.items()}
    sharders = create_sharders()
    plan = create_single_process_plan(model, sharders)
    apply_sparse_optimizer(weights, config.sparse_optimizer.optimizer)
    sharded = shard_model(model, plan, sharders)
    set_initial_moments(sharded, config.sparse_optimizer.optimizer)
    small = Small(config, sharded, TrainingStep(sharded, config, {"frozen"}))
    for place, table in enumerate(small.tables().values()):
        table.copy_(torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(place)))
    return small


class Plain:
    """The same model in float64, unsharded; who uses it updates it by hand."""

    def __init__(self, small: Small) -> None:
        self.tables = {name: weight.double().requires_grad_(name != "frozen") for name, weight in small.tables().items()}
        self.mlp = Bags("cpu").mlp.double()
        self.dense = {f"mlp.{name}": parameter for name, parameter in self.mlp.named_parameters()}

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
        out: Tensor = self.mlp(torch.cat(columns, dim=1)).squeeze(1)
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


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with process_group():
        yield
