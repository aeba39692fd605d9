"""Batch normalisation of small batches, of steps with padding, and over the rows of all ranks.

A step on several ranks is the step that one process would do with all their rows: statistics are those of all ranks' rows, and the same everywhere.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SmallBatchNorm(nn.BatchNorm1d):
    """Batch normalisation that also trains on a batch of one row: it has no variance, so the running statistics stand in."""

    def forward(self, input: Tensor) -> Tensor:
        """[B, H] -> [B, H]."""
        if self.training and input.shape[0] < 2:
            return nn.functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(input)


class JointBatchNorm(nn.BatchNorm1d):
    """Takes the place of a batch normalisation, with its parameters and statistics; in training, its statistics are those of all ranks' rows.

    With fewer than two values in all, there is no variance, so the running statistics stand in.

    Args:
        norm: whose place it takes.
        group: of all ranks.
    """

    def __init__(self, norm: nn.Module, group: dist.ProcessGroup) -> None:
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.weight, self.bias = norm.weight, norm.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(self, name, getattr(norm, name))
        self._group = group
        self.train(norm.training)

    def forward(self, input: Tensor) -> Tensor:
        """[B, C] or [B, C, ...] -> the same."""
        if not self.training:
            return super().forward(input)
        last = input.movedim(1, -1)
        out = normalise(self, last, torch.ones(last.shape[:-1], dtype=torch.bool, device=input.device))
        return out.to(input.dtype).movedim(-1, 1)

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions: images have more."""

    def over_ranks(self, value: Tensor) -> Tensor:
        """The sum over the ranks, with a gradient."""
        total: Tensor = _SumOverRanks.apply(value, self._group)  # type: ignore[no-untyped-call]
        return total


_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, SmallBatchNorm)


def join_batch_norms(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Put a `JointBatchNorm` in the place of every batch normalisation below `model`; names of parameters stay as they are."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) in _KINDS:
                setattr(module, name, JointBatchNorm(child, group))


def normalise(norm: nn.BatchNorm1d, x: Tensor, present: Tensor) -> Tensor:
    """Batch normalisation with the statistics of those that are `present`; with fewer than two of them, the running ones stand in.

    Args:
        norm: its parameters and statistics, and whether they are taken over ranks.
        x: float [..., C].
        present: bool [...].

    Returns:
        [..., C], of the type of the statistics.
    """
    mean, variance = norm.running_mean, norm.running_var
    x = x.float() if mean is None else x.to(mean.dtype)
    if norm.training or mean is None or variance is None:
        found_mean, found_variance, count = _statistics(norm, x, present)
        if mean is None or variance is None:
            mean, variance = found_mean, found_variance
        else:
            enough = count >= 2
            _update(norm, found_mean, found_variance * (count / (count - 1).clamp(min=1)), enough)
            mean, variance = torch.where(enough, found_mean, mean.clone()), torch.where(enough, found_variance, variance.clone())
    out = (x - mean) * torch.rsqrt(variance + norm.eps)
    return out * norm.weight + norm.bias if norm.affine else out


def _statistics(norm: nn.BatchNorm1d, x: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [C], variance [C], number of those that are present."""
    left_out, dims = ~present.unsqueeze(-1), tuple(range(present.dim()))

    def total(value: Tensor) -> Tensor:
        return norm.over_ranks(value) if isinstance(norm, JointBatchNorm) and norm.training else value

    count = total(present.sum().to(x.dtype))
    mean = total(x.masked_fill(left_out, 0.0).sum(dims)) / count.clamp(min=1)
    variance = total((x - mean).masked_fill(left_out, 0.0).square().sum(dims)) / count.clamp(min=1)
    return mean, variance, count


def _update(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor, enough: Tensor) -> None:
    """Move the running statistics towards those of a batch, unless it is too small; without a momentum, they are means over the batches."""
    momentum: Tensor | float = norm.momentum or 0.0
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(enough)
        if norm.momentum is None:
            momentum = 1.0 / norm.num_batches_tracked.clamp(min=1)
    share = torch.where(enough, momentum, 0.0)
    for running, found in ((norm.running_mean, mean), (norm.running_var, variance)):
        if running is not None:
            running.add_(share * (found.detach() - running))


class _SumOverRanks(torch.autograd.Function):
    """All-reduce; so is its gradient, as every rank's loss is a part of the whole."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
