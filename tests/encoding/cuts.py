"""What was laid out in one piece, as lists of lists."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def cut(values: Sequence[T], lengths: np.ndarray[Any, np.dtype[np.int32]]) -> list[list[T]]:
    """The first `lengths[0]` of the values, the next `lengths[1]`, and so on."""
    ends = lengths.cumsum().tolist()
    return [list(values[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]
