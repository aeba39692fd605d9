"""Memory for tables, on huge pages where the system has them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from emberline.memory import aligned_memory


def table_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros of this shape, on huge pages where the system has them; memory that holds no whole huge page is ordinary."""
    numbers = math.prod(shape)
    if numbers == 0:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(aligned_memory(numbers * dtype.itemsize), dtype=dtype).view(tuple(shape))
