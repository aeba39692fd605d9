"""Losses against float64 formulas, and labels that make no sense."""

import math

import pytest
import torch

from emberline.errors import DataError
from emberline.train.config import BinaryCrossEntropyConfig, L2LossConfig, SoftmaxCrossEntropyConfig
from emberline.train.models.loss import check_labels, compute_loss

BCE, CE, L2 = (BinaryCrossEntropyConfig(),), (SoftmaxCrossEntropyConfig(),), (L2LossConfig(),)


def test_binary_cross_entropy() -> None:
    logits, labels = torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 1])
    rows = [math.log1p(math.exp(-2)), math.log1p(math.exp(-1)), math.log1p(math.exp(-0.5))]
    assert compute_loss(BCE, logits, labels, None).item() == pytest.approx(sum(rows) / 3, rel=1e-6)
    weights = torch.tensor([0.0, 3.0, 1.0])
    assert compute_loss(BCE, logits, labels, weights).item() == pytest.approx((3 * rows[1] + rows[2]) / 4, rel=1e-6)


def test_weights_that_are_all_zero_give_zero_and_no_gradient() -> None:
    logits = torch.tensor([2.0, -1.0], requires_grad=True)
    loss = compute_loss(BCE, logits, torch.tensor([0, 1]), torch.zeros(2))
    torch.autograd.backward(loss)
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros(2))


def test_softmax_cross_entropy() -> None:
    logits, labels = torch.tensor([[0.0, 2.0, -1.0], [1.0, 1.0, 1.0]]), torch.tensor([1, 2])
    rows = [math.log(1 + math.exp(2) + math.exp(-1)) - 2, math.log(3)]
    assert compute_loss(CE, logits, labels, None).item() == pytest.approx(sum(rows) / 2, rel=1e-6)
    smooth = (SoftmaxCrossEntropyConfig(label_smoothing=0.3),)
    first = 0.7 * rows[0] + 0.3 * (3 * (rows[0] + 2) - 1.0) / 3
    assert compute_loss(smooth, logits[:1], labels[:1], None).item() == pytest.approx(first, rel=1e-6)


def test_squared_error() -> None:
    assert compute_loss(L2, torch.tensor([1.0, 3.0]), torch.tensor([0.5, 5.0]), None).item() == pytest.approx((0.25 + 4) / 2)


@pytest.mark.parametrize(
    ("losses", "labels", "message"),
    [
        (BCE, [0.0, 1.5], r"label 'y' must be between 0 and 1, found 1\.5"),
        (BCE, [-1.0, 1.0], "between 0 and 1, found -1"),
        (BCE, [0.0, float("nan")], "found nan"),
        (CE, [0, 3], "a class number from 0 to 2, found 3"),
        (CE, [0.0, 1.5], r"found 1\.5"),
        (L2, [0.0, float("inf")], "a finite number, found inf"),
    ],
)
def test_labels_that_make_no_sense(losses: tuple[BinaryCrossEntropyConfig], labels: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_labels(losses, torch.tensor(labels), 3, "y")


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf")])
def test_weights_that_make_no_sense(weight: float) -> None:
    with pytest.raises(DataError, match="sample weights must be finite and not negative"):
        check_labels(BCE, torch.tensor([0, 1]), 1, "y", torch.tensor([1.0, weight]))


def test_good_labels_pass() -> None:
    check_labels(BCE, torch.tensor([0.0, 0.5, 1.0]), 1, "y", torch.tensor([0.0, 1.0, 2.0]))
    check_labels(CE, torch.tensor([0, 1, 2]), 3, "y")
    check_labels(L2, torch.tensor([-5.0]), 1, "y")
    check_labels(BCE, torch.tensor([]), 1, "y")
