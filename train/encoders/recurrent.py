"""LSTM and GRU over a sequence's steps.

The padded batch runs through whole, and each row's state is taken after its own last step: packing rows would wait for the device to tell
their lengths. A backward pass reads rows that were turned around first, so that it starts at the row's own end.

    #           forward reads       backward reads
    # length 3  [a] [b] [c]         [c] [b] [a]
    # length 1  [d]  0   0          [d]  0   0
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from emberline.train.encoders.configs import RecurrentEncoderConfig
from emberline.train.encoders.recurrent_states import network_states
from emberline.train.encoders.steps import Steps, kept_steps, step_at, step_numbers, take_steps


class RecurrentEncoder(nn.Module):
    """The last layer's state after each row's last step; zeros for a row without steps.

    Args:
        config: cell, H (`hidden_size`), layers, directions, and which steps count.
        sequence_dim: Ds, width of a step.
    """

    def __init__(self, config: RecurrentEncoderConfig, sequence_dim: int) -> None:
        super().__init__()
        self.config = config
        self.output_dim = config.hidden_size * (2 if config.bidirectional else 1)
        widths = [sequence_dim] + [self.output_dim] * (config.num_layers - 1)
        self.forwards = nn.ModuleList(_network(config, width) for width in widths)
        self.backwards = nn.ModuleList(_network(config, width) for width in widths if config.bidirectional)

    def forward(self, query: Tensor | None, sequence: Tensor, lengths: Tensor) -> Tensor:
        """Any query, sequence [B, L, Ds], lengths [B] -> [B, H], or [B, 2 H] in two directions, forward first."""
        steps = kept_steps(sequence, lengths, self.config.max_seq_length, self.config.keep)
        # One more step, since the networks refuse a batch without steps; no row's state is taken there.
        values = functional.pad(steps.values, (0, 0, 0, 1))
        places = _turned(values, steps)
        last = (steps.lengths - 1).clamp(min=0)
        states: list[Tensor] = []
        for number, network in enumerate(self.forwards):
            if number > 0:
                values = functional.dropout(values, self.config.dropout, self.training)
            states = [_run(network, values)]
            if self.config.bidirectional:
                states.append(_run(self.backwards[number], take_steps(values, places)))
            if number < self.config.num_layers - 1:
                values = torch.cat([states[0], *(take_steps(state, places) for state in states[1:])], dim=2)
        final = torch.cat([step_at(state, last) for state in states], dim=1)
        return final.masked_fill((steps.lengths == 0).unsqueeze(1), 0.0)


def _network(config: RecurrentEncoderConfig, width: int) -> nn.RNNBase:
    network = nn.LSTM if config.cell == "lstm" else nn.GRU
    return network(width, config.hidden_size, batch_first=True)


def _turned(values: Tensor, steps: Steps) -> Tensor:
    """Places [B, K] that turn each row's steps around and leave its padding where it is; its own inverse."""
    numbers = step_numbers(values, steps.lengths).unsqueeze(0)
    mirrored = steps.lengths.unsqueeze(1) - 1 - numbers
    return torch.where(mirrored >= 0, mirrored, numbers)


def _run(network: nn.Module, values: Tensor) -> Tensor:
    """The states [B, K, H] after each step of [B, K, D]."""
    assert isinstance(network, nn.LSTM | nn.GRU)
    if torch.is_autocast_enabled("cpu"):
        # Most CPUs have no half-precision LSTM, and torch raises instead of falling back.
        with torch.autocast("cpu", enabled=False):
            return network_states(network, values.float())
    return network_states(network, values)
