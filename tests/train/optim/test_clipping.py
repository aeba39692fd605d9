"""Clipping against the formulas in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from emberline.train.config import GradClippingConfig
from emberline.train.config.train_config import ClippingType
from emberline.train.optim.clipping import clip_gradients

numbers = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6)


def parameters(*gradients: list[float] | None) -> list[nn.Parameter]:
    found = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(len(gradient or [0.0])))
        parameter.grad = None if gradient is None else torch.tensor(gradient)
        found.append(parameter)
    return found


def joined(found: list[nn.Parameter]) -> Tensor:
    return torch.cat([parameter.grad.double() for parameter in found if parameter.grad is not None])


@given(numbers, numbers, st.floats(0.01, 50), st.sampled_from([1.0, 2.0, 3.0, math.inf]))
def test_norms_are_of_all_gradients_together(first: list[float], second: list[float], bound: float, norm_type: float) -> None:
    found = parameters(first, None, second)
    before = joined(found)
    clip_gradients(found, GradClippingConfig(clipping_type=ClippingType.NORM, max_gradient=bound, norm_type=norm_type))
    norm = torch.linalg.vector_norm(before, norm_type).item()
    torch.testing.assert_close(joined(found), before * min(1.0, bound / (norm + 1e-6)), atol=1e-5, rtol=1e-4)
    assert found[1].grad is None


@given(numbers, st.floats(0.01, 50))
def test_values_are_bounded_one_by_one(gradient: list[float], bound: float) -> None:
    found = parameters(gradient)
    before = joined(found)
    clip_gradients(found, GradClippingConfig(clipping_type=ClippingType.VALUE, max_gradient=bound))
    torch.testing.assert_close(joined(found), before.clamp(-bound, bound), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("config", [None, GradClippingConfig(clipping_type=ClippingType.NONE, max_gradient=0.1)])
def test_no_bound_leaves_gradients_alone(config: GradClippingConfig | None) -> None:
    found = parameters([3.0, -400.0])
    clip_gradients(found, config)
    assert joined(found).tolist() == [3.0, -400.0]


@pytest.mark.parametrize("kind", list(ClippingType))
def test_no_gradients_are_no_problem(kind: ClippingType) -> None:
    clip_gradients(parameters(None), GradClippingConfig(clipping_type=kind))
    clip_gradients([], GradClippingConfig(clipping_type=kind))
