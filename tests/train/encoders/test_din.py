from typing import Any

import pytest
import torch

from emberline.train.encoders import DinEncoderConfig, build_encoder
from tests.train.encoders.by_hand import din_by_hand
from tests.train.encoders.conftest import inputs, make, mlp

LENGTHS = [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("config", "query_dim", "limit"),
    [
        (mlp(8, 4, 2), 16, 0),
        (mlp(8, 4, 2, use_bn=True), 16, 0),
        (mlp(8, 4, 2, activation="Dice"), 16, 0),
        (mlp(8, 4, 2, activation="Dice"), 16, 3),
        (mlp(8, 4, 2), 12, 0),
        (mlp(8, use_ln=True, bias=False, activation=""), 1, 2),
        (mlp(3, use_bn=True, activation="nn.PReLU,num_parameters=3"), 12, 0),
    ],
)
def test_equals_the_formula(config: Any, query_dim: int, limit: int) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(DinEncoderConfig(attn_mlp=config, max_seq_length=limit), query_dim, 16).double().eval()
    batch = inputs([*LENGTHS, 0, 1], 10, junk=3.0, query_dim=query_dim, sequence_dim=16)
    found = encoder(*batch)
    assert encoder.output_dim == 16
    torch.testing.assert_close(found, din_by_hand(encoder, batch, limit), rtol=1e-9, atol=1e-11)


def test_gradients_equal_those_of_the_formula() -> None:
    encoder = make("din", 3)
    batch = inputs([3, 1, 0], 4, query_dim=3)
    leaves = [batch.query.requires_grad_(), batch.sequence.requires_grad_(), *encoder.parameters()]
    ours = torch.autograd.grad(encoder(*batch).square().sum(), leaves)
    theirs = torch.autograd.grad(din_by_hand(encoder, batch, 0).square().sum(), leaves)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_newest_steps() -> None:
    encoder = make("din", max_seq_length=2, keep="newest")
    batch = inputs([5, 2, 1, 0])
    torch.testing.assert_close(encoder(*batch), din_by_hand(encoder, batch, 2, "newest"), rtol=1e-9, atol=1e-11)


def test_dropout_is_for_training_only() -> None:
    encoder = build_encoder(DinEncoderConfig(attn_mlp=mlp(64, dropout_ratio=(0.5,))), 4, 4).double()
    batch = inputs([3, 4])
    torch.manual_seed(0)
    first, second = encoder.train()(*batch), encoder(*batch)
    assert not torch.equal(first, second)
    assert torch.equal(encoder.eval()(*batch), encoder(*batch))
