"""A transformer over a sequence's steps."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from emberline.train.encoders.configs import TransformerEncoderConfig
from emberline.train.encoders.multi_head import attend
from emberline.train.encoders.steps import Steps, attended, kept_steps, pooled, step_numbers


class TransformerEncoder(nn.Module):
    """Transformer layers over each row's steps, pooled; zeros for a row without steps.

    A linear map to the layers' width, sinusoids of each step's place (Vaswani et al. 2017), layers that normalise first (Xiong et al. 2020),
    a last normalisation, and pooling. Places count back from the row's last step, so that it looks the same whatever came before.

    Args:
        config: H (`hidden_size`), layers and heads, pooling, and which steps count.
        sequence_dim: Ds, width of a step.
    """

    def __init__(self, config: TransformerEncoderConfig, sequence_dim: int) -> None:
        super().__init__()
        self.config = config
        self.output_dim = config.hidden_size
        self.input = nn.Linear(sequence_dim, config.hidden_size)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, query: Tensor | None, sequence: Tensor, lengths: Tensor) -> Tensor:
        """Any query, sequence [B, L, Ds], lengths [B] -> [B, H]."""
        steps = kept_steps(sequence, lengths, self.config.max_seq_length, self.config.keep)
        hidden = self.input(steps.values)
        if self.config.use_position:
            hidden = hidden + self._places(steps).to(hidden.dtype)
        reachable = attended(steps)
        for layer in self.layers:
            hidden = layer(hidden, reachable)
        return pooled(self.norm(hidden), steps, self.config.pooling_type)

    def _places(self, steps: Steps) -> Tensor:
        """Sinusoids [B, K, H] of the steps from each one to the row's last."""
        places = (steps.lengths.unsqueeze(1) - 1 - step_numbers(steps.values, steps.lengths)).clamp(min=0)
        half = (self.output_dim + 1) // 2
        exponents = steps.values.new_ones([half], dtype=torch.float32).cumsum(0) - 1
        angles = places.unsqueeze(2) * torch.exp(exponents * (-math.log(10000.0) / half))
        return torch.cat([torch.sin(angles), torch.cos(angles)], dim=2)[:, :, : self.output_dim]


class TransformerLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)).

    Args:
        config: H (`hidden_size`), heads, width of the feed-forward part, dropout.
    """

    def __init__(self, config: TransformerEncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        inner = config.feed_forward_size or 4 * width
        self.heads = (config.num_heads, width // config.num_heads)
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(width)
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: Tensor, reachable: Tensor) -> Tensor:
        """Steps [B, K, H], and which of them others attend to [B, K] -> [B, K, H]."""
        q, k, v = self.in_proj(self.attention_norm(x)).chunk(3, dim=2)
        out = attend(q, k, v, reachable, heads=self.heads, dropout=self.dropout if self.training else 0.0)
        x = x + self._drop(self.out_proj(out))
        return x + self._drop(self.feed_forward(self.feed_forward_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)
