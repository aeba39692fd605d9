"""Encoders as they are, as symbolic traces and as these scripted, against their formulas, of rows with and without steps."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, fx, nn

from emberline.train.encoders import (
    DinEncoderConfig,
    EncoderConfig,
    MultiWindowDinEncoderConfig,
    PoolingEncoderConfig,
    SelfAttentionEncoderConfig,
    SimpleAttentionConfig,
    build_encoder,
)
from tests.train.encoders.by_hand import (
    din_by_hand,
    multi_window_din_by_hand,
    pooling_by_hand,
    self_attention_by_hand,
    simple_attention_by_hand,
)
from tests.train.encoders.conftest import Inputs, Program, inputs, mlp

pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
FORMS = ("eager", "traced", "scripted")
WINDOWS = (1, 1, 2, 2, 5, 10)


@dataclass(frozen=True)
class Case:
    """An encoder's config, the widths of its query and its steps, of its output, and its formula."""

    config: EncoderConfig
    query_dim: int
    sequence_dim: int
    output_dim: int
    formula: Callable[[nn.Module, Inputs], Tensor]
    padded: int = 10


CASES = {
    "din": Case(DinEncoderConfig(attn_mlp=mlp(8, 4, 2)), 16, 16, 16, din_by_hand),
    "din with batch normalisation": Case(DinEncoderConfig(attn_mlp=mlp(8, 4, 2, use_bn=True)), 16, 16, 16, din_by_hand),
    "din with dice": Case(DinEncoderConfig(attn_mlp=mlp(8, 4, 2, activation="Dice")), 16, 16, 16, din_by_hand),
    "din of three steps": Case(
        DinEncoderConfig(attn_mlp=mlp(8, 4, 2, activation="Dice"), max_seq_length=3),
        16,
        16,
        16,
        lambda encoder, batch: din_by_hand(encoder, batch, 3),
    ),
    "din with a narrow query": Case(DinEncoderConfig(attn_mlp=mlp(8, 4, 2)), 12, 16, 16, din_by_hand),
    "simple attention": Case(SimpleAttentionConfig(), 16, 16, 16, lambda _, batch: simple_attention_by_hand(batch)),
    "simple attention of three steps": Case(SimpleAttentionConfig(max_seq_length=3), 16, 16, 16, lambda _, batch: simple_attention_by_hand(batch, 3)),
    "mean": Case(PoolingEncoderConfig(), 0, 16, 16, lambda _, batch: pooling_by_hand(batch, "mean")),
    "mean of three steps": Case(PoolingEncoderConfig(max_seq_length=3), 0, 16, 16, lambda _, batch: pooling_by_hand(batch, "mean", 3)),
    "sum": Case(PoolingEncoderConfig(pooling_type="sum"), 0, 16, 16, lambda _, batch: pooling_by_hand(batch, "sum")),
    "self attention": Case(SelfAttentionEncoderConfig(multihead_attn_dim=32, num_heads=4), 0, 16, 32, self_attention_by_hand),
    "windows": Case(
        MultiWindowDinEncoderConfig(attn_mlp=mlp(8, 4), windows_len=WINDOWS),
        12,
        12,
        7 * 12,
        lambda encoder, batch: multi_window_din_by_hand(encoder, batch, WINDOWS),
        21,
    ),
    "windows with a narrow query": Case(
        MultiWindowDinEncoderConfig(attn_mlp=mlp(8, 4), windows_len=WINDOWS),
        12,
        16,
        7 * 16,
        lambda encoder, batch: multi_window_din_by_hand(encoder, batch, WINDOWS),
        21,
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", CASES)
def test_every_form_is_the_formula(what: str, form: str) -> None:
    case = CASES[what]
    torch.manual_seed(1)
    encoder = build_encoder(case.config, case.query_dim, case.sequence_dim).double().eval()
    for name, buffer in encoder.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            nn.init.uniform_(buffer, 0.5, 2.0)
    assert encoder.output_dim == case.output_dim
    program: Callable[..., Tensor] = Program(encoder)
    if form != "eager":
        program = fx.symbolic_trace(Program(encoder))
    if form == "scripted":
        program = torch.jit.script(program)
    for lengths, padded in (([2, 3, 4, 5, 0], case.padded), ([1], 1), ([0, 0], 0), ([2, 9], case.padded)):
        batch = inputs(lengths, padded, query_dim=case.query_dim, sequence_dim=case.sequence_dim)
        found = program(*batch)
        assert found.shape == (len(lengths), case.output_dim)
        torch.testing.assert_close(found, case.formula(encoder, batch), rtol=1e-9, atol=1e-11)
