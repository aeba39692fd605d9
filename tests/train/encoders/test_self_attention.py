import pytest
import torch
from torch import nn

from emberline.train.encoders import SelfAttentionEncoderConfig, build_encoder
from tests.train.encoders.by_hand import self_attention_by_hand
from tests.train.encoders.conftest import inputs, make


@pytest.mark.parametrize("limit", [0, 3])
def test_equals_torch_without_padding(limit: int) -> None:
    torch.manual_seed(1)
    encoder = build_encoder(SelfAttentionEncoderConfig(multihead_attn_dim=32, num_heads=4, max_seq_length=limit), 0, 16).double().eval()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.3)
    batch = inputs([2, 3, 4, 5, 0], 10, junk=2.0, sequence_dim=16)
    found = encoder(*batch)
    assert encoder.output_dim == 32
    assert found.shape == (5, 32)
    torch.testing.assert_close(found, self_attention_by_hand(encoder, batch, limit), rtol=1e-9, atol=1e-11)


def test_divides_by_the_steps_that_were_kept() -> None:
    """Equal steps attend to equal values: their mean does not depend on how many there are."""
    step = torch.randn(1, 1, 4, dtype=torch.float64)
    encoder = make("self", max_seq_length=2)
    one, four = (encoder(None, step.expand(1, count, 4), torch.tensor([count])) for count in (1, 4))
    torch.testing.assert_close(one, four)


def test_dropout_is_for_training_only() -> None:
    encoder = make("self", dropout=0.5)
    batch = inputs([4, 4])
    torch.manual_seed(0)
    assert not torch.equal(encoder.train()(*batch), encoder(*batch))
    assert torch.equal(encoder.eval()(*batch), encoder(*batch))
