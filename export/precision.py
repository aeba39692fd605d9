"""Products of matrices in a type of 16 bits, in a program whose answers are float32."""

import torch
from torch import Tensor, nn

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class LowPrecision(nn.Module):
    """A program whose matrix products, those of layers and those of attention and interactions, run in another type, as torch's autocast does it.

    Args:
        program: takes tensors, and gives a tuple of tensors.
        dtype: `bfloat16` or `float16`.
    """

    def __init__(self, program: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.program = program
        self._dtype = dtype
        self.train(program.training)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The program's answers as float32."""
        with torch.autocast(inputs[0].device.type, self._dtype, cache_enabled=False):
            found = self.program(*inputs)
        return tuple(tensor.float() if tensor.is_floating_point() else tensor for tensor in found)


def with_precision(program: nn.Module, precision: str) -> nn.Module:
    """A program with its matrix products in `fp32` (itself), `bf16` or `fp16`."""
    return program if precision == "fp32" else LowPrecision(program, _TYPES[precision])
