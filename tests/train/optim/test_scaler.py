"""The loss scale against torch's own scaler, over any series of good and bad steps."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import TrainingError
from emberline.train.config import GradScalerConfig
from emberline.train.optim.scaler import LossScaler

CPU = torch.device("cpu")


@given(st.lists(st.sampled_from([1.0, math.inf, math.nan]), max_size=30), st.integers(1, 4), st.sampled_from([1.5, 2.0, 4.0]))
def test_the_scale_moves_as_torch_moves_it(gradients: list[float], interval: int, factor: float) -> None:
    config = GradScalerConfig(init_scale=2.0**30, growth_factor=factor, backoff_factor=0.5, growth_interval=interval)
    scaler = LossScaler(config, CPU)
    parameter = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    reference = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_factor=factor, backoff_factor=0.5, growth_interval=interval)
    reference.scale(torch.zeros(()))  # it begins with the first use
    for gradient in gradients:
        parameter.grad = torch.tensor([1.0, gradient])
        scaler.start()
        assert scaler.unscale([parameter.grad.clone()]).all_finite() == math.isfinite(gradient)
        scaler.update()
        reference.unscale_(optimizer)
        reference.step(optimizer)
        reference.update()
        assert scaler.scale.item() == reference.get_scale()


def test_gradients_of_any_type_are_divided_in_place_and_judged_together() -> None:
    scaler = LossScaler(GradScalerConfig(init_scale=8.0), CPU)
    single, half = torch.tensor([8.0, -16.0]), torch.tensor([4.0], dtype=torch.float16)
    scaler.start()
    assert scaler.unscale([single, half]).unscale([]).all_finite()
    assert single.tolist() == [1.0, -2.0]
    assert half.tolist() == [0.5]
    scaler.unscale([torch.tensor([math.inf])])
    assert not scaler.unscale([torch.ones(3)]).all_finite()
    scaler.start()
    assert scaler.all_finite()


def test_a_scale_that_no_gradient_fits_is_an_error() -> None:
    scaler = LossScaler(GradScalerConfig(init_scale=2.0**-19, backoff_factor=0.25), CPU)
    scaler.start()
    scaler.unscale([torch.tensor([math.nan])])
    with pytest.raises(TrainingError, match=r"not finite at a loss scale of 4\.76837e-07 either"):
        scaler.update()
