"""The dense optimisers: torch's own, with parts and schedules, and a state that goes out and comes back."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import data_parallel
from torchrec.distributed.types import ShardingPlan

from emberline.errors import ConfigError
from emberline.train.config import (
    AdadeltaConfig,
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    ConstantLrConfig,
    CosineAnnealingLrConfig,
    ExponentialDecayLrConfig,
    PartOptimizerConfig,
    RmsPropConfig,
    SgdConfig,
)
from emberline.train.config.optimizer_configs import DenseOptimizer, DenseOptimizerConfig, FusedSgdConfig, SparseOptimizerConfig
from emberline.train.optim import ModelOptimizer
from emberline.train.sharding import create_sharders, shard_model
from tests.train.optim.small_model import TABLES, make_small

CONFIGS: list[tuple[DenseOptimizer, type[torch.optim.Optimizer], dict[str, object]]] = [
    (SgdConfig(lr=0.1), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (SgdConfig(lr=0.1, momentum=0.0), torch.optim.SGD, {"lr": 0.1}),
    (AdagradConfig(lr=0.1, initial_accumulator_value=0.5), torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5}),
    (SgdConfig(lr=0.1, weight_decay=0.2, dampening=0.5), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2, "dampening": 0.5}),
    (SgdConfig(lr=0.1, nesterov=True), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (AdamConfig(lr=0.1, beta1=0.8, amsgrad=True), torch.optim.Adam, {"lr": 0.1, "betas": (0.8, 0.999), "amsgrad": True}),
    (AdamWConfig(lr=0.1, weight_decay=0.3), torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.3}),
    (AdadeltaConfig(lr=0.1, rho=0.8), torch.optim.Adadelta, {"lr": 0.1, "rho": 0.8}),
    (RmsPropConfig(lr=0.1, centered=True, momentum=0.2), torch.optim.RMSprop, {"lr": 0.1, "centered": True, "momentum": 0.2}),
]


SPARSE = SparseOptimizerConfig(optimizer=FusedSgdConfig(lr=0.3))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model[0].bias.requires_grad_(False)
    return model


def wrapped(model: nn.Module) -> DistributedModelParallel:
    return shard_model(model, ShardingPlan({}), create_sharders())


def optimizer_of(model: DistributedModelParallel, config: DenseOptimizer, **settings: Any) -> ModelOptimizer:
    return ModelOptimizer(model, DenseOptimizerConfig(optimizer=config, **settings), SPARSE)


def backward(model: nn.Module, seed: int) -> None:
    torch.autograd.backward(model(torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))).square().sum())


@pytest.mark.parametrize(("config", "torch_class", "arguments"), CONFIGS)
def test_it_is_torch_s_and_its_state_travels(config: DenseOptimizer, torch_class: type[torch.optim.Optimizer], arguments: dict[str, object]) -> None:
    plain = net()
    reference = torch_class([parameter for parameter in plain.parameters() if parameter.requires_grad], **arguments)  # type: ignore[arg-type]
    first = wrapped(net())
    optimizer = optimizer_of(first, config)
    state: dict[str, dict[str, Tensor]] = {}
    values: dict[str, Tensor] = {}
    for step in range(6):
        if step == 3:  # another model takes up where the first one is
            state = {name: {key: value.clone() for key, value in parts.items()} for name, parts in optimizer.dense_state().items()}
            values = {name: value.clone() for name, value in first.state_dict().items()}
            first = wrapped(net())
            first.load_state_dict(values)
            optimizer = optimizer_of(first, config)
            optimizer.load_dense_state(state)
        reference.zero_grad()
        optimizer.start_step(step)
        for model in (plain, first):
            backward(model, step)
        reference.step()
        optimizer.step()
        for name, parameter in plain.named_parameters():
            assert torch.equal(parameter, dict(first.named_parameters())[name]), (step, name)
    assert set(state) <= {"0.weight", "1.weight", "1.bias"}


def test_state_of_a_stranger_is_refused() -> None:
    with pytest.raises(KeyError, match=r"head\.weight"):
        optimizer_of(wrapped(net()), AdamConfig()).load_dense_state({"head.weight": {"step": torch.tensor(1.0)}})


def test_a_model_without_dense_parameters() -> None:
    optimizer = optimizer_of(wrapped(nn.Identity()), AdamConfig())
    optimizer.start_step()
    optimizer.step()
    assert optimizer.dense_state() == {}


def test_parts_have_optimisers_and_schedules_of_their_own() -> None:
    parts = (
        PartOptimizerConfig(regex_pattern=r"0\.weight", optimizer=AdamConfig(lr=0.2)),
        PartOptimizerConfig(regex_pattern=r".*\.weight", optimizer=SgdConfig(lr=0.4, momentum=0.0), learning_rate=ConstantLrConfig()),
    )
    halves = ExponentialDecayLrConfig(decay_size=1, decay_factor=0.5)
    plain, model = net(), wrapped(net())
    optimizer = optimizer_of(model, AdagradConfig(lr=0.1), learning_rate=halves, part_optimizers=parts)
    first, second, rest = (plain.get_parameter(name) for name in ("0.weight", "1.weight", "1.bias"))
    references = [torch.optim.Adam([first], lr=0.2), torch.optim.SGD([second], lr=0.4), torch.optim.Adagrad([rest], lr=0.1)]
    for step in range(4):
        for reference, base in ((references[0], 0.2), (references[2], 0.1)):
            reference.param_groups[0]["lr"] = base * 0.5**step
        plain.zero_grad()
        assert optimizer.start_step(step) == {"sparse": 0.3, "dense": 0.1 * 0.5**step, "part_0": 0.2 * 0.5**step, "part_1": 0.4}
        for one in (plain, model):
            backward(one, step)
        for reference in references:
            reference.step()
        optimizer.step()
        for name, parameter in plain.named_parameters():
            assert torch.equal(parameter, dict(model.named_parameters())[name]), (step, name)
    assert {name: set(state) for name, state in optimizer.dense_state().items()} == {
        "0.weight": {"step", "exp_avg", "exp_avg_sq"},
        "1.bias": {"step", "sum"},
    }


def test_a_rate_that_a_schedule_makes_0_comes_back() -> None:
    warm = CosineAnnealingLrConfig(T_max=4, warmup_size=2)
    model = wrapped(net())
    optimizer = optimizer_of(model, SgdConfig(lr=1.0, momentum=0.0), learning_rate=warm)
    weight = dict(model.named_parameters())["1.weight"]
    moved = []
    for step in range(3):
        before = weight.detach().clone()
        optimizer.start_step(step)
        backward(model, step)
        optimizer.step()
        assert weight.grad is not None
        moved.append(torch.allclose(before - weight, (0.0, 0.5, 1.0)[step] * weight.grad, atol=1e-6))
    assert moved == [True] * 3


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    part = PartOptimizerConfig(regex_pattern="1.wieght", optimizer=AdamConfig())
    with pytest.raises(ConfigError, match=r"regex_pattern '1\.wieght' fits no dense parameter; near: 1\.weight"):
        optimizer_of(wrapped(net()), SgdConfig(), part_optimizers=(part,))


def test_tables_that_nothing_trains_in_backward_are_refused() -> None:
    """TorchRec's own kernels hand data_parallel tables to the dense optimiser, frozen ones too; ours never do."""
    text = "sparse_optimizer { sgd_optimizer {} } dense_optimizer { sgd_optimizer {} }"
    with pytest.raises(ConfigError, match="tables a, b, frozen: their kernels have no sparse optimiser, as those of data_parallel"):
        make_small(text, [EmbeddingBagCollectionSharder()], dict.fromkeys(TABLES, data_parallel()))
    for small in (make_small(text), make_small(text, placements=dict.fromkeys(TABLES, data_parallel()))):
        assert set(small.step.optimizer.parameters) == {"mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"}
