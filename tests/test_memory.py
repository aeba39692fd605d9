"""Memory from the start of a cache line or a huge page."""

import ctypes
from pathlib import Path

import pytest

from emberline.memory import (
    CACHE_LINE_BYTES,
    HUGE_PAGE_BYTES,
    aligned_memory,
    bytes_on_huge_pages,
    give_back_free_memory,
    try_huge_pages,
    why_no_huge_pages,
)


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


SMAPS = """7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      4096 kB
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:         0 kB
7f0000800000-7f0000c00000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
"""
BEGIN = 0x7F0000000000


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        ([], 0),
        ([(BEGIN, 4 << 20)], 4 << 20),
        ([(BEGIN, 1 << 20)], 1 << 20),
        ([(BEGIN + (4 << 20), 4 << 20)], 0),
        ([(BEGIN, 12 << 20)], 6 << 20),
        ([(BEGIN, 1 << 20), (BEGIN + (9 << 20), 1 << 20)], (1 << 20) + (1 << 19)),
        ([(BEGIN, 0), (0, 5)], 0),
    ],
)
def test_parts_count_with_their_share_of_a_mapping(tmp_path: Path, parts: list[tuple[int, int]], want: int) -> None:
    (tmp_path / "smaps").write_bytes(b"7effff000000-7effff001000 r--p 00000000 fe:00 7 /models/\xff\n" + SMAPS.encode())
    assert bytes_on_huge_pages(parts, tmp_path / "smaps") == want


def test_a_system_that_does_not_tell_of_huge_pages(tmp_path: Path) -> None:
    assert bytes_on_huge_pages([(0, 1)], tmp_path / "absent") is None


def test_memory_that_was_not_touched_is_on_no_huge_page() -> None:
    memory = aligned_memory(4 * HUGE_PAGE_BYTES)
    assert bytes_on_huge_pages([(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory))]) in (0, None)


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "this system has none"), ("always madvise [never]", "told to give none: as root, echo madvise > ")]
)
def test_the_reason_is_told(tmp_path: Path, text: str | None, reason: str) -> None:
    setting = tmp_path / "enabled"
    if text is not None:
        setting.write_text(text)
    assert reason in why_no_huge_pages(setting)


def test_a_trial_tells_a_share() -> None:
    share = try_huge_pages()
    assert share is None or 0 <= share <= 1


def test_memory_that_is_in_use_is_not_given_back() -> None:
    kept = [bytearray(b"x" * 100_000) for _ in range(100)]
    del kept[::2]
    give_back_free_memory()
    assert all(part == b"x" * 100_000 for part in kept)
