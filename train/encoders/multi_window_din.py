"""DIN's attention without softmax, averaged over consecutive windows."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from emberline.train.encoders.attention_mlp import AttentionMlp, padded_query
from emberline.train.encoders.configs import MultiWindowDinEncoderConfig, encoder_kind
from emberline.train.encoders.steps import Steps, kept_steps, required, step_numbers, without_float16

_ENDLESS = torch.iinfo(torch.int64).max


class MultiWindowDinEncoder(nn.Module):
    """Each window's mean of a(q, s) s, side by side, then the query; a window without steps is zeros.

    a = PReLU(linear(MLP([s, q * s, q]))). Windows follow each other from the first step on; `keep` of the config says what becomes of steps
    beyond the last window.

    Args:
        config: the MLP and the n windows.
        query_dim: Dq, width of the query, at most Ds.
        sequence_dim: Ds, width of a step.
    """

    def __init__(self, config: MultiWindowDinEncoderConfig, query_dim: int, sequence_dim: int) -> None:
        super().__init__()
        self.config = config
        self.query_dim = query_dim
        self.sequence_dim = sequence_dim
        self.output_dim = sequence_dim * (len(config.windows_len) + 1)
        self.attention = AttentionMlp(3 * sequence_dim, config.attn_mlp)
        self.activation = nn.PReLU()
        *starts, total = itertools.accumulate(config.windows_len, initial=0)
        self.windows = list(zip(starts, [*starts[1:], _ENDLESS if config.keep == "all" else total], strict=True))

    def forward(self, query: Tensor | None, sequence: Tensor, lengths: Tensor) -> Tensor:
        """Query [B, Dq], sequence [B, L, Ds], lengths [B] -> [B, (n + 1) * Ds]."""
        query = padded_query(required(query, encoder_kind(self.config)), self.sequence_dim, self.query_dim)
        if self.config.keep == "all":
            steps = kept_steps(sequence, lengths)
        else:
            steps = kept_steps(sequence, lengths, sum(self.config.windows_len), self.config.keep)
        of_step, of_product, of_query = self.attention.first_weights(3)
        with without_float16():
            scores = self.attention(query, steps, of_query, of_step, of_product)
            scores = functional.prelu(scores, self.activation.weight.to(scores.dtype)).masked_fill(~steps.present, 0.0)
            sums = torch.bmm(self._by_window(scores, steps), steps.values.to(scores.dtype))
        counts = torch.stack([(steps.lengths - start).clamp(1, end - start) for start, end in self.windows], dim=1)
        return torch.cat([(sums / counts.unsqueeze(2)).flatten(1), query], dim=1)

    def _by_window(self, scores: Tensor, steps: Steps) -> Tensor:
        """Scores [B, K] -> [B, n, K], zeros outside of each window."""
        numbers = step_numbers(steps.values, steps.lengths)
        outside = [(numbers < start) | (numbers >= end) for start, end in self.windows]
        return torch.stack([scores.masked_fill(mask, 0.0) for mask in outside], dim=1)
