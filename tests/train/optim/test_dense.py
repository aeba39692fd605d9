"""The dense optimiser: torch's own, and a state that goes out and comes back."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

from emberline.train.config import AdadeltaConfig, AdagradConfig, AdamConfig, AdamWConfig, RmsPropConfig, SgdConfig
from emberline.train.config.optimizer_configs import DenseOptimizer
from emberline.train.optim import ModelOptimizer
from emberline.train.sharding import create_sharders, process_group, shard_model

CONFIGS: list[tuple[DenseOptimizer, type[torch.optim.Optimizer], dict[str, object]]] = [
    (SgdConfig(lr=0.1), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (SgdConfig(lr=0.1, momentum=0.0), torch.optim.SGD, {"lr": 0.1}),
    (AdagradConfig(lr=0.1, initial_accumulator_value=0.5), torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5}),
    (AdamConfig(lr=0.1, beta1=0.8, amsgrad=True), torch.optim.Adam, {"lr": 0.1, "betas": (0.8, 0.999), "amsgrad": True}),
    (AdamWConfig(lr=0.1, weight_decay=0.3), torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.3}),
    (AdadeltaConfig(lr=0.1, rho=0.8), torch.optim.Adadelta, {"lr": 0.1, "rho": 0.8}),
    (RmsPropConfig(lr=0.1, centered=True, momentum=0.2), torch.optim.RMSprop, {"lr": 0.1, "centered": True, "momentum": 0.2}),
]


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with process_group():
        yield


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model[0].bias.requires_grad_(False)
    return model


def wrapped(model: nn.Module) -> DistributedModelParallel:
    return shard_model(model, ShardingPlan({}), create_sharders())


def backward(model: nn.Module, seed: int) -> None:
    torch.autograd.backward(model(torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))).square().sum())


@pytest.mark.parametrize(("config", "torch_class", "arguments"), CONFIGS)
def test_it_is_torch_s_and_its_state_travels(config: DenseOptimizer, torch_class: type[torch.optim.Optimizer], arguments: dict[str, object]) -> None:
    plain = net()
    reference = torch_class([parameter for parameter in plain.parameters() if parameter.requires_grad], **arguments)  # type: ignore[arg-type]
    first = wrapped(net())
    optimizer = ModelOptimizer(first, config)
    state: dict[str, dict[str, Tensor]] = {}
    values: dict[str, Tensor] = {}
    for step in range(6):
        if step == 3:  # another model takes up where the first one is
            state = {name: {key: value.clone() for key, value in parts.items()} for name, parts in optimizer.dense_state().items()}
            values = {name: value.clone() for name, value in first.state_dict().items()}
            first = wrapped(net())
            first.load_state_dict(values)
            optimizer = ModelOptimizer(first, config)
            optimizer.load_dense_state(state)
        for model, one in ((plain, reference), (first, optimizer)):
            one.zero_grad()
            backward(model, step)
            one.step()
        for name, parameter in plain.named_parameters():
            assert torch.equal(parameter, dict(first.named_parameters())[name]), (step, name)
    assert set(state) <= {"0.weight", "1.weight", "1.bias"}


def test_state_of_a_stranger_is_refused() -> None:
    with pytest.raises(KeyError, match=r"head\.weight"):
        ModelOptimizer(wrapped(net()), AdamConfig()).load_dense_state({"head.weight": {"step": torch.tensor(1.0)}})


def test_a_model_without_dense_parameters() -> None:
    optimizer = ModelOptimizer(wrapped(nn.Identity()), AdamConfig())
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.dense_state() == {}
