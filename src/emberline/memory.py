"""Memory for what is read at random. On pages of 4 KiB nearly each such read waits for an address translation; pages of 2 MiB take that away.

Linux gives huge pages only to private anonymous memory that asks for them before it is first touched, and only while it has some. Without them
everything works, more slowly.
"""

import ctypes
import mmap
from contextlib import suppress

CACHE_LINE_BYTES = 64
HUGE_PAGE_BYTES = 2 << 20


def aligned_memory(num_bytes: int) -> memoryview:
    """Zeros that may be written to, from the start of a cache line; from that of a huge page, and on such pages, where they fill one."""
    if num_bytes < HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _aligned(bytearray(num_bytes + CACHE_LINE_BYTES), CACHE_LINE_BYTES, num_bytes)
    memory = mmap.mmap(-1, num_bytes + 2 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return _aligned(memory, HUGE_PAGE_BYTES, num_bytes)


def _aligned(memory: bytearray | mmap.mmap, alignment: int, num_bytes: int) -> memoryview:
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % alignment
    return memoryview(memory)[start : start + num_bytes]
