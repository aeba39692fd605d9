"""States of a layer: the operators that stand for it in exported programs, and the loops that these may become, against torch's own modules."""

import pytest
import torch
from torch import nn

from emberline.train.encoders.recurrent_states import loops, network_states
from tests.train.encoders.conftest import inputs


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_kernels_operators_and_loops_equal_torch(kind: type[nn.LSTM] | type[nn.GRU]) -> None:
    torch.manual_seed(0)
    network = kind(4, 5, batch_first=True, dtype=torch.float64).requires_grad_(False)
    weights = tuple(network.parameters())
    operator = {"LSTM": torch.ops.emberline.lstm_states.default, "GRU": torch.ops.emberline.gru_states.default}[kind.__name__]
    for lengths, padded in (([6, 6, 6], 6), ([1], 1), ([], 3)):
        sequence = inputs(lengths, padded).sequence
        expected = network(sequence)[0] if lengths else torch.empty(0, padded, 5, dtype=torch.float64)
        for found in (network_states(network, sequence), operator(sequence, *weights), loops()[operator](sequence, *weights)):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    torch.library.opcheck(operator, (inputs([6, 6, 6]).sequence, *weights), test_utils=("test_schema", "test_faketensor"))
