"""What both forms of an index have in common."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[Any]]
LOT = 32
"""A full table, or a full counter, lets go of a 32nd of what it may hold, at once: looking for the lowest costs a walk over all."""


@dataclass(frozen=True)
class Read:
    """What a batch met.

    Args:
        rows: int64 [n], of each id.
        new_keys: int64 [m], those that had no row, in the order in which they came.
        new_rows: int64 [m], the rows that they got.
        num_hits: ids that had a row before, each time they were read.
    """

    rows: Numbers
    new_keys: Numbers
    new_rows: Numbers
    num_hits: int
