"""Optimisers that fbgemm does not have: AdaDelta and RMSprop, as PyTorch's, over the rows of a batch. Letters and rules are those of `optimizers`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from emberline.train.kernels.optimizers import Moment

ROW_OPTIMIZER = "row_optimizer"
"""Among what TorchRec hands to a kernel: the class of an optimiser that fbgemm has no name for."""


@dataclass(frozen=True, kw_only=True)
class AdaDelta:
    """h = g + weight_decay w; v = rho v + (1 - rho) h h; c = sqrt(u + eps) / sqrt(v + eps) h; u = rho u + (1 - rho) c c; w -= lr c.

    Source: `torch.optim.Adadelta`; M. D. Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
    """

    lr: float = 0.01
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0
    moments: tuple[Moment, ...] = field(default=(Moment("square_avg"), Moment("acc_delta")), init=False)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        squares, changes = moments
        gradients = _decayed(gradients, weights, self.weight_decay)
        squares.mul_(self.rho).addcmul_(gradients, gradients, value=1.0 - self.rho)
        change = changes.add(self.eps).sqrt_().div_(squares.add(self.eps).sqrt_()).mul_(gradients)
        changes.mul_(self.rho).addcmul_(change, change, value=1.0 - self.rho)
        weights.sub_(change, alpha=lr)


@dataclass(frozen=True, kw_only=True)
class RmsProp:
    """h = g + weight_decay w; v = alpha v + (1 - alpha) h h; w -= lr h / (sqrt(v) + eps).

    Source: `torch.optim.RMSprop`, without momentum and not centred.
    """

    lr: float = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    moments: tuple[Moment, ...] = field(default=(Moment("square_avg"),), init=False)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        (squares,) = moments
        gradients = _decayed(gradients, weights, self.weight_decay)
        squares.mul_(self.alpha).addcmul_(gradients, gradients, value=1.0 - self.alpha)
        weights.addcdiv_(gradients, squares.sqrt().add_(self.eps), value=-lr)


def _decayed(gradients: Tensor, weights: Tensor, decay: float) -> Tensor:
    return gradients.add_(weights, alpha=decay) if decay else gradients
