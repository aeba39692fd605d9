"""Every encoder under autocast on the CPU, in training and in eval mode: as in float32, but for the rounding; no NaN, whatever is empty or padded."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.encoders.conftest import KINDS, Inputs, inputs, make
from tests.train.encoders.test_padding import expected_when_empty

TYPES = [torch.bfloat16, torch.float16]
MODES = [pytest.param(True, id="training"), pytest.param(False, id="eval")]
BOUND = {torch.bfloat16: 2**-5, torch.float16: 2**-8}
"""Largest difference from float32: absolute for answers up to 1, relative above: 8 and 4 units in the last place."""
EXACT = ("mean", "sum", "lstm", "lstm_both", "gru", "gru_both")
"""Kinds that round nothing: they add, or run in float32 always."""
SHAPES = [[4, 0, 1], [6, 2, 0, 5]]


def run(kind: str, batch: Inputs, dtype: torch.dtype | None, training: bool, scale: float = 1.0) -> tuple[Tensor, list[Tensor]]:
    """The answer, and the gradients of the sum of squares of `scale` times it: of sequence, query and parameters."""
    encoder = make(kind, dtype=torch.float32).train(training)
    query, sequence = batch.query.clone().requires_grad_(), batch.sequence.clone().requires_grad_()
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        found = encoder(query, sequence, batch.lengths)
    leaves = [sequence, query, *encoder.parameters()]
    gradients = torch.autograd.grad((scale * found.float()).square().sum(), leaves, allow_unused=True, materialize_grads=True)
    return found.detach(), list(gradients)


def assert_finite(*tensors: Tensor) -> None:
    assert all(bool(tensor.isfinite().all()) for tensor in tensors)


@pytest.mark.parametrize("training", MODES)
@pytest.mark.parametrize("dtype", TYPES)
def test_answers_and_gradients_are_those_of_float32(kind: str, dtype: torch.dtype, training: bool) -> None:
    """Whatever the padding holds. Longer padding may change the order of a sum, and with it the last place."""
    bound = 0.0 if kind in EXACT else BOUND[dtype]
    for lengths in SHAPES:
        expected, right = run(kind, inputs(lengths, dtype=torch.float32), None, training)
        for extra, junk in ((0, 0.0), (3, float("nan"))):
            found, gradients = run(kind, inputs(lengths, max(lengths) + extra, junk=junk, dtype=torch.float32), dtype, training)
            assert found.dtype == (torch.float32 if kind in (*EXACT, "windows") else dtype)
            torch.testing.assert_close(found.float(), expected, rtol=bound, atol=bound or 1e-6)
            assert_finite(found, *gradients)
            assert not gradients[0][torch.arange(max(lengths) + extra) >= torch.tensor(lengths).unsqueeze(1)].any()
            gradients[0] = gradients[0][:, : max(lengths)]
            for one, other in zip(gradients, right, strict=True):
                assert float((one - other).norm()) <= (16 * bound or 1e-5) * (1 + float(other.norm()))


@pytest.mark.parametrize("training", MODES)
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_without_steps_are_zeros(kind: str, dtype: torch.dtype, training: bool) -> None:
    shapes: list[tuple[list[int], int]] = [([4, 0, 1], 4), ([0, 0], 3), ([0, 0], 0), ([0], 1), ([], 2), ([], 0)]
    for lengths, padded in shapes:
        batch = inputs(lengths, padded, junk=1e4, dtype=torch.float32)
        found, gradients = run(kind, batch, dtype, training)
        empty = batch.lengths == 0
        assert found.shape[0] == len(lengths)
        assert torch.equal(found[empty].float(), expected_when_empty(kind, batch.query[empty], found.shape[1]))
        assert_finite(found, *gradients)
        assert not gradients[0][empty].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_inputs_whose_products_are_beyond_float16(kind: str, dtype: torch.dtype) -> None:
    """Numbers of a thousand, as a price may be: their products end beyond 65504."""
    batch = inputs([4, 0, 1], dtype=torch.float32)
    large = Inputs(batch.query * 1000, batch.sequence * 1000, batch.lengths)
    found, gradients = run(kind, large, dtype, training=True, scale=1e-3)
    assert_finite(found, *gradients)
    if dtype == torch.float16:
        expected, _ = run(kind, large, None, training=True)
        torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=2.0)


@pytest.mark.parametrize("dtype", TYPES)
def test_inputs_in_half_precision_under_autocast(kind: str, dtype: torch.dtype) -> None:
    """As they come where a model's dense part is under autocast as a whole."""
    batch = inputs([4, 0, 1], 6, dtype=torch.float32)
    halves: Any = Inputs(batch.query.to(dtype), batch.sequence.to(dtype), batch.lengths)
    found, gradients = run(kind, halves, dtype, training=True)
    expected, _ = run(kind, batch, None, training=True)
    torch.testing.assert_close(found.float(), expected, rtol=2 * BOUND[dtype], atol=2 * BOUND[dtype])
    assert_finite(*gradients)
