"""Multi-head attention of a sequence's steps to each other."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from emberline.train.encoders.configs import SelfAttentionEncoderConfig
from emberline.train.encoders.multi_head import attend
from emberline.train.encoders.steps import attended, kept_steps, pooled


class SelfAttentionEncoder(nn.Module):
    """The mean of what each step attends to; zeros for a row without steps. Steps have no positions.

    A step goes through two linear maps before the heads, its own (`query`, `key`, `value`) and the attention's (`in_proj`), as in
    TorchEasyRec, whose weights fit. They are multiplied before they meet the steps, and the map behind the heads comes after the mean:
    the same numbers for a fraction of the work.

    Args:
        config: A (`multihead_attn_dim`), heads, and which steps count.
        sequence_dim: Ds, width of a step.
    """

    def __init__(self, config: SelfAttentionEncoderConfig, sequence_dim: int) -> None:
        super().__init__()
        self.config = config
        width = config.multihead_attn_dim
        self.output_dim = width
        self.query = nn.Linear(sequence_dim, width)
        self.key = nn.Linear(sequence_dim, width)
        self.value = nn.Linear(sequence_dim, width)
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor | None, sequence: Tensor, lengths: Tensor) -> Tensor:
        """Any query, sequence [B, L, Ds], lengths [B] -> [B, A]."""
        steps = kept_steps(sequence, lengths, self.config.max_seq_length, self.config.keep)
        heads = (self.config.num_heads, self.output_dim // self.config.num_heads)
        q, k, v = self._projected(steps.values)
        out = attend(q, k, v, attended(steps), heads=heads, dropout=self.config.dropout if self.training else 0.0)
        mean = pooled(out, steps, "mean")
        result: Tensor = self.out_proj(mean)
        return result.masked_fill((steps.lengths == 0).unsqueeze(1), 0.0)

    def _projected(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, K, Ds] -> queries, keys and values [B, K, A]."""
        second_weights, second_biases = self.in_proj.weight.chunk(3), self.in_proj.bias.chunk(3)
        weights, biases = [], []
        for number, first in enumerate((self.query, self.key, self.value)):
            weights.append(second_weights[number] @ first.weight)
            biases.append(second_weights[number] @ first.bias + second_biases[number])
        q, k, v = functional.linear(values, torch.cat(weights), torch.cat(biases)).chunk(3, dim=2)
        return q, k, v
