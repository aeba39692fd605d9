"""A program of encoders side by side, over one padded sequence, and batches for it: every length from none up."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from emberline.export.formats.check import ProgramSource
from emberline.program_inputs import ProgramInput
from emberline.train.embedding.layout import pad
from tests.train.encoders.conftest import DIM, make

KINDS = ["mean", "simple", "din_dice", "windows", "self", "transformer_last", "lstm_both", "gru"]
"""One of each encoder, recurrent ones with several layers or directions."""
LENGTHS: list[list[int]] = [[], [0], [1], [0, 0, 0], [3, 0, 7, 1, 2, 5, 4], [0, 50, 1]]
INPUTS = (
    ProgramInput(name="pooled", dtype="float32", dims=("B", DIM)),
    ProgramInput(name="steps.a", dtype="float32", dims=("N.a", DIM)),
    ProgramInput(name="lengths.a", dtype="int64", dims=("B",)),
    ProgramInput(name="positions.a", dtype="int64", dims=("L.a",)),
)


class _Encoders(nn.Module):
    """Query [B, DIM], steps [N, DIM], lengths [B], positions [L] -> one vector a row of each encoder."""

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, query: Tensor, steps: Tensor, lengths: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        padded = pad(steps, lengths, positions)
        return tuple(cast(Tensor, encoder(query, padded, lengths)) for encoder in self.encoders)


def source_of(kinds: Sequence[str]) -> ProgramSource:
    """A program with encoders of these kinds; every second one keeps 3 steps at most."""
    limits: list[dict[str, Any]] = [
        {"max_seq_length": 3, "keep": "newest"} if place % 2 and kind != "windows" else {} for place, kind in enumerate(kinds)
    ]
    encoders = [make(kind, dtype=torch.float32, **limit) for kind, limit in zip(kinds, limits, strict=True)]
    return ProgramSource(_Encoders(encoders).eval(), INPUTS, tuple(kinds), "outputs")


def batch_of(lengths: Sequence[int], seed: int = 0) -> tuple[Tensor, ...]:
    """Inputs for rows of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    query, steps = (torch.randn(count, DIM, generator=generator) for count in (len(lengths), sum(lengths)))
    return query, steps, torch.tensor(lengths, dtype=torch.int64), torch.arange(max(lengths, default=0))
