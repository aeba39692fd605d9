"""Attention by the dot product of query and step."""

import torch
from torch import Tensor, nn

from emberline.train.encoders.configs import SimpleAttentionConfig, encoder_kind
from emberline.train.encoders.steps import kept_steps, required, weighted_sum


class SimpleAttention(nn.Module):
    """Σ softmax(s · q) s over each row's steps s, unscaled; zeros for a row without steps.

    Args:
        config: which steps count.
        sequence_dim: D, width of query and step.
    """

    def __init__(self, config: SimpleAttentionConfig, sequence_dim: int) -> None:
        super().__init__()
        self.config = config
        self.output_dim = sequence_dim

    def forward(self, query: Tensor | None, sequence: Tensor, lengths: Tensor) -> Tensor:
        """Query [B, D], sequence [B, L, D], lengths [B] -> [B, D]."""
        query = required(query, encoder_kind(self.config))
        steps = kept_steps(sequence, lengths, self.config.max_seq_length, self.config.keep)
        # In single precision at least, and no matrix product, which autocast would round: half precision ends at 65504.
        query = query * torch.ones_like(query, dtype=torch.float32)
        scores = (steps.values * query.unsqueeze(1)).sum(2)
        return weighted_sum(scores, steps)
