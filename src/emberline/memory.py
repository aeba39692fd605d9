"""Memory for what is read at random. On pages of 4 KiB nearly each such read waits for an address translation; pages of 2 MiB take that away.

Linux gives huge pages only to private anonymous memory that asks for them before it is first touched, and only while it has some. Without them
everything works, more slowly.
"""

import ctypes
import mmap
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

CACHE_LINE_BYTES = 64
HUGE_PAGE_BYTES = 2 << 20
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SMAPS = Path("/proc/self/smaps")
_GET_THP_DISABLE = 42
_NO_RESERVE = 0x4000  # MAP_NORESERVE, for which Python's module has no name yet
_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
_TRIAL_BYTES = 8 * HUGE_PAGE_BYTES


def aligned_memory(num_bytes: int, *, may_exceed: bool = False) -> memoryview:
    """Zeros that may be written to, from the start of a cache line; from that of a huge page, and on such pages, where they fill one.

    Args:
        num_bytes: how many.
        may_exceed: let it be more than the system has: only what is touched counts.

    Raises:
        OSError: there is not so much memory.
    """
    if num_bytes < HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _aligned(bytearray(num_bytes + CACHE_LINE_BYTES), CACHE_LINE_BYTES, num_bytes)
    memory = mmap.mmap(-1, num_bytes + 2 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | may_exceed * _NO_RESERVE)
    with suppress(OSError):  # a kernel without them
        # Whole huge pages and nothing around them: the system then keeps count of them apart from other memory.
        memory.madvise(mmap.MADV_HUGEPAGE, _start(memory, HUGE_PAGE_BYTES), -(-num_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
    return _aligned(memory, HUGE_PAGE_BYTES, num_bytes)


def bytes_on_huge_pages(parts: Iterable[tuple[int, int]], smaps: Path = SMAPS) -> int | None:
    """How many bytes of some memory of this process lie on huge pages; None where the system does not tell.

    The system tells it of whole mappings: of one that holds other memory too, a part counts with its share.

    Args:
        parts: the address and the size in bytes of each part; they do not overlap.
        smaps: where the system tells it.
    """
    try:
        lines = smaps.read_text(errors="replace").splitlines()  # names of mapped files may be any bytes
    except OSError:
        return None
    wanted, found = [(start, start + size) for start, size in parts if size], 0.0
    for first, stop, huge in _huge_mappings(lines):
        own = sum(max(0, min(stop, end) - max(first, start)) for start, end in wanted)
        found += huge * own / (stop - first)
    return round(found)


def _huge_mappings(lines: Iterable[str]) -> Iterator[tuple[int, int, int]]:
    """The first address, the end and the bytes on huge pages of each mapping that has some, as `smaps` tells."""
    first = stop = 0
    for line in lines:
        if match := _RANGE.match(line):
            first, stop = int(match[1], 16), int(match[2], 16)
        elif line.startswith("AnonHugePages:") and (huge := 1024 * int(line.split()[1])):
            yield first, stop, huge


def why_no_huge_pages(setting: Path = HUGE_PAGES) -> str:
    """Why memory that asks for huge pages may not get any, in a few words."""
    if not setting.is_file():
        return "this system has none"
    if "[never]" in setting.read_text():
        return f"the system is told to give none: as root, echo madvise > {setting}"
    if ctypes.CDLL(None).prctl(_GET_THP_DISABLE, 0, 0, 0, 0) == 1:
        return "they are switched off for this process, by prctl or by the service manager that started it"
    return "no 2 MiB of free memory lie together, or the cgroup's limit is near: free some, or start before other programs fill it"


def try_huge_pages() -> float | None:
    """The share of some new memory that is on huge pages, of 1; None where the system does not tell."""
    memory = aligned_memory(_TRIAL_BYTES)
    memory[:] = bytes(_TRIAL_BYTES)
    found = bytes_on_huge_pages([(ctypes.addressof(ctypes.c_char.from_buffer(memory)), _TRIAL_BYTES)])
    return None if found is None else found / _TRIAL_BYTES


def give_back_free_memory() -> None:
    """Give the system what this process freed and keeps for later, where its C library can do so: after much was made and let go of again."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _aligned(memory: bytearray | mmap.mmap, alignment: int, num_bytes: int) -> memoryview:
    start = _start(memory, alignment)
    return memoryview(memory)[start : start + num_bytes]


def _start(memory: bytearray | mmap.mmap, alignment: int) -> int:
    return -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % alignment
