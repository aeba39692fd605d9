"""The steps of a padded sequence that count: clean, cut, masked and attended to. Plain tensor code that traces and exports.

Letters: B rows, L padded steps, K steps that are kept, D width of a step.

    #          step 0  step 1  step 2          lengths
    # row 0    [a]     [b]     [c]             3
    # row 1    [d]     junk    junk            1
    # row 2    junk    junk    junk            0        junk may be anything, NaN too: it reaches neither answer nor gradient
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from emberline.errors import ConfigError
from emberline.train.encoders.configs import Keep


class Steps(NamedTuple):
    """The steps that count, the first step first.

    Args:
        values: [B, K, D]; zeros where there is no step.
        present: [B, K] bool.
        lengths: [B] int64, in [0, K].
    """

    values: Tensor
    present: Tensor
    lengths: Tensor


def kept_steps(sequence: Tensor, lengths: Tensor, max_seq_length: int = 0, keep: Keep = "oldest") -> Steps:
    """Cut each row to `max_seq_length` steps, and put zeros where there is no step.

    Args:
        sequence: [B, L, D], L may be 0.
        lengths: [B], int32 or int64; taken as 0 below 0, and as L above L.
        max_seq_length: 0: no limit.
        keep: the first (`oldest`) or the last (`newest`) steps of a row.

    Returns:
        K = min(L, max_seq_length) steps; in a program made by `torch.export`, K = max_seq_length.
    """
    present = step_numbers(sequence, lengths) < lengths.unsqueeze(1)
    lengths = present.sum(1)
    if max_seq_length > 0:
        if torch.compiler.is_exporting():
            # Otherwise the program would be bound to L >= max_seq_length, or to L below it.
            sequence = functional.pad(sequence, (0, 0, 0, max_seq_length))
        first = sequence[:, :max_seq_length]
        numbers = step_numbers(first, lengths)
        start = (lengths - max_seq_length).clamp(min=0)
        sequence = take_steps(sequence, numbers + start.unsqueeze(1)) if keep == "newest" else first
        lengths = lengths.clamp(max=max_seq_length)
        present = numbers < lengths.unsqueeze(1)
    return Steps(sequence.masked_fill(~present.unsqueeze(2), 0.0), present, lengths)


def step_numbers(sequence: Tensor, like: Tensor) -> Tensor:
    """0 to L - 1 for a sequence [B, L, D], in the dtype and on the device of `like`; no device is written into a traced program."""
    return like.new_ones([sequence.shape[1]]).cumsum(0) - 1


def take_steps(sequence: Tensor, places: Tensor) -> Tensor:
    """Steps [B, K, D] of a sequence [B, L, D] at `places` [B, K], int64 in [0, L)."""
    return sequence.gather(1, places.unsqueeze(2).expand(-1, -1, sequence.shape[2]))


def step_at(sequence: Tensor, places: Tensor) -> Tensor:
    """One step [B, D] a row, at `places` [B]."""
    return take_steps(sequence, places.unsqueeze(1)).squeeze(1)


def attended(steps: Steps) -> Tensor:
    """[B, K] bool: the steps that a softmax runs over.

    A row without any attends to its zeros: a softmax over nothing is NaN, in whatever dtype and with whatever number for minus infinity.
    """
    return steps.present | (steps.lengths == 0).unsqueeze(1)


def weighted_sum(scores: Tensor, steps: Steps) -> Tensor:
    """Scores [B, K] -> softmax over each row's steps -> sum of the steps [B, D]; zeros for a row without steps."""
    weights = torch.softmax(scores.masked_fill(~attended(steps), -torch.inf), dim=1)
    return torch.bmm(weights.to(steps.values.dtype).unsqueeze(1), steps.values).squeeze(1)


def pooled(values: Tensor, steps: Steps, pooling_type: str) -> Tensor:
    """`mean`, `sum` or `last` of each row's steps: values [B, K, D] -> [B, D]; zeros for a row without steps."""
    empty = (steps.lengths == 0).unsqueeze(1)
    if pooling_type == "last":
        padded = functional.pad(values, (0, 0, 0, 1))
        return step_at(padded, (steps.lengths - 1).clamp(min=0)).masked_fill(empty, 0.0)
    clean = values if values is steps.values else values.masked_fill(~steps.present.unsqueeze(2), 0.0)
    total = clean.sum(1)
    return total / steps.lengths.clamp(min=1).unsqueeze(1) if pooling_type == "mean" else total


def without_float16() -> AbstractContextManager[object]:
    """A context without autocast to float16, whose numbers end at 65504: for products of inputs, which may be larger than any of them.

    Autocast to bfloat16 goes on: its numbers are as large as float32's.
    """
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16:
            return torch.autocast(device, enabled=False)
    return nullcontext()


def required(query: Tensor | None, encoder: str) -> Tensor:
    """The query of an encoder that can't do without.

    Raises:
        ConfigError: there is none.
    """
    if query is None:
        raise ConfigError(f"{encoder}: needs a query, and its input has none; add features that are no sequences to its group")
    return query
