"""Memory for tables. Rows are read at random, so on pages of 4 KiB nearly each read waits for an address translation; 2 MiB pages take that away.

Linux gives huge pages only to private anonymous memory that asks for them before it is first touched, and only while it has some. Without them
everything works, more slowly.
"""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20


def table_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros of this shape, on huge pages where the system has them; memory that holds no whole huge page is ordinary."""
    numbers = math.prod(shape)
    num_bytes = numbers * dtype.itemsize
    if num_bytes < HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes + 2 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE_PAGE_BYTES
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE, start, -(-num_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
    return torch.frombuffer(memory, dtype=dtype, count=numbers, offset=start).view(*shape)
