"""LSTM and GRU cell by cell, for exported programs: torch's own are unrolled on export, for one number of steps only."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.nn import functional

Cell = Callable[[tuple[Tensor, ...], Tensor], tuple[tuple[Tensor, ...], Tensor]]


def scan_states(network: nn.LSTM | nn.GRU, values: Tensor) -> Tensor:
    """What the network gives for a whole sequence: states [B, K, H] after each step of [B, K, D], for any K of at least 1.

    Args:
        network: one layer, one direction.
        values: the steps.
    """
    inputs = functional.linear(values, cast(Tensor, network.weight_ih_l0), cast(Tensor, network.bias_ih_l0)).transpose(0, 1)
    start = torch.zeros_like(inputs[0, :, : network.hidden_size])
    if isinstance(network, nn.LSTM):
        _, states = scan(lstm_cell(network), (start, start.clone()), inputs)
    else:
        _, states = scan(gru_cell(network), (start,), inputs)
    result: Tensor = states.transpose(0, 1)
    return result


def lstm_cell(network: nn.LSTM) -> Cell:
    """From (state, memory) [B, H] and a step's input part [B, 4 H] to the next ones, and the state once more."""
    weight, bias = cast(Tensor, network.weight_hh_l0), cast(Tensor, network.bias_hh_l0)

    def cell(carried: tuple[Tensor, ...], step: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        state, memory = carried
        write, keep, new, show = (step + functional.linear(state, weight, bias)).chunk(4, dim=1)
        memory = keep.sigmoid() * memory + write.sigmoid() * new.tanh()
        state = show.sigmoid() * memory.tanh()
        return (state, memory), state.clone()

    return cell


def gru_cell(network: nn.GRU) -> Cell:
    """From (state,) [B, H] and a step's input part [B, 3 H] to the next one, and the state once more."""
    weight, bias = cast(Tensor, network.weight_hh_l0), cast(Tensor, network.bias_hh_l0)

    def cell(carried: tuple[Tensor, ...], step: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        (state,) = carried
        of_state = functional.linear(state, weight, bias).chunk(3, dim=1)
        of_step = step.chunk(3, dim=1)
        reset, keep = (of_step[0] + of_state[0]).sigmoid(), (of_step[1] + of_state[1]).sigmoid()
        new = (of_step[2] + reset * of_state[2]).tanh()
        state = (1 - keep) * new + keep * state
        return (state,), state.clone()

    return cell
