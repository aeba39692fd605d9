"""Loss scaling for half precision."""

from collections.abc import Sequence
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from emberline.errors import TrainingError
from emberline.train.config.train_config import GradScalerConfig

_LEAST_SCALE = 2.0**-20


class LossScaler:
    """The scale of the loss, as `torch.amp.GradScaler` moves it (Micikevicius et al., "Mixed Precision Training", ICLR 2018).

    All gradients of a step are judged together, those of tables included, and over all ranks: torch's class judges the parameters of one
    optimiser on one rank.

    Args:
        config: where the scale begins and how it moves.
        device: where the gradients live.
    """

    def __init__(self, config: GradScalerConfig, device: torch.device) -> None:
        self._config = config
        self.scale = torch.full((), config.init_scale, dtype=torch.float32, device=device)
        self.steps_since_growth = torch.zeros((), dtype=torch.int32, device=device)
        self._found = torch.zeros((), dtype=torch.float32, device=device)

    def start(self) -> None:
        """Begin a step: all gradients seen so far are finite."""
        self._found.zero_()

    def unscale(self, gradients: Sequence[Tensor]) -> Self:
        """Divide gradients of the step by the scale, in place, and look whether they are finite."""
        inverse = self.scale.double().reciprocal().float()
        for dtype in {gradient.dtype for gradient in gradients}:
            same = [gradient for gradient in gradients if gradient.dtype == dtype]
            torch._amp_foreach_non_finite_check_and_unscale_(same, self._found, inverse)
        return self

    def all_finite(self) -> bool:
        """Whether all gradients of the step are finite, on every rank."""
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(self._found, op=dist.ReduceOp.MAX)
        return not bool(self._found)

    def update(self) -> None:
        """Move the scale, by what `all_finite` answered.

        Raises:
            TrainingError: no scale is small enough.
        """
        config = self._config
        torch._amp_update_scale_(
            self.scale, self.steps_since_growth, self._found, config.growth_factor, config.backoff_factor, config.growth_interval
        )
        if bool(self._found) and float(self.scale) < _LEAST_SCALE:
            found = f"gradients are not finite at a loss scale of {float(self.scale):g} either"
            raise TrainingError(f"{found}; use mixed_precision: 'BF16', a smaller lr, or grad_clipping")
