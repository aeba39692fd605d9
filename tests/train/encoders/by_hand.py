"""What encoders must give, row by row and step by step, as their formulas are written."""

import math

import torch
from torch import Tensor, nn

from emberline.train.encoders.din import DinEncoder
from emberline.train.encoders.multi_window_din import MultiWindowDinEncoder
from emberline.train.encoders.self_attention import SelfAttentionEncoder
from tests.train.encoders.conftest import Inputs


def pooling_by_hand(batch: Inputs, pooling: str, limit: int = 0, keep: str = "oldest") -> Tensor:
    """Sums, or means over the steps that are kept."""
    rows = []
    for sequence, length in zip(batch.sequence, batch.lengths.tolist(), strict=True):
        limited = limit or length
        steps = sequence[:length][:limited] if keep == "oldest" else sequence[max(length - limited, 0) : length]
        rows.append(sum(steps, sequence.new_zeros(sequence.shape[1])) / (max(len(steps), 1) if pooling == "mean" else 1))
    return torch.stack(rows)


def simple_attention_by_hand(batch: Inputs, limit: int = 0) -> Tensor:
    """Shares by the exponential of each step's product with the query."""
    rows = []
    for query, sequence, length in zip(*batch, strict=True):
        steps = sequence[: min(int(length), limit or int(length))]
        exps = [math.exp(float(step @ query)) for step in steps]
        rows.append(sum((step * (e / sum(exps)) for step, e in zip(steps, exps, strict=True)), torch.zeros_like(query)))
    return torch.stack(rows)


def din_by_hand(encoder: nn.Module, batch: Inputs, limit: int = 0, keep: str = "oldest") -> Tensor:
    """The formula as it is written, step by step, with the four parts side by side."""
    assert isinstance(encoder, DinEncoder)
    rows = []
    for query, sequence, length in zip(*batch, strict=True):
        steps = sequence[: int(length)]
        steps = (steps[:limit] if keep == "oldest" else steps[max(len(steps) - limit, 0) :]) if limit else steps
        wide = torch.cat([query, query.new_zeros(sequence.shape[1] - len(query))])
        if not len(steps):
            rows.append(torch.zeros_like(wide))
            continue
        parts = torch.stack([torch.cat([wide, step, wide - step, wide * step]) for step in steps])
        scores = encoder.attention.linear(encoder.attention.mlp(parts)).squeeze(1)
        rows.append(sum((weight * step for weight, step in zip(scores.softmax(0), steps, strict=True)), torch.zeros_like(wide)))
    return torch.stack(rows)


def multi_window_din_by_hand(encoder: nn.Module, batch: Inputs, windows: tuple[int, ...], keep: str = "oldest") -> Tensor:
    """Step by step, each into its window."""
    assert isinstance(encoder, MultiWindowDinEncoder)
    rows = []
    for query, sequence, length in zip(*batch, strict=True):
        width = sequence.shape[1]
        wide = torch.cat([query, query.new_zeros(width - len(query))])
        steps = list(sequence[: int(length)])
        if keep != "all":
            steps = steps[: sum(windows)] if keep == "oldest" else steps[max(len(steps) - sum(windows), 0) :]
        weighted = []
        for step in steps:
            score = encoder.attention.linear(encoder.attention.mlp(torch.cat([step, wide * step, wide])[None]))
            weighted.append(encoder.activation(score)[0] * step)
        parts = []
        for number, size in enumerate(windows):
            size = len(weighted) if keep == "all" and number == len(windows) - 1 else size
            window, weighted = weighted[:size], weighted[size:]
            parts.append(sum(window, torch.zeros_like(wide)) / max(len(window), 1))
        assert not weighted
        rows.append(torch.cat([*parts, wide]))
    return torch.stack(rows)


def self_attention_by_hand(encoder: nn.Module, batch: Inputs, limit: int = 0) -> Tensor:
    """Torch's own multi-head attention, on each row without padding."""
    assert isinstance(encoder, SelfAttentionEncoder)
    width = encoder.output_dim
    attention = nn.MultiheadAttention(width, encoder.config.num_heads, batch_first=True).double().eval()
    attention.load_state_dict(
        {
            "in_proj_weight": encoder.in_proj.weight,
            "in_proj_bias": encoder.in_proj.bias,
            "out_proj.weight": encoder.out_proj.weight,
            "out_proj.bias": encoder.out_proj.bias,
        }
    )
    rows = []
    for _, sequence, length in zip(*batch, strict=True):
        steps = sequence[None, : min(int(length), limit or int(length))]
        if not steps.shape[1]:
            rows.append(sequence.new_zeros(width))
            continue
        out, _ = attention(encoder.query(steps), encoder.key(steps), encoder.value(steps), need_weights=False)
        rows.append(out[0].mean(0))
    return torch.stack(rows)
