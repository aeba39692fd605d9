"""DIN's attention without softmax, averaged over consecutive windows."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from emberline.train.encoders.attention_mlp import AttentionMlp, padded_query
from emberline.train.encoders.configs import MultiWindowDinEncoderConfig, encoder_kind
from emberline.train.encoders.steps import kept_steps, required, step_numbers


class MultiWindowDinEncoder(nn.Module):
    """Each window's mean of a(q, s) s, side by side, then the query; a window without steps is zeros.

    a = PReLU(linear(MLP([s, q * s, q]))). Windows follow each other from the first step on; `keep` of the config says what becomes of steps
    beyond the last window.

    Args:
        config: the MLP and the n windows.
        query_dim: Dq, width of the query, at most Ds.
        sequence_dim: Ds, width of a step.
    """

    starts: Tensor
    ends: Tensor

    def __init__(self, config: MultiWindowDinEncoderConfig, query_dim: int, sequence_dim: int) -> None:
        super().__init__()
        self.config = config
        self.query_dim = query_dim
        self.sequence_dim = sequence_dim
        self.output_dim = sequence_dim * (len(config.windows_len) + 1)
        self.attention = AttentionMlp(3 * sequence_dim, config.attn_mlp)
        self.activation = nn.PReLU()
        *starts, total = itertools.accumulate(config.windows_len, initial=0)
        ends = [*starts[1:], torch.iinfo(torch.int64).max if config.keep == "all" else total]
        self.register_buffer("starts", torch.tensor(starts), persistent=False)
        self.register_buffer("ends", torch.tensor(ends), persistent=False)

    def forward(self, query: Tensor | None, sequence: Tensor, lengths: Tensor) -> Tensor:
        """Query [B, Dq], sequence [B, L, Ds], lengths [B] -> [B, (n + 1) * Ds]."""
        query = padded_query(required(query, encoder_kind(self.config)), self.sequence_dim, self.query_dim)
        if self.config.keep == "all":
            steps = kept_steps(sequence, lengths)
        else:
            steps = kept_steps(sequence, lengths, sum(self.config.windows_len), self.config.keep)
        of_step, of_product, of_query = self.attention.first_weights(3)
        scores = self.attention(query, steps, of_query, of_step, of_product)
        scores = functional.prelu(scores, self.activation.weight).masked_fill(~steps.present, 0.0)
        numbers = step_numbers(steps.values, steps.lengths)
        inside = (numbers >= self.starts.unsqueeze(1)) & (numbers < self.ends.unsqueeze(1))  # [n, K]
        weights = scores.unsqueeze(1).masked_fill(~inside, 0.0)  # [B, n, K]
        sums = torch.bmm(weights.to(steps.values.dtype), steps.values)
        counts = torch.minimum(steps.lengths.unsqueeze(1), self.ends) - self.starts
        means = sums / counts.clamp(min=1).unsqueeze(2)
        return torch.cat([means.flatten(1), query], dim=1)
