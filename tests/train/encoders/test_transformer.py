import math

import pytest
import torch
from torch import Tensor, nn

from emberline.train.encoders import TransformerEncoderConfig, build_encoder
from emberline.train.encoders.transformer import TransformerEncoder, TransformerLayer
from tests.train.encoders.conftest import Inputs, inputs, make


def torch_layer(layer: nn.Module) -> nn.TransformerEncoderLayer:
    assert isinstance(layer, TransformerLayer)
    first, second = layer.feed_forward[0], layer.feed_forward[2]
    assert isinstance(first, nn.Linear)
    width = layer.out_proj.in_features
    theirs = nn.TransformerEncoderLayer(
        width, layer.heads[0], first.out_features, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
    )
    parts = {
        "self_attn.in_proj_": layer.in_proj,
        "self_attn.out_proj.": layer.out_proj,
        "linear1.": first,
        "linear2.": second,
        "norm1.": layer.attention_norm,
        "norm2.": layer.feed_forward_norm,
    }
    theirs.load_state_dict({prefix + name: value for prefix, part in parts.items() for name, value in part.state_dict().items()})
    return theirs.train()


def rows_alone(encoder: nn.Module, batch: Inputs) -> Tensor:
    """Torch's own layers, on each row without padding, with sinusoids from a double loop."""
    assert isinstance(encoder, TransformerEncoder)
    layers = [torch_layer(layer) for layer in encoder.layers]
    width, limit = encoder.output_dim, encoder.config.max_seq_length
    half = math.ceil(width / 2)
    rows = []
    for _, sequence, length in zip(*batch, strict=True):
        steps = sequence[: min(int(length), limit or int(length))]
        if not len(steps):
            rows.append(sequence.new_zeros(width))
            continue
        hidden = encoder.input(steps)
        if encoder.config.use_position:
            for place in range(len(steps)):
                angles = [(len(steps) - 1 - place) / 10000 ** (i / half) for i in range(half)]
                sinusoids = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
                hidden[place] = hidden[place] + torch.tensor(sinusoids[:width], dtype=torch.float64)
        hidden = hidden.unsqueeze(0)
        for layer in layers:
            hidden = layer(hidden)
        hidden = encoder.norm(hidden[0])
        rows.append({"mean": hidden.mean(0), "sum": hidden.sum(0), "last": hidden[-1]}[encoder.config.pooling_type])
    return torch.stack(rows)


@pytest.mark.parametrize("pooling_type", ["mean", "sum", "last"])
@pytest.mark.parametrize(("width", "heads", "limit", "use_position"), [(8, 2, 0, True), (5, 1, 3, True), (6, 3, 0, False)])
def test_equals_torch_without_padding(pooling_type: str, width: int, heads: int, limit: int, use_position: bool) -> None:
    torch.manual_seed(2)
    config = TransformerEncoderConfig(
        hidden_size=width,
        num_heads=heads,
        num_layers=2,
        feed_forward_size=7,
        use_position=use_position,
        pooling_type=pooling_type,
        max_seq_length=limit,
    )
    encoder = build_encoder(config, 0, 4).double().eval()
    batch = inputs([2, 5, 0, 1], 6, junk=9.0)
    found = encoder(*batch)
    assert encoder.output_dim == width
    # Sinusoids are computed in float32.
    torch.testing.assert_close(found, rows_alone(encoder, batch), rtol=1e-5, atol=1e-6)


def test_order_matters_only_with_positions() -> None:
    batch = inputs([3, 3])
    turned = batch.sequence.flip(1)
    for use_position, same in ((True, False), (False, True)):
        encoder = make("transformer", use_position=use_position)
        assert torch.allclose(encoder(None, batch.sequence, batch.lengths), encoder(None, turned, batch.lengths)) is same


def test_dropout_is_for_training_only() -> None:
    encoder = make("transformer", dropout=0.5)
    batch = inputs([4, 4])
    torch.manual_seed(0)
    assert not torch.equal(encoder.train()(*batch), encoder(*batch))
    assert torch.equal(encoder.eval()(*batch), encoder(*batch))
