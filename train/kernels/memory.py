"""Memory for tables. Rows are read at random, so on pages of 4 KiB nearly each read waits for an address translation; 2 MiB pages take that away.

Linux gives huge pages only to private anonymous memory that asks for them before it is first touched, and only while it has some. Without them
everything works, more slowly.
"""

import math
import mmap
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20
_MAPS = Path("/proc/self/smaps")


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


def huge_page_share(tensor: Tensor) -> float:
    """How much of a tensor's memory lies on huge pages, from 0 to 1; 0 where the system does not say.

    Linux counts by mapping, and a mapping may hold more than the tensor: then the answer is the mapping's.
    """
    if sys.platform != "linux" or not _MAPS.exists():
        return 0.0
    address, size, huge = tensor.data_ptr(), 0, 0
    inside = False
    for line in _MAPS.read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds:
            first, end = (int(number, 16) for number in bounds.groups())
            inside = first <= address < end
        elif inside and line.startswith("Rss:"):
            size = int(line.split()[1])
        elif inside and line.startswith("AnonHugePages:"):
            huge = int(line.split()[1])
    return huge / size if size else 0.0
