"""The MLP block against its layers written out."""

import pytest
import torch

from emberline.train.config import ActivationSpec, MlpConfig
from emberline.train.models.mlp import MLP, LogitLayer


def test_layers_are_linear_then_activation() -> None:
    mlp = MLP(3, MlpConfig(hidden_units=(4, 2), activation=ActivationSpec.parse("nn.LeakyReLU,negative_slope=0.5")))
    inputs = torch.randn(5, 3)
    first, second = (layer for layer in mlp.layers if isinstance(layer, torch.nn.Linear))
    hidden = torch.nn.functional.leaky_relu(inputs @ first.weight.T + first.bias, 0.5)
    expected = torch.nn.functional.leaky_relu(hidden @ second.weight.T + second.bias, 0.5)
    torch.testing.assert_close(mlp(inputs), expected)
    assert mlp.out_dim == 2


def test_normalisation_comes_before_the_activation() -> None:
    mlp = MLP(3, MlpConfig(hidden_units=(4,), use_bn=True))
    assert [type(layer).__name__ for layer in mlp.layers] == ["Linear", "SmallBatchNorm", "ReLU"]
    linear = mlp.layers[0]
    assert isinstance(linear, torch.nn.Linear)
    assert linear.bias is None
    inputs = torch.randn(6, 3)
    hidden = inputs @ linear.weight.T
    normal = (hidden - hidden.mean(0)) / torch.sqrt(hidden.var(0, unbiased=False) + 1e-5)
    torch.testing.assert_close(mlp(inputs), normal.clamp(min=0))
    assert [type(layer).__name__ for layer in MLP(3, MlpConfig(hidden_units=(4,), use_ln=True, dropout_ratio=(0.5,))).layers] == [
        "Linear",
        "LayerNorm",
        "ReLU",
        "Dropout",
    ]


@pytest.mark.parametrize("rows", [0, 1])
def test_batch_norm_trains_on_the_smallest_batches(rows: int) -> None:
    mlp = MLP(3, MlpConfig(hidden_units=(4,), use_bn=True))
    mlp(torch.randn(8, 3))
    norm = mlp.layers[1]
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    inputs = torch.randn(rows, 3)
    trained = mlp.train()(inputs)
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
    torch.testing.assert_close(trained, mlp.eval()(inputs))


def test_logit_layer_shapes() -> None:
    inputs = torch.randn(5, 3)
    one, three = LogitLayer(3, 1), LogitLayer(3, 3)
    torch.testing.assert_close(one(inputs), (inputs @ one.weight.T + one.bias)[:, 0])
    assert three(inputs).shape == (5, 3)
    assert one(inputs[:0]).shape == (0,)
    assert one(inputs[:1]).shape == (1,)
