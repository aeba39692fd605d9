"""The optimiser of everything that is not an embedding table, joined with the tables' own."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from emberline.train.config.optimizer_configs import AdadeltaConfig, AdagradConfig, AdamConfig, AdamWConfig, DenseOptimizer, RmsPropConfig, SgdConfig

_CLASSES: dict[type[Any], type[torch.optim.Optimizer]] = {
    SgdConfig: torch.optim.SGD,
    AdagradConfig: torch.optim.Adagrad,
    AdamConfig: torch.optim.Adam,
    AdamWConfig: torch.optim.AdamW,
    AdadeltaConfig: torch.optim.Adadelta,
    RmsPropConfig: torch.optim.RMSprop,
}


class ModelOptimizer:
    """The optimiser of a whole sharded model.

    Tables are updated in backward already; `step` updates everything else.

    Args:
        model: with the sparse optimiser on its tables.
        dense: the optimiser of all other parameters that need a gradient.
    """

    def __init__(self, model: DistributedModelParallel, dense: DenseOptimizer) -> None:
        named = in_backward_optimizer_filter(model.named_parameters())
        self._parameters = {name: parameter for name, parameter in named if parameter.requires_grad}
        optimizers: list[KeyedOptimizer] = [model.fused_optimizer]
        self._state: Mapping[Any, dict[str, Tensor]] = {}
        if self._parameters:
            arguments: dict[str, Any] = dict(dense.arguments())
            wrapper = KeyedOptimizerWrapper(self._parameters, lambda values: _CLASSES[type(dense)](values, **arguments))
            self._state = wrapper.state
            optimizers.append(wrapper)
        self.combined = CombinedOptimizer(list(optimizers))

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        self.combined.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update everything but the tables."""
        self.combined.step()

    def dense_state(self) -> dict[str, dict[str, Tensor]]:
        """The state of the dense part: by parameter name, then by the name that torch's optimiser gives it. The tensors are the live ones."""
        return {name: dict(self._state[parameter]) for name, parameter in self._parameters.items() if parameter in self._state}

    def load_dense_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take up a state that `dense_state` gave; it need not have stepped before.

        Raises:
            KeyError: a parameter that this model does not have.
        """
        for name, values in state.items():
            self._state[self._parameters[name]] = dict(values)  # type: ignore[index]
