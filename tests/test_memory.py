"""Memory from the start of a cache line or a huge page."""

import ctypes

import pytest

from emberline.memory import CACHE_LINE_BYTES, HUGE_PAGE_BYTES, aligned_memory


@pytest.mark.parametrize(
    ("num_bytes", "alignment"),
    [
        (0, 1),
        (1, CACHE_LINE_BYTES),
        (1000, CACHE_LINE_BYTES),
        (HUGE_PAGE_BYTES - 1, CACHE_LINE_BYTES),
        (HUGE_PAGE_BYTES, HUGE_PAGE_BYTES),
        (3 * HUGE_PAGE_BYTES + 5, HUGE_PAGE_BYTES),
    ],
)
def test_memory_is_aligned_zeros_that_may_be_written(num_bytes: int, alignment: int) -> None:
    memory = aligned_memory(num_bytes)
    assert (len(memory), memory.readonly, memory.tobytes().count(0)) == (num_bytes, False, num_bytes)
    if num_bytes:
        assert ctypes.addressof(ctypes.c_char.from_buffer(memory)) % alignment == 0
        memory[-1] = 7
        assert memory[-1] == 7
