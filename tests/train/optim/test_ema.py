"""Averages against the formula in float64, and against torch's averaged model."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from emberline.train.optim.ema import DenseEma


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999])
def test_an_average_is_the_formula_and_torch_s(decay: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    ema = DenseEma(dict(model.named_parameters()), decay)
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]
    reference.update_parameters(model)  # its first is a copy
    expected = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    for _ in range(5):
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter)
        ema.update()
        reference.update_parameters(model)
        for name, parameter in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * parameter.detach().double()
            torch.testing.assert_close(ema.averages[name].double(), expected[name], atol=1e-6, rtol=1e-6)
            assert torch.equal(ema.averages[name], reference.module.get_parameter(name))


def test_parameters_come_back_after_an_error_too() -> None:
    model = nn.Linear(2, 1)
    ema = DenseEma(dict(model.named_parameters()), 0.5)
    model.weight.data += 1
    before = model.weight.detach().clone()
    seen = []

    def fail() -> None:
        with ema.in_place():
            seen.append(model.weight.detach().clone())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(seen[0], ema.averages["weight"])
    assert torch.equal(model.weight, before)


def test_no_parameters_have_no_averages() -> None:
    ema = DenseEma({}, 0.5)
    ema.update()
    with ema.in_place():
        assert ema.averages == {}
