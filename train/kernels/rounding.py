"""Float32 -> a smaller float type, by chance: so that steps smaller than what the type can show are not lost, on average.

A number between two of the type becomes one of them, each as likely as the number is near to it. fbgemm does so on a GPU.
"""

import torch
from torch import Tensor

_HALF_SUBNORMAL_STEP = 2.0**-24
_HALF_LEAST_NORMAL = 2.0**-14
_DROPPED_BITS = {torch.bfloat16: 16, torch.float16: 13}


def round_by_chance(numbers: Tensor, dtype: torch.dtype, generator: torch.Generator | None = None) -> Tensor:
    """Float32 of any shape -> bfloat16 or float16, with this generator, or torch's.

    Numbers that the type holds stay as they are, NaN and infinities included.
    """
    dropped = _DROPPED_BITS[dtype]
    below = torch.randint(0, 1 << dropped, numbers.shape, dtype=torch.int32, device=numbers.device, generator=generator)
    raised = ((numbers.view(torch.int32) + below) & -(1 << dropped)).view(torch.float32)
    if dtype == torch.float16:  # below its least normal number the type's steps are equal
        share = below.float() / (1 << dropped)
        small = (numbers / _HALF_SUBNORMAL_STEP + share).floor() * _HALF_SUBNORMAL_STEP
        raised = torch.where(numbers.abs() < _HALF_LEAST_NORMAL, small, raised)
    return torch.where(numbers.isfinite(), raised, numbers).to(dtype)
