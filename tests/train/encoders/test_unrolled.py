import pytest
import torch
from torch import nn

from emberline.train.encoders.unrolled import gru_cell, lstm_cell
from tests.train.encoders.conftest import inputs


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_cells_equal_torch(kind: type[nn.LSTM] | type[nn.GRU]) -> None:
    torch.manual_seed(0)
    network = kind(4, 5, batch_first=True, dtype=torch.float64)
    sequence = inputs([6, 6, 6]).sequence
    expected = network(sequence)[0]
    assert isinstance(network.weight_ih_l0, torch.Tensor)
    assert isinstance(network.bias_ih_l0, torch.Tensor)
    zeros = torch.zeros(3, 5, dtype=torch.float64)
    carried: tuple[torch.Tensor, ...]
    if isinstance(network, nn.LSTM):
        cell, carried = lstm_cell(network), (zeros, zeros)
    else:
        cell, carried = gru_cell(network), (zeros,)
    for step in range(6):
        carried, state = cell(carried, nn.functional.linear(sequence[:, step], network.weight_ih_l0, network.bias_ih_l0))
        torch.testing.assert_close(state, expected[:, step], rtol=1e-10, atol=1e-12)
