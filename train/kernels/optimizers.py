"""What the tables' optimisers do to the rows of a batch. The numbers are those of fbgemm's GPU kernels.

Every formula is for one row: w its weights, g the sum of its gradients in the batch, lr the rate, t the number of updates with this one, d its width,
`mean` over the d numbers of a row, |.| the Euclidean norm of a row. Products and roots are taken number by number. Source: the update rules in
fbgemm_gpu/codegen/genscript/optimizers.py of pytorch/FBGEMM. Rows that are not in the batch stay as they are, moments included.

Where fbgemm divides zero by zero (LAMB and LARS-SGD, for a row whose gradient and decay are 0), nothing is updated here, and no NaN arises.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moment:
    """A number that an optimiser keeps.

    Args:
        name: as in PyTorch's optimisers.
        per_row: one for each row; else one for each weight.
        begins_with: its first value.
    """

    name: str
    per_row: bool = False
    begins_with: float = 0.0


class RowOptimizer(Protocol):
    """How rows are updated."""

    @property
    def lr(self) -> float:
        """The first rate."""

    @property
    def moments(self) -> tuple[Moment, ...]:
        """What is kept for each row, in order."""

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """Update some rows in place.

        Args:
            weights: float32 [n, d].
            gradients: float32 [n, d]; it may be overwritten.
            moments: float32 [n, d], or [n] where one is kept for each row.
            lr: the rate of this update.
            step: t, from 1.
        """


class WeightDecay(Enum):
    """How row-wise Adagrad shrinks weights."""

    NONE = "none"
    L2 = "l2"
    DECOUPLE = "decouple"


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """w -= lr g."""

    lr: float = 0.01
    moments: tuple[Moment, ...] = field(default=(), init=False)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        weights.sub_(gradients, alpha=lr)


@dataclass(frozen=True, kw_only=True)
class Adagrad:
    """s += g g; w -= lr g / (sqrt(s) + eps)."""

    lr: float = 0.01
    eps: float = 1e-8
    initial_accumulator_value: float = 0.0

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The accumulator s."""
        return (Moment("sum", begins_with=self.initial_accumulator_value),)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        steps = [torch.ones((), device=weights.device)]  # they matter for a decaying rate only
        torch._fused_adagrad_([weights], [gradients], list(moments), steps, lr=lr, lr_decay=0.0, weight_decay=0.0, eps=self.eps, maximize=False)


@dataclass(frozen=True, kw_only=True)
class RowWiseAdagrad:
    """One accumulator a row: s += mean(h h); m = lr / (sqrt(s) + eps); w = c w - m g.

    Without decay h = g and c = 1. With L2, h = g + weight_decay w and c = 1 - m weight_decay. Decoupled, h = g and c = 1 - lr weight_decay.
    """

    lr: float = 0.01
    eps: float = 1e-8
    weight_decay: float = 0.0
    weight_decay_mode: WeightDecay = WeightDecay.NONE
    initial_accumulator_value: float = 0.0

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The accumulator s."""
        return (Moment("sum", per_row=True, begins_with=self.initial_accumulator_value),)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        (total,) = moments
        is_l2 = self.weight_decay_mode is WeightDecay.L2
        total += _mean_square(gradients.add(weights, alpha=self.weight_decay) if is_l2 else gradients)
        rates = (lr / total.sqrt().add_(self.eps)).unsqueeze(1)
        if is_l2:
            weights *= 1.0 - rates * self.weight_decay
        elif self.weight_decay_mode is WeightDecay.DECOUPLE:
            weights *= 1.0 - lr * self.weight_decay
        weights.addcmul_(gradients, rates, value=-1.0)


@dataclass(frozen=True, kw_only=True)
class _WithBetas:
    lr: float = 0.01
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0

    def change(self, weights: Tensor, gradients: Tensor, squares: Tensor, moments: Sequence[Tensor], step: int) -> Tensor:
        """Update m by g, and v by squares, of g or of its rows -> m' / (sqrt(v') + eps) + weight_decay w, a new tensor [n, d]."""
        first, second = moments
        mean = first.mul_(self.beta1).add_(gradients, alpha=1.0 - self.beta1) / (1.0 - self.beta1**step)
        second.mul_(self.beta2).add_(squares, alpha=1.0 - self.beta2)
        root = (second / (1.0 - self.beta2**step)).sqrt_().add_(self.eps)
        return mean.div_(root if root.dim() == mean.dim() else root.unsqueeze(1)).add_(weights, alpha=self.weight_decay)


_BY_WEIGHT = (Moment("exp_avg"), Moment("exp_avg_sq"))
_PARTLY_BY_ROW = (Moment("exp_avg"), Moment("exp_avg_sq", per_row=True))


@dataclass(frozen=True, kw_only=True)
class Adam(_WithBetas):
    """m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; w -= lr (m' / (sqrt(v') + eps) + weight_decay w).

    m' = m / (1 - beta1^t), v' = v / (1 - beta2^t). So the decay does not pass through the moments, as in AdamW.
    """

    moments: tuple[Moment, ...] = field(default=_BY_WEIGHT, init=False)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        first, second = moments
        torch._fused_adamw_(
            [weights],
            [gradients],
            [first],
            [second],
            [],
            [torch.tensor(float(step), device=weights.device)],
            lr=lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


@dataclass(frozen=True, kw_only=True)
class PartialRowWiseAdam(_WithBetas):
    """Adam with one second moment a row: v = beta2 v + (1 - beta2) mean(g g); the rest as in `Adam`."""

    moments: tuple[Moment, ...] = field(default=_PARTLY_BY_ROW, init=False)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        weights.sub_(self.change(weights, gradients, _mean_square(gradients), moments, step), alpha=lr)


@dataclass(frozen=True, kw_only=True)
class Lamb(_WithBetas):
    """r = m' / (sqrt(v') + eps) + weight_decay w, with the moments of `Adam`; w -= lr |w| / |r| r."""

    moments: tuple[Moment, ...] = field(default=_BY_WEIGHT, init=False)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        _move_by_trust(weights, self.change(weights, gradients, gradients * gradients, moments, step), lr)


@dataclass(frozen=True, kw_only=True)
class PartialRowWiseLamb(_WithBetas):
    """LAMB with one second moment a row: v = beta2 v + (1 - beta2) mean(g g); the rest as in `Lamb`."""

    moments: tuple[Moment, ...] = field(default=_PARTLY_BY_ROW, init=False)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        _move_by_trust(weights, self.change(weights, gradients, _mean_square(gradients), moments, step), lr)


@dataclass(frozen=True, kw_only=True)
class LarsSgd:
    """a = lr eta |w| / (|g| + weight_decay |w|); m = momentum m + a (g + weight_decay w); w -= m."""

    lr: float = 0.01
    eta: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.0
    moments: tuple[Moment, ...] = field(default=(Moment("momentum_buffer"),), init=False)

    def update(self, weights: Tensor, gradients: Tensor, moments: Sequence[Tensor], lr: float, step: int) -> None:
        """See `RowOptimizer`."""
        (momentum,) = moments
        sizes = _norms(weights)
        rates = _ratios(sizes, _norms(gradients).add_(sizes, alpha=self.weight_decay)).mul_(lr * self.eta)
        momentum.mul_(self.momentum).addcmul_(gradients.add(weights, alpha=self.weight_decay), rates)
        weights -= momentum


def _mean_square(values: Tensor) -> Tensor:
    """[n, d] -> [n]."""
    return (values * values).mean(dim=1)


def _norms(values: Tensor) -> Tensor:
    """[n, d] -> [n, 1]."""
    return (values * values).sum(dim=1, keepdim=True).sqrt_()


def _ratios(above: Tensor, below: Tensor) -> Tensor:
    """Divide; 0 where `below` is 0."""
    return torch.where(below == 0, 0.0, above / below)


def _move_by_trust(weights: Tensor, change: Tensor, lr: float) -> None:
    weights.addcmul_(change, _ratios(_norms(weights), _norms(change)), value=-lr)
