"""A table's rows, read and written by number.

PyTorch's indexing is slow at this. Its pooling kernel reads float32 rows best; NumPy copies whole rows of any kind when a row is one item of an
opaque type, and writes them three times as fast.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class Rows:
    """The rows of a contiguous tensor.

    Args:
        tensor: [rows, width] of any dtype, or [rows]; it is used, not copied.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._items = _items(tensor)

    def __reduce__(self) -> tuple[type["Rows"], tuple[Tensor]]:
        """Copies and pickles are views of the copied tensor."""
        return Rows, (self.tensor,)

    def read(self, rows: Tensor) -> Tensor:
        """Copy rows, int32 or int64 [n], which must exist, into a new tensor [n, width] of the same dtype."""
        if self.tensor.dtype == torch.float32 and self.tensor.dim() == 2 and len(rows):
            # bags of one: PyTorch's kernel asks for rows before it needs them, which NumPy does not
            return functional.embedding_bag(rows, self.tensor, torch.arange(len(rows), dtype=rows.dtype), mode="sum")
        into = self.tensor.new_empty(len(rows), *self.tensor.shape[1:])
        if len(rows):
            self._items.take(rows.numpy(), out=_items(into), mode="clip")  # with another mode, NumPy copies twice
        return into

    def copy(self, rows: Tensor) -> Tensor:
        """The same, of rows that may be most of a table, int64 [n]."""
        return self.read(rows)

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Overwrite rows, int64 [n], which must exist and be distinct, with contiguous values [n, width] of the same dtype."""
        if len(rows):
            self._items.put(rows.numpy(), _items(values))


def _items(tensor: Tensor) -> Any:
    """The tensor's memory as one opaque item a row."""
    flat = tensor.view(len(tensor), -1) if len(tensor) else tensor.reshape(0, 1)
    return flat.view(torch.uint8).numpy().view(f"V{flat.shape[1] * flat.element_size()}").reshape(-1)
