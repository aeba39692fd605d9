"""Losses: one number from what the model says and what was true. Shapes: B rows, C classes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from emberline.errors import DataError
from emberline.train.config.model_config import BinaryCrossEntropyConfig, L2LossConfig, LossConfig, SoftmaxCrossEntropyConfig


def compute_loss(losses: Sequence[LossConfig], output: Tensor, labels: Tensor, weights: Tensor | None, total: float | None = None) -> Tensor:
    """The sum of the losses: each the mean over rows, or with weights the sum of w * loss over the sum of w (0 where that is 0).

    Args:
        losses: which ones.
        output: logits or values, float [B] or [B, C].
        labels: [B].
        weights: float [B], not negative, or None.
        total: what to divide by, where these rows are a part of a batch only; None: they are all.
    """
    per_row = torch.stack([_row_loss(loss, output, labels) for loss in losses]).sum(dim=0)
    if weights is not None:
        return weighted_mean(per_row, weights, total)
    return per_row.mean() if total is None else per_row.sum() / max(total, 1.0)


def weighted_mean(per_row: Tensor, weights: Tensor, total: float | None = None) -> Tensor:
    """The sum of w * loss over the sum of w, both [B], or over another `total`; 0 where that is 0."""
    whole = weights.sum() if total is None else per_row.new_tensor(total)
    return (per_row * weights).sum() / torch.where(whole > 0, whole, 1.0)


def _row_loss(loss: LossConfig, output: Tensor, labels: Tensor) -> Tensor:
    match loss:
        case BinaryCrossEntropyConfig():
            return functional.binary_cross_entropy_with_logits(output, labels.to(output.dtype), reduction="none")
        case SoftmaxCrossEntropyConfig():
            return functional.cross_entropy(output, labels.to(torch.int64), reduction="none", label_smoothing=loss.label_smoothing)
        case L2LossConfig():
            return (output - labels.to(output.dtype)).square()


def check_labels(losses: Sequence[LossConfig], labels: Tensor, num_class: int, name: str, weights: Tensor | None = None) -> None:
    """Refuse labels and sample weights that the losses have no meaning for.

    Raises:
        DataError: NaN, infinite or outside of the range, or a class number that is none; names the label and a value.
    """
    if any(isinstance(loss, SoftmaxCrossEntropyConfig) for loss in losses):
        right = (labels >= 0) & (labels < num_class) & (labels == labels.floor() if labels.is_floating_point() else True)
        wanted = f"a class number from 0 to {num_class - 1}"
    elif any(isinstance(loss, BinaryCrossEntropyConfig) for loss in losses):
        right, wanted = (labels >= 0) & (labels <= 1), "between 0 and 1"
    else:
        right, wanted = torch.isfinite(labels), "a finite number"
    if not bool(right.all()):
        raise DataError(f"label {name!r} must be {wanted}, found {labels[~right][0].item()}")
    if weights is not None and not bool(((weights >= 0) & torch.isfinite(weights)).all()):
        bad = weights[~((weights >= 0) & torch.isfinite(weights))][0].item()
        raise DataError(f"sample weights must be finite and not negative, found {bad}")
