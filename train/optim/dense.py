"""The optimisers of everything that is not an embedding table, joined with the tables' own; and the rates of all."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from emberline.errors import ConfigError
from emberline.train.config.optimizer_configs import (
    AdadeltaConfig,
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    DenseOptimizer,
    DenseOptimizerConfig,
    RmsPropConfig,
    SgdConfig,
    SparseOptimizerConfig,
)
from emberline.train.config.schedule_configs import LearningRate
from emberline.train.optim.border import kernels_of
from emberline.train.optim.parts import assign_parts
from emberline.train.optim.schedules import learning_rate

_CLASSES: dict[type[Any], type[torch.optim.Optimizer]] = {
    SgdConfig: torch.optim.SGD,
    AdagradConfig: torch.optim.Adagrad,
    AdamConfig: torch.optim.Adam,
    AdamWConfig: torch.optim.AdamW,
    AdadeltaConfig: torch.optim.Adadelta,
    RmsPropConfig: torch.optim.RMSprop,
}

_TABLE = re.compile(r"(?:.*\.)?(?:embedding_bags|embeddings)\.[^.]+\.weight")


class _Scheduled:
    """An optimiser and how its rate goes; groups whose rate is 0 are frozen, and stay there.

    Args:
        optimizer: that of the tables, or of one part of the dense parameters.
        schedule: of its rate.
        lr: the rate that the schedule starts from.
        label: its name in logs.
    """

    def __init__(self, optimizer: KeyedOptimizer, schedule: LearningRate, lr: float, label: str) -> None:
        self.optimizer, self.schedule, self.lr, self.label = optimizer, schedule, lr, label
        self._groups = [group for group in cast(list[dict[str, Any]], optimizer.param_groups) if group["lr"] != 0.0]

    def set_rate(self, rate: float) -> None:
        """Set the rate of the next step."""
        for group in self._groups:
            group["lr"] = rate


class ModelOptimizer:
    """The optimisers of a whole sharded model.

    Tables are updated in backward already; `step` updates everything else.

    Args:
        model: with the sparse optimiser on its tables.
        dense: the optimisers of all other parameters that need a gradient.
        sparse: what was put on the tables.

    Raises:
        ConfigError: a part's pattern fits no parameter, or a table's kernel leaves it to the dense optimisers.
    """

    def __init__(self, model: DistributedModelParallel, dense: DenseOptimizerConfig, sparse: SparseOptimizerConfig) -> None:
        named = in_backward_optimizer_filter(model.named_parameters())
        self.parameters: dict[str, nn.Parameter] = {name: parameter for name, parameter in named if parameter.requires_grad}
        _check_no_tables(self.parameters, model)
        self._owners: dict[str, KeyedOptimizerWrapper] = {}
        self._scheduled = [_Scheduled(model.fused_optimizer, sparse.learning_rate, sparse.optimizer.lr, "sparse")]
        *parts, rest = assign_parts(self.parameters, [part.regex_pattern for part in dense.part_optimizers])
        self._add(rest, dense.optimizer, dense.learning_rate, "dense")
        for place, (names, part) in enumerate(zip(parts, dense.part_optimizers, strict=True)):
            self._add(names, part.optimizer, part.learning_rate or dense.learning_rate, f"part_{place}")
        self.combined = CombinedOptimizer([one.optimizer for one in self._scheduled])

    def start_step(self, steps: int = 0, epochs: int = 0) -> dict[str, float]:
        """Forget the gradients of the last step, and give every optimiser the rate of the next one, the tables' kernels included.

        Args:
            steps: optimiser steps done.
            epochs: passes over the data done.

        Returns:
            the rates: of `sparse`, `dense`, and each `part_N` in the order of the config.
        """
        rates = {one.label: learning_rate(one.schedule, one.lr, steps, epochs) for one in self._scheduled}
        for one in self._scheduled:
            one.set_rate(rates[one.label])
        self.combined.zero_grad(set_to_none=True)  # hands the rates to the kernels, too
        return rates

    def step(self) -> None:
        """Update everything but the tables."""
        self.combined.step()

    def dense_state(self) -> dict[str, dict[str, Tensor]]:
        """The state of the dense part: by parameter name, then by the name that torch's optimiser gives it. The tensors are the live ones."""
        found = {name: self._owners[name].state.get(parameter) for name, parameter in self.parameters.items()}
        return {name: dict(state) for name, state in found.items() if state is not None}

    def load_dense_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take up a state that `dense_state` gave; it need not have stepped before.

        Raises:
            KeyError: a parameter that this model does not have.
        """
        for name, values in state.items():
            parameter = self.parameters[name]
            # Counts of steps stay on the CPU, as PyTorch keeps them.
            moved = {key: value.to(parameter.device) if value.dim() else value for key, value in values.items()}
            self._owners[name].state[parameter] = moved

    def _add(self, names: Iterable[str], config: DenseOptimizer, schedule: LearningRate, label: str) -> None:
        """One optimiser more; none for no parameters."""
        own = {name: self.parameters[name] for name in names}
        if not own:
            return
        arguments: dict[str, Any] = dict(config.arguments())
        wrapper = KeyedOptimizerWrapper(own, lambda values: _CLASSES[type(config)](values, **arguments))
        self._owners.update(dict.fromkeys(own, wrapper))
        self._scheduled.append(_Scheduled(wrapper, schedule, config.lr, label))


def _check_no_tables(parameters: Iterable[str], model: nn.Module) -> None:
    """Refuse tables that nothing trains in backward: TorchRec would have the dense optimiser train them, frozen ones too."""
    tables = {table for _, names in kernels_of(model) for table in names}
    found = [name.split(".")[-2] for name in parameters if _TABLE.fullmatch(name) and name.split(".")[-2] in tables]
    if found:
        raise ConfigError(
            f"tables {', '.join(found)}: their kernels have no sparse optimiser, as those of data_parallel; give them another sharding type"
        )
