"""Memory whose rows lie one after the other, some on huge pages and some in a file: one range of addresses, so that nobody who reads it need know.

    table a: 5 rows, 2 of them fast      table b: 3 rows, all fast
    [ a0 a1 | a2 a3 a4 ][ b0 b1 b2 ]     | to ]: mapped from the file

The file has no name, so nothing is left of it however the process ends. It grows as rows are given: a full disk is an error then, no signal later.
A page of the system that holds a fast row is fast as a whole.
"""

import ctypes
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from emberline.errors import CapacityError
from emberline.memory import HUGE_PAGE_BYTES

PAGE_BYTES = mmap.PAGESIZE
GROWTH_BYTES = 1 << 20
"""The file grows by at least so much at a time, up to its end, while the disk has room."""
KEPT_BYTES = 256 << 20
"""About so many bytes of mapped rows stay in this process's memory before it lets go of them: the file, and the system's cache, have them."""
_COPIED_ROWS = 1 << 14
_NO_RESERVE = 0x4000  # MAP_NORESERVE: Python's module has no name for it
_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True)
class Span:
    """One table's rows among those of a tensor.

    Args:
        name: of the table, for messages.
        first: its first row in the tensor.
        rows: how many it has.
        fast: how many of them, from the first on, are in memory; from 0 to `rows`.
    """

    name: str
    first: int
    rows: int
    fast: int


class TieredMemory:
    """Zeros: so many bytes for each row of some tables, which lie one after the other. Rows beyond the fast ones must be reserved before use.

    Args:
        row_bytes: of one row.
        spans: the tables, in order, without gaps.
        folder: of the file; None: the system's temporary folder.
        kept_bytes: about how much of the mapped part may stay in memory of this process.

    Raises:
        CapacityError: there are not so many addresses, or the folder takes no file of this size.
    """

    def __init__(self, row_bytes: int, spans: Sequence[Span], folder: Path | None = None, kept_bytes: int = KEPT_BYTES) -> None:
        self.row_bytes, self.spans, self._asked_folder = row_bytes, tuple(spans), folder
        self.num_bytes = sum(span.rows for span in spans) * row_bytes
        self._pieces = [self._piece(span) for span in self.spans]
        self._reserved = [start for start, _ in self._pieces]
        self._memory = self._reserve_addresses()
        self._base = _address(self._memory)
        self._start = -self._base % HUGE_PAGE_BYTES
        self._file = self._map_file() if self.file_bytes else None
        self._kept_bytes, self._touched = kept_bytes, 0
        self._advise()

    @property
    def folder(self) -> Path:
        """Of the file."""
        return self._asked_folder or Path(tempfile.gettempdir())

    @property
    def file_bytes(self) -> int:
        """Of the part that is mapped from the file, once all of its rows are in use."""
        return sum(stop - start for start, stop in self._pieces)

    @property
    def reserved_bytes(self) -> int:
        """Of the part that the disk has made room for."""
        return sum(map(self.reserved_of, range(len(self.spans))))

    def reserved_of(self, span: int) -> int:
        """Of that, a table's."""
        return self._reserved[span] - self._pieces[span][0]

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """All of it; the memory lives as long as the tensor does."""
        if not self.num_bytes:
            return torch.zeros(tuple(shape), dtype=dtype)
        view = memoryview(self._memory)[self._start : self._start + self.num_bytes]
        return torch.frombuffer(view, dtype=dtype).view(tuple(shape))

    def reserve(self, span: int, rows: int) -> None:
        """Have room for the first `rows` rows of a table.

        Raises:
            CapacityError: the disk has not; nothing is changed.
        """
        start, stop = self._pieces[span]
        needed = min(stop, _up((self.spans[span].first + rows) * self.row_bytes, PAGE_BYTES))
        known = self._reserved[span]
        if self._file is None or needed <= known:
            return
        ahead = min(stop, max(needed, known + max(GROWTH_BYTES, (known - start) // 4)))
        for upto in (ahead, needed):  # a disk that is nearly full may have room for these rows alone
            try:
                os.posix_fallocate(self._file, known, upto - known)
            except OSError as error:
                if upto == needed:
                    raise CapacityError(self._no_room(repr(self.spans[span].name), upto - start, error)) from error
            else:
                self._reserved[span] = upto
                return

    def let_go(self) -> None:
        """Give back the memory of mapped rows; they stay in the file, and in the system's cache of it while there is memory to spare."""
        for (start, _), upto in zip(self._pieces, self._reserved, strict=True):
            if upto > start:
                self._memory.madvise(mmap.MADV_DONTNEED, self._start + start, upto - start)

    def touched(self, rows: int) -> None:
        """Take note that so many mapped rows were read or written."""
        self._touched += rows * max(PAGE_BYTES, self.row_bytes)
        if self._touched > self._kept_bytes:
            self._touched = 0
            self.let_go()

    def copy(self, read: Callable[[Tensor], Tensor], rows: Tensor, like: Tensor) -> Tensor:
        """Rows, int64 [n], of any number: in memory, or in a file like this one's where they are more than may stay in memory.

        Args:
            read: reads some rows.
            rows: which.
            like: has rows of the same shape and dtype.

        Raises:
            CapacityError: the disk has no room.
        """
        row_bytes = int(np.prod(like.shape[1:], dtype=np.int64)) * like.itemsize
        if len(rows) * row_bytes <= self._kept_bytes:
            return read(rows)
        memory = TieredMemory(row_bytes, [Span(f"a copy of {self._names()}", 0, len(rows), 0)], self.folder, self._kept_bytes)
        memory.reserve(0, len(rows))
        copied = memory.tensor((len(rows), *like.shape[1:]), like.dtype)
        for start in range(0, len(rows), _COPIED_ROWS):
            own = rows[start : start + _COPIED_ROWS]
            copied[start : start + _COPIED_ROWS] = read(own)
            memory.touched(len(own))
            self.touched(len(own))
        return copied

    def will_need(self, row: int, rows: int = 1) -> None:
        """Ask the system to read some rows from the file soon, where it has them."""
        first, last = row * self.row_bytes // PAGE_BYTES * PAGE_BYTES, min(self.num_bytes, (row + rows) * self.row_bytes)
        with suppress(OSError):  # advice
            self._memory.madvise(mmap.MADV_WILLNEED, self._start + first, last - first)

    def _piece(self, span: Span) -> tuple[int, int]:
        """Where the file's part of a table begins and ends: at whole pages, none of which holds a row of the next table."""
        start = _up((span.first + span.fast) * self.row_bytes, PAGE_BYTES)
        end = (span.first + span.rows) * self.row_bytes
        stop = _up(end, PAGE_BYTES) if end == self.num_bytes else end // PAGE_BYTES * PAGE_BYTES
        return (start, stop) if span.fast < span.rows and start < stop else (start, start)

    def _reserve_addresses(self) -> mmap.mmap:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        try:
            return mmap.mmap(-1, _up(self.num_bytes, HUGE_PAGE_BYTES) + 2 * HUGE_PAGE_BYTES, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise CapacityError(f"{self._names()}: {self.num_bytes:,} bytes of addresses cannot be had ({error}); lower max_capacity") from error

    def _map_file(self) -> int:
        """The file, mapped over its parts of the range."""
        try:
            with tempfile.TemporaryFile(dir=self.folder) as opened:
                file = os.dup(opened.fileno())
            weakref.finalize(self, os.close, file)
            os.ftruncate(file, _up(self.num_bytes, PAGE_BYTES))
            for start, stop in self._pieces:
                if stop > start:
                    _map_over(self._base + self._start + start, stop - start, file, start)
        except OSError as error:
            raise CapacityError(self._no_room(self._names(), self.file_bytes, error)) from error
        return file

    def _advise(self) -> None:
        """Huge pages for what is in memory; nothing read ahead of what is in the file, where rows are read at random."""
        for advice, parts in ((mmap.MADV_HUGEPAGE, self._anonymous()), (mmap.MADV_RANDOM, self._pieces)):
            for start, stop in parts:
                if stop > start:
                    with suppress(OSError):  # a kernel without them
                        self._memory.madvise(advice, self._start + start, stop - start)

    def _anonymous(self) -> Iterator[tuple[int, int]]:
        """Whole pages that are not the file's."""
        begin = 0
        for start, stop in [*self._pieces, (_up(self.num_bytes, PAGE_BYTES), 0)]:
            if start - begin >= HUGE_PAGE_BYTES:
                yield begin, start
            begin = max(begin, stop)

    def _names(self) -> str:
        return ", ".join(repr(span.name) for span in self.spans)

    def _no_room(self, names: str, num_bytes: int, error: OSError) -> str:
        reason = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        return (
            f"table {names}: {num_bytes:,} bytes for rows beyond the fast tier cannot be had in {self.folder}: {reason}; "
            "free some room, choose a folder on a larger disk, or lower max_capacity"
        )


def are_first(rows: Tensor, spans: Sequence[Span]) -> Tensor:
    """Which rows, integers [n], are among the fast ones of their table: bool [n]."""
    ends = torch.tensor([span.first + span.rows for span in spans])
    fast = torch.tensor([span.first + span.fast for span in spans])
    return rows < fast[torch.searchsorted(ends, rows, right=True)]


def _map_over(address: int, num_bytes: int, file: int, offset: int) -> None:
    """Map a part of a file over addresses that are ours already."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    found = libc.mmap(address, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED, file, offset)
    if found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _up(number: int, to: int) -> int:
    return -(-number // to) * to
