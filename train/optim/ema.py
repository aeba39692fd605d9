"""A moving average of the dense parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class DenseEma:
    """The moving average of parameters: at each step, `average = decay * average + (1 - decay) * parameter`. It begins as the parameters do.

    Args:
        parameters: by name.
        decay: in [0, 1).
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters = dict(parameters)
        self.averages: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Take in the parameters of a step."""
        if self.averages:
            self._average(list(self.averages.values()), list(self._parameters.values()), 0)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While the body runs, the parameters are their averages; afterwards, bit for bit what they were."""
        before = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._fill(self.averages)
        try:
            yield
        finally:
            self._fill(before)

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])
