"""The states of one LSTM or GRU layer after each step of a sequence.

Torch's own operators are unrolled on export, for one number of steps only. So an exported program calls `emberline::lstm_states` or
`emberline::gru_states`, one node a layer, and each format makes of it what it has: its own operator, or the loop of `loop_states`.

Letters: B rows, K steps (at least 1), D width of a step, H width of a state, G gates (4 of an LSTM, 3 of a GRU).
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan_op
from torch.nn import functional

Cell = Callable[[tuple[Tensor, ...], Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""From what is carried along [B, H], a step's input part [B, G H] and the weight and bias of the state to the next of it, the state first."""

_BIASES, _LAYERS, _DROPOUT, _BOTH_WAYS, _BATCH_FIRST = True, 1, 0.0, False, True


def network_states(network: nn.LSTM | nn.GRU, values: Tensor) -> Tensor:
    """States [B, K, H] after each step of [B, K, D].

    Args:
        network: one layer, one direction.
        values: the steps.
    """
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = tuple(cast(Tensor, getattr(network, name)) for name in names)
    if torch.compiler.is_exporting():
        operator = torch.ops.emberline.lstm_states if isinstance(network, nn.LSTM) else torch.ops.emberline.gru_states
        return cast(Tensor, operator(values.to(weights[0].dtype), *weights))
    kernel = _lstm if isinstance(network, nn.LSTM) else _gru
    return kernel(values, weights, training=network.training)


def _lstm(values: Tensor, weights: Sequence[Tensor], *, training: bool = False) -> Tensor:
    """The kernel without the module's checks of the input, which a traced program would warn of and hold on to."""
    start = _start(values, weights)
    return torch.lstm(values, [start, start], list(weights), _BIASES, _LAYERS, _DROPOUT, training, _BOTH_WAYS, _BATCH_FIRST)[0]


def _gru(values: Tensor, weights: Sequence[Tensor], *, training: bool = False) -> Tensor:
    return torch.gru(values, _start(values, weights), list(weights), _BIASES, _LAYERS, _DROPOUT, training, _BOTH_WAYS, _BATCH_FIRST)[0]


def _start(values: Tensor, weights: Sequence[Tensor]) -> Tensor:
    return values.new_zeros([1, values.shape[0], weights[1].shape[1]])


@torch.library.custom_op("emberline::lstm_states", mutates_args=())
def lstm_states(values: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    """An LSTM's states [B, K, H] after each step of [B, K, D]; weights as `nn.LSTM` has them."""
    return _lstm(values, (weight_ih, weight_hh, bias_ih, bias_hh)).contiguous()


@torch.library.custom_op("emberline::gru_states", mutates_args=())
def gru_states(values: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    """A GRU's states [B, K, H] after each step of [B, K, D]; weights as `nn.GRU` has them."""
    return _gru(values, (weight_ih, weight_hh, bias_ih, bias_hh)).contiguous()


@lstm_states.register_fake
@gru_states.register_fake
def _shape(values: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    return values.new_empty([values.shape[0], values.shape[1], weight_hh.shape[1]])


def loops() -> dict[Any, Callable[..., Tensor]]:
    """What each operator is as a loop, for `ExportedProgram.run_decompositions`."""
    return {torch.ops.emberline.lstm_states.default: _lstm_loop, torch.ops.emberline.gru_states.default: _gru_loop}


def _lstm_loop(values: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    start = _start(values, (weight_ih, weight_hh))[0]
    return _loop(_lstm_cell, (start, start.clone()), functional.linear(values, weight_ih, bias_ih), weight_hh, bias_hh)


def _gru_loop(values: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    start = _start(values, (weight_ih, weight_hh))[0]
    return _loop(_gru_cell, (start,), functional.linear(values, weight_ih, bias_ih), weight_hh, bias_hh)


def _loop(cell: Cell, start: tuple[Tensor, ...], inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """States [B, K, H] from the steps' input parts [B, K, G H]."""

    def step(*given: Any) -> tuple[Tensor, ...]:
        carried = cell(given[: len(start)], *given[len(start) : len(start) + 3])
        return *carried, carried[0].clone()

    # Inductor makes room for the states by the free sizes that are passed along, and finds no others. Where steps are not cut to a fixed number,
    # there is one more than in the sequence: it is that size which is free.
    sizes = [size for size in (inputs.shape[0], inputs.shape[1] - 1) if isinstance(size, torch.SymInt)]
    found = scan_op(step, list(start), [inputs.transpose(0, 1)], (weight, bias, *sizes))
    states: Tensor = found[len(start)]
    return states.transpose(0, 1)


def _lstm_cell(carried: tuple[Tensor, ...], step: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """The next state and memory [B, H], of these, a step's input part [B, 4 H], and what makes the state's, [4 H, H] and [4 H]."""
    state, memory = carried
    write, keep, new, show = (step + functional.linear(state, weight, bias)).chunk(4, dim=1)
    memory = keep.sigmoid() * memory + write.sigmoid() * new.tanh()
    return show.sigmoid() * memory.tanh(), memory


def _gru_cell(carried: tuple[Tensor, ...], step: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """The next state [B, H], of this, a step's input part [B, 3 H], and what makes the state's, [3 H, H] and [3 H]."""
    (state,) = carried
    of_state = functional.linear(state, weight, bias).chunk(3, dim=1)
    of_step = step.chunk(3, dim=1)
    reset, keep = (of_step[0] + of_state[0]).sigmoid(), (of_step[1] + of_state[1]).sigmoid()
    new = (of_step[2] + reset * of_state[2]).tanh()
    return ((1 - keep) * new + keep * state,)
