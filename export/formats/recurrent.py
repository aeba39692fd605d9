"""LSTM and GRU as ONNX has them: one operator a layer, for any number of rows and steps.

ONNX keeps the gates in another order than torch: of an LSTM input, output, forget, cell for torch's input, forget, cell, output; of a GRU update,
reset, new for torch's reset, update, new.
"""

from collections.abc import Callable
from typing import Any

import torch

_LSTM_GATES = (0, 3, 1, 2)
_GRU_GATES = (1, 0, 2)


def translations(opset: int) -> dict[Callable[..., Any], Callable[..., Any]]:
    """What `torch.onnx.export` makes of the operators for states, as its `custom_translation_table`.

    Args:
        opset: of ONNX.
    """
    import onnxscript

    op: Any = getattr(onnxscript, f"opset{opset}")

    def reordered(parts: tuple[Any, ...], gates: tuple[int, ...], hidden: int) -> Any:
        """[1, ...] of rows that are cut into the gates and put in ONNX's order, one part after the other."""
        blocks = [op.Slice(part, [gate * hidden], [(gate + 1) * hidden], [0]) for part in parts for gate in gates]
        return op.Unsqueeze(op.Concat(*blocks, axis=0), [0])

    def states(operator: Any, gates: tuple[int, ...], values: Any, weights: tuple[Any, ...], **settings: Any) -> Any:
        hidden = weights[1].shape[1]
        # One more row of zeros: onnxruntime ends the process where there is none. Padding names every dimension: where it turns transpositions
        # around, onnxruntime does not heed a list of some.
        steps = op.Transpose(op.Pad(values, [0, 0, 0, 1, 0, 0]), perm=[1, 0, 2])
        weight_ih, weight_hh = (reordered((weight,), gates, hidden) for weight in weights[:2])
        found = operator(steps, weight_ih, weight_hh, reordered(weights[2:], gates, hidden), hidden_size=hidden, **settings)[0]
        return op.Slice(op.Transpose(op.Squeeze(found, [1]), perm=[1, 0, 2]), [0], [-1], [0])

    def lstm(values: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any, bias_hh: Any) -> Any:
        return states(op.LSTM, _LSTM_GATES, values, (weight_ih, weight_hh, bias_ih, bias_hh))

    def gru(values: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any, bias_hh: Any) -> Any:
        # Torch applies the reset gate behind the state's product, not before it.
        return states(op.GRU, _GRU_GATES, values, (weight_ih, weight_hh, bias_ih, bias_hh), linear_before_reset=1)

    return {torch.ops.emberline.lstm_states.default: lstm, torch.ops.emberline.gru_states.default: gru}
