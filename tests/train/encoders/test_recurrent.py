import pytest
import torch
from torch import Tensor, nn

from emberline.train.encoders import RecurrentEncoderConfig, build_encoder
from emberline.train.encoders.recurrent import RecurrentEncoder
from tests.train.encoders.conftest import Inputs, inputs, make


def rows_alone(encoder: nn.Module, batch: Inputs, keep: str = "oldest") -> Tensor:
    """Torch's own network of all layers and directions, on each row without padding: its last layer's final states."""
    assert isinstance(encoder, RecurrentEncoder)
    config = encoder.config
    network = (nn.LSTM if config.cell == "lstm" else nn.GRU)(
        batch.sequence.shape[2], config.hidden_size, config.num_layers, batch_first=True, bidirectional=config.bidirectional, dtype=torch.float64
    )
    state: dict[str, Tensor] = {}
    for suffix, networks in (("", encoder.forwards), ("_reverse", encoder.backwards)):
        for number, layer in enumerate(networks):
            state |= {name.replace("_l0", f"_l{number}{suffix}"): value for name, value in layer.state_dict().items()}
    network.load_state_dict(state)
    rows = []
    for _, sequence, length in zip(*batch, strict=True):
        steps, limit = sequence[None, : int(length)], config.max_seq_length
        if limit:
            steps = steps[:, :limit] if keep == "oldest" else steps[:, max(steps.shape[1] - limit, 0) :]
        if not steps.shape[1]:
            rows.append(sequence.new_zeros(encoder.output_dim))
            continue
        final = network(steps)[1]
        final = final[0] if config.cell == "lstm" else final
        rows.append(torch.cat(list(final[-2:, 0] if config.bidirectional else final[-1:, 0])))
    return torch.stack(rows)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("num_layers", "limit", "keep"), [(1, 0, "oldest"), (3, 0, "oldest"), (2, 2, "oldest"), (2, 2, "newest")])
def test_equals_torch_without_padding(cell: str, bidirectional: bool, num_layers: int, limit: int, keep: str) -> None:
    torch.manual_seed(3)
    config = RecurrentEncoderConfig(
        cell=cell,  # type: ignore[arg-type]
        hidden_size=5,
        num_layers=num_layers,
        bidirectional=bidirectional,
        max_seq_length=limit,
        keep=keep,  # type: ignore[arg-type]
    )
    encoder = build_encoder(config, 0, 4).double().eval()
    batch = inputs([4, 0, 1, 3], 6, junk=-1.0)
    found = encoder(*batch)
    assert encoder.output_dim == (10 if bidirectional else 5)
    torch.testing.assert_close(found, rows_alone(encoder, batch, keep), rtol=1e-9, atol=1e-11)


def test_gradients_equal_torch_without_padding() -> None:
    encoder = make("lstm_both")
    batch = inputs([3, 1, 0, 4], 5)
    batch.sequence.requires_grad_()
    (ours,) = torch.autograd.grad(encoder(*batch).square().sum(), [batch.sequence])
    (theirs,) = torch.autograd.grad(rows_alone(encoder, batch).square().sum(), [batch.sequence])
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_an_empty_row_does_not_inherit_its_neighbour() -> None:
    for kind in ("lstm", "lstm_both", "gru", "gru_both"):
        found = make(kind)(*inputs([4, 0, 1]))
        assert torch.equal(found[1], torch.zeros_like(found[1]))
        assert bool((found[[0, 2]] != 0).all())


def test_dropout_between_layers_is_for_training_only() -> None:
    encoder = make("gru", dropout=0.5)
    batch = inputs([4, 4])
    torch.manual_seed(0)
    assert not torch.equal(encoder.train()(*batch), encoder(*batch))
    assert torch.equal(encoder.eval()(*batch), encoder(*batch))
