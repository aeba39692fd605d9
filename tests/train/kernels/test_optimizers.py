import math

import pytest
import torch

from emberline.train.kernels import Lamb, LarsSgd, PartialRowWiseLamb, RowOptimizer, Sgd
from tests.train.kernels.by_hand import OPTIMIZERS, begin, update


def moments_of(optimizer: RowOptimizer, rows: int, dim: int) -> list[torch.Tensor]:
    return [torch.full((rows,) if moment.per_row else (rows, dim), moment.begins_with) for moment in optimizer.moments]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("dim", [1, 3, 16])
def test_updates_are_those_of_a_loop(optimizer: RowOptimizer, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    weights = torch.randn(7, dim, generator=generator)
    moments = moments_of(optimizer, 7, dim)
    rows = [begin(optimizer, row) for row in weights.double().tolist()]
    for step in range(1, 6):
        gradients = torch.randn(7, dim, generator=generator)
        lr = optimizer.lr / step
        for row, gradient in zip(rows, gradients.double().tolist(), strict=True):
            update(optimizer, row, gradient, lr, step)
        optimizer.update(weights, gradients, moments, lr, step)
        expected = torch.tensor([row.weights for row in rows], dtype=torch.float64)
        torch.testing.assert_close(weights.double(), expected, rtol=2e-5, atol=2e-6)
    for place, moment in enumerate(moments):
        expected = torch.tensor([row.moments()[place] for row in rows], dtype=torch.float64)
        torch.testing.assert_close(moment.double().view(7, -1), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_no_rows(optimizer: RowOptimizer) -> None:
    optimizer.update(torch.empty(0, 3), torch.empty(0, 3), moments_of(optimizer, 0, 3), 0.1, 1)


@pytest.mark.parametrize("optimizer", [Lamb(), PartialRowWiseLamb(), LarsSgd()], ids=repr)
def test_zeros_make_no_nan(optimizer: RowOptimizer) -> None:
    weights, gradients = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
    before = weights.clone()
    optimizer.update(weights, gradients, moments_of(optimizer, 3, 2), 0.1, 1)
    assert torch.equal(weights, before)  # without weights there is nothing to scale by


def test_a_gradient_that_is_not_finite_reaches_its_row_only() -> None:
    weights = torch.ones(2, 2)
    Sgd().update(weights, torch.tensor([[math.nan, 1.0], [1.0, 1.0]]), [], 0.5, 1)
    assert weights[0].isnan().tolist() == [True, False]
    assert weights[1].tolist() == [0.5, 0.5]
