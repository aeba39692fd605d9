"""Every kind of encoder with small settings, and batches for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emberline.train.config import ActivationSpec, MlpConfig
from emberline.train.encoders import (
    DinEncoderConfig,
    EncoderConfig,
    MultiWindowDinEncoderConfig,
    PoolingEncoderConfig,
    RecurrentEncoderConfig,
    SelfAttentionEncoderConfig,
    SimpleAttentionConfig,
    TransformerEncoderConfig,
    build_encoder,
)

DIM = 4
WINDOWS = (1, 2, 2)


def mlp(*hidden: int, activation: str = "nn.ReLU", **other: Any) -> MlpConfig:
    return MlpConfig(hidden_units=hidden, activation=ActivationSpec.parse(activation), **other)


CONFIGS: dict[str, Callable[..., EncoderConfig]] = {
    "mean": lambda **k: PoolingEncoderConfig(**k),
    "sum": lambda **k: PoolingEncoderConfig(pooling_type="sum", **k),
    "simple": lambda **k: SimpleAttentionConfig(**k),
    "din": lambda **k: DinEncoderConfig(attn_mlp=mlp(6, 3), **k),
    "din_bn": lambda **k: DinEncoderConfig(attn_mlp=mlp(6, 3, use_bn=True), **k),
    "din_dice": lambda **k: DinEncoderConfig(attn_mlp=mlp(6, 3, activation="Dice"), **k),
    "windows": lambda **k: MultiWindowDinEncoderConfig(attn_mlp=mlp(6, 3), windows_len=WINDOWS, **k),
    "self": lambda **k: SelfAttentionEncoderConfig(multihead_attn_dim=6, num_heads=2, **k),
    "transformer": lambda **k: TransformerEncoderConfig(hidden_size=6, num_heads=2, num_layers=2, **k),
    "transformer_last": lambda **k: TransformerEncoderConfig(hidden_size=5, num_heads=1, pooling_type="last", **k),
    "lstm": lambda **k: RecurrentEncoderConfig(cell="lstm", hidden_size=5, **k),
    "lstm_both": lambda **k: RecurrentEncoderConfig(cell="lstm", hidden_size=5, num_layers=2, bidirectional=True, **k),
    "gru": lambda **k: RecurrentEncoderConfig(cell="gru", hidden_size=5, num_layers=2, **k),
    "gru_both": lambda **k: RecurrentEncoderConfig(cell="gru", hidden_size=5, bidirectional=True, **k),
}
KINDS = list(CONFIGS)
LIMITED = [kind for kind in KINDS if kind != "windows"]


def make(kind: str, query_dim: int = DIM, sequence_dim: int = DIM, dtype: torch.dtype = torch.float64, **fields: Any) -> nn.Module:
    """A new encoder in eval mode, the same for the same arguments; normalisations have statistics that are not the first ones."""
    torch.manual_seed(7)
    encoder = build_encoder(CONFIGS[kind](**fields), query_dim, sequence_dim).to(dtype)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm1d):
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return encoder.eval()


@dataclass
class Inputs:
    """What an encoder is called with."""

    query: Tensor
    sequence: Tensor
    lengths: Tensor

    def __iter__(self) -> Any:
        return iter((self.query, self.sequence, self.lengths))


def inputs(
    lengths: Sequence[int],
    padded: int | None = None,
    *,
    junk: float = 0.0,
    query_dim: int = DIM,
    sequence_dim: int = DIM,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Inputs:
    """A batch of rows of these lengths; the steps of a row depend on `seed` and the row only, and `junk` stands in the padding."""
    padded = max(lengths, default=0) if padded is None else padded
    sequence = torch.full((len(lengths), padded, sequence_dim), junk, dtype=dtype)
    queries = torch.zeros(len(lengths), query_dim, dtype=dtype)
    for row, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(1000 * seed + row)
        queries[row] = torch.randn(query_dim, generator=generator, dtype=torch.float64).to(dtype)
        sequence[row, :length] = torch.randn(50, sequence_dim, generator=generator, dtype=torch.float64)[: min(length, padded)].to(dtype)
    return Inputs(queries, sequence, torch.tensor(lengths, dtype=torch.int32))


class Program(nn.Module):
    """The encoder as the only part of a program; its query is always there."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, query: Tensor, sequence: Tensor, lengths: Tensor) -> Tensor:
        result: Tensor = self.encoder(query, sequence, lengths)
        return result


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
