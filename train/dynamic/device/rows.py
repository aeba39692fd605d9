"""Rows on any device, which are written to and read by number, and become more."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Numbers = np.ndarray[Any, np.dtype[Any]]
_LEAST_ROWS = 64
CONSTANTS = 2
"""The first rows of each table, which do not learn: what unknown ids read in evaluation, and what ids read that are not admitted yet."""


class DeviceRows:
    """A tensor with a row for each of a table's, which grows by doubling.

    Args:
        shape: of one row: (d,), or () for one number.
        dtype: of a number.
        device: where.
        rows: at first; zeros, as all that come later.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, rows: int = 0) -> None:
        self.tensor = torch.zeros(rows, *shape, dtype=dtype, device=device)

    def reserve(self, rows: int, most: int | None = None) -> None:
        """Have at least so many rows; and no more than `most`, if that is given; not twice as many as now where memory is short."""
        held = len(self.tensor)
        if rows <= held:
            return
        doubled = max(rows, 2 * held, _LEAST_ROWS)
        try:
            grown = self._zeros(doubled if most is None else min(doubled, most))
        except torch.OutOfMemoryError:
            grown = self._zeros(rows)
        grown[:held] = self.tensor
        self.tensor = grown

    def _zeros(self, rows: int) -> Tensor:
        return self.tensor.new_zeros(rows, *self.tensor.shape[1:])

    def read(self, rows: Tensor) -> Tensor:
        """Copy rows, integers [n], to where these are."""
        return self.tensor.index_select(0, rows.to(self.tensor.device)).to(rows.device)

    def copy(self, rows: Tensor) -> Tensor:
        """The same."""
        return self.read(rows)

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Overwrite rows, int64 [n], all distinct."""
        device = self.tensor.device
        self.tensor.index_copy_(0, rows.to(device), values.to(device))
