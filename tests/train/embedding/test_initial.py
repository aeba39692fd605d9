import math

import pytest
import torch
from torch import nn

from emberline.train.config.functions import InitSpec
from emberline.train.embedding.initial import table_init


def test_without_a_function_rows_are_uniform_within_the_root_of_one_over_rows() -> None:
    torch.manual_seed(0)
    rows = table_init(None, rows=400, dim=8)(torch.empty(5000, 8))
    assert rows.abs().max() <= 0.05
    assert rows.std().item() == pytest.approx(0.05 / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize(
    "text",
    [
        "nn.init.xavier_uniform_,gain=2.0",
        "nn.init.xavier_normal_",
        "nn.init.kaiming_uniform_,a=0.3",
        "nn.init.kaiming_normal_,mode=fan_out,nonlinearity=relu",
        "nn.init.normal_,mean=1.0,std=0.5",
        "nn.init.uniform_,a=-0.01,b=0.03",
    ],
)
def test_some_rows_are_drawn_as_the_whole_table_would_be(text: str) -> None:
    spec = InitSpec.parse(text)
    torch.manual_seed(1)
    whole = spec.build()(torch.empty(3000, 16))
    part = table_init(spec, rows=3000, dim=16)(torch.empty(2000, 16))
    assert part.std().item() == pytest.approx(whole.std().item(), rel=0.03)
    assert part.mean().item() == pytest.approx(whole.mean().item(), abs=0.03 * whole.std().item())


def test_a_constant_stays_one() -> None:
    assert torch.equal(table_init(InitSpec.parse("nn.init.constant_,val=0.25"), 9, 2)(torch.empty(3, 2)), torch.full((3, 2), 0.25))


def test_kaiming_agrees_with_torch_on_the_same_shape() -> None:
    spec = InitSpec.parse("nn.init.kaiming_uniform_,a=0.5")
    torch.manual_seed(2)
    ours = table_init(spec, rows=50, dim=6)(torch.empty(50, 6))
    torch.manual_seed(2)
    assert torch.allclose(ours, nn.init.kaiming_uniform_(torch.empty(50, 6), a=0.5))
