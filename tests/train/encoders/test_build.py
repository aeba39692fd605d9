"""The factory, and every mistake in an encoder's config."""

import inspect
from typing import Any

import pytest
import torch

from emberline.errors import ConfigError
from emberline.train import encoders
from emberline.train.encoders import (
    DinEncoderConfig,
    MultiWindowDinEncoderConfig,
    PoolingEncoderConfig,
    RecurrentEncoderConfig,
    SelfAttentionEncoderConfig,
    SimpleAttentionConfig,
    TransformerEncoderConfig,
    build_encoder,
    encoder_kind,
    encoder_problems,
)
from emberline.train.encoders.din import DinEncoder
from emberline.train.encoders.multi_window_din import MultiWindowDinEncoder
from emberline.train.encoders.pooling import PoolingEncoder
from emberline.train.encoders.recurrent import RecurrentEncoder
from emberline.train.encoders.self_attention import SelfAttentionEncoder
from emberline.train.encoders.simple_attention import SimpleAttention
from emberline.train.encoders.transformer import TransformerEncoder
from tests.train.encoders.conftest import inputs, make, mlp

DIN = DinEncoderConfig(attn_mlp=mlp(8))


@pytest.mark.parametrize(
    ("config", "query_dim", "cls", "output_dim", "kind"),
    [
        (DIN, 12, DinEncoder, 16, "din_encoder"),
        (SimpleAttentionConfig(), 16, SimpleAttention, 16, "simple_attention"),
        (PoolingEncoderConfig(), 0, PoolingEncoder, 16, "pooling_encoder"),
        (MultiWindowDinEncoderConfig(attn_mlp=mlp(8), windows_len=(1, 2)), 12, MultiWindowDinEncoder, 48, "multi_window_din_encoder"),
        (SelfAttentionEncoderConfig(), 0, SelfAttentionEncoder, 512, "self_attention_encoder"),
        (TransformerEncoderConfig(), 12, TransformerEncoder, 64, "transformer"),
        (RecurrentEncoderConfig(cell="lstm", bidirectional=True), 0, RecurrentEncoder, 128, "lstm"),
        (RecurrentEncoderConfig(cell="gru"), 0, RecurrentEncoder, 64, "gru"),
    ],
)
def test_builds(config: Any, query_dim: int, cls: type, output_dim: int, kind: str) -> None:
    encoder = build_encoder(config, query_dim, 16)
    assert type(encoder) is cls
    assert encoder.output_dim == output_dim
    assert encoder_kind(config) == kind
    assert encoder(torch.zeros(2, query_dim), torch.zeros(2, 3, 16), torch.tensor([3, 0])).shape == (2, output_dim)


@pytest.mark.parametrize(
    ("config", "query_dim", "sequence_dim", "message"),
    [
        (DinEncoderConfig(attn_mlp=mlp(8), input="click"), 17, 16, r"din_encoder on 'click': the query is wider \(17\) than a step .* \(16\)"),
        (MultiWindowDinEncoderConfig(attn_mlp=mlp(8), windows_len=(1,)), 17, 16, r"multi_window_din_encoder: the query is wider"),
        (SimpleAttentionConfig(input="s"), 12, 16, r"simple_attention on 's': the query \(12 wide\) must be as wide as .* \(16\)"),
        (SimpleAttentionConfig(), 17, 16, r"simple_attention: the query is wider"),
        (DIN, 0, 16, "din_encoder: needs a query, and its input has sequence features only"),
        (DIN, 4, 0, "its input has no sequence features"),
        (DinEncoderConfig(attn_mlp=mlp()), 4, 4, "attn_mlp needs hidden_units"),
        (SelfAttentionEncoderConfig(multihead_attn_dim=10, num_heads=4), 0, 4, "multihead_attn_dim 10 is no multiple of num_heads 4"),
        (TransformerEncoderConfig(hidden_size=10, num_heads=4), 0, 4, "transformer: hidden_size 10 is no multiple of num_heads 4"),
        (TransformerEncoderConfig(num_layers=0), 0, 4, "num_layers must be at least 1, found 0"),
        (SelfAttentionEncoderConfig(num_heads=0), 0, 4, "num_heads must be at least 1, found 0"),
        (TransformerEncoderConfig(feed_forward_size=-1), 0, 4, "feed_forward_size must not be negative, found -1"),
        (TransformerEncoderConfig(pooling_type="max"), 0, 4, "pooling_type must be one of mean, sum, last, found 'max'"),
        (PoolingEncoderConfig(pooling_type="max"), 0, 4, "pooling_encoder: pooling_type must be one of mean, sum, found 'max'"),
        (PoolingEncoderConfig(max_seq_length=-1), 0, 4, "max_seq_length must not be negative, found -1"),
        (PoolingEncoderConfig(keep="last"), 0, 4, "keep must be one of oldest, newest, found 'last'"),  # type: ignore[arg-type]
        (MultiWindowDinEncoderConfig(attn_mlp=mlp(8), windows_len=()), 4, 4, "windows_len needs at least one window"),
        (MultiWindowDinEncoderConfig(attn_mlp=mlp(8), windows_len=(2, 0)), 4, 4, r"each of windows_len must be at least 1, found \[2, 0\]"),
        (RecurrentEncoderConfig(cell="rnn"), 0, 4, "cell must be lstm or gru, found 'rnn'"),  # type: ignore[arg-type]
        (RecurrentEncoderConfig(cell="gru", dropout=0.1), 0, 4, "gru: dropout is between layers, and there is one"),
        (RecurrentEncoderConfig(cell="lstm", dropout=1.0, num_layers=2), 0, 4, r"lstm: dropout must be in \[0, 1\), found 1.0"),
    ],
)
def test_refuses(config: Any, query_dim: int, sequence_dim: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_encoder(config, query_dim, sequence_dim)
    assert len(caught.value.problems) == 1


def test_reports_everything_at_once() -> None:
    config = TransformerEncoderConfig(input="s", hidden_size=7, num_heads=2, dropout=2.0, max_seq_length=-3)
    assert len(encoder_problems(config, 0, 0)) == 4
    assert len(encoder_problems(config)) == 3
    assert all(problem.startswith("transformer on 's': ") for problem in encoder_problems(config))


@pytest.mark.parametrize("kind", ["simple", "din", "windows"])
def test_a_missing_query_is_named(kind: str) -> None:
    batch = inputs([2, 1])
    with pytest.raises(ConfigError, match=r"needs a query, and its input has none"):
        make(kind)(None, batch.sequence, batch.lengths)


@pytest.mark.parametrize("kind", ["mean", "self", "transformer", "lstm", "gru_both"])
def test_the_others_need_no_query(kind: str) -> None:
    batch = inputs([2, 1])
    encoder = make(kind, query_dim=0)
    assert torch.equal(encoder(None, batch.sequence, batch.lengths), encoder(*batch))


def test_names() -> None:
    assert all(hasattr(encoders, name) for name in encoders.__all__)
    assert not [name for name, value in vars(encoders).items() if inspect.isclass(value) and name not in encoders.__all__]
