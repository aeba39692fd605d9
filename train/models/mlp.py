"""A stack of fully connected layers. Shapes: B rows, H the width of a layer."""

import torch
from torch import Tensor, nn

from emberline.train.batch_norm import SmallBatchNorm
from emberline.train.config.model_config import MlpConfig


class MLP(nn.Module):
    """Linear layers, each followed by normalisation, activation and dropout where the config has them.

    Args:
        in_dim: width of the input.
        config: widths and the rest.
    """

    def __init__(self, in_dim: int, config: MlpConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = in_dim
        for units, dropout in zip(config.hidden_units, config.dropouts, strict=True):
            layers.append(nn.Linear(width, units, bias=config.bias and not config.use_bn))
            if config.use_bn:
                layers.append(SmallBatchNorm(units))
            if config.use_ln:
                layers.append(nn.LayerNorm(units))
            layers.append(config.activation.build(units))
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            width = units
        self.layers = nn.Sequential(*layers)
        self.out_dim = width

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, in_dim] -> [B, out_dim]."""
        out: Tensor = self.layers(inputs)
        return out


class LogitLayer(nn.Linear):
    """The last linear layer.

    Args:
        in_dim: width of the input.
        num_class: 1 gives logits [B]; C > 1 gives [B, C].
    """

    def __init__(self, in_dim: int, num_class: int) -> None:
        super().__init__(in_dim, num_class)

    def forward(self, input: Tensor) -> Tensor:
        """[B, in_dim] -> [B] or [B, C]."""
        out = super().forward(input)
        return torch.squeeze(out, 1) if self.out_features == 1 else out
