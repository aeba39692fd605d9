"""Rows of one length that lie one after the other in a file, read by their numbers: what a map of the file would show, without memory for it.

Pages of a mapped file count as memory of the process, and touching one brings its neighbours with it. What is read here goes into memory of the
caller's, and nowhere else in the process.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
_GAP_BYTES = 4096
"""Rows that are no further apart are read in one go: that costs no more than a second call."""
_RUN_BYTES = 1 << 20
"""Most bytes to read in one go for rows that are picked."""


@dataclass(frozen=True)
class FileRows:
    """Where rows lie.

    Args:
        path: of the file.
        start: where the first row begins, in bytes.
        num_rows: rows.
        row_bytes: bytes of each row.
    """

    path: Path
    start: int
    num_rows: int
    row_bytes: int

    def read(self, first: int, into: Bytes) -> None:
        """Fill `into`, uint8 [n, row_bytes] without gaps, with the rows from `first` on.

        Raises:
            OSError: the file cannot be read, or ends before.
        """
        assert 0 <= first <= first + len(into) <= self.num_rows, (first, into.shape, self.num_rows)
        with self.path.open("rb", buffering=0) as stream:
            self._fill(stream.fileno(), first, into)

    def take(self, rows: npt.NDArray[np.int64], into: Bytes) -> None:
        """Fill `into`, uint8 [n, row_bytes], with some rows, int64 [n] in any order; memory for a megabyte is all that it needs beside it.

        Raises:
            OSError: the file cannot be read, or ends before.
        """
        if not rows.size:
            return
        order = np.argsort(rows, kind="stable")
        wanted = rows[order]
        assert wanted[0] >= 0, wanted[0]
        assert wanted[-1] < self.num_rows, (wanted[-1], self.num_rows)
        with self.path.open("rb", buffering=0) as stream:
            for start, stop in self._runs(wanted):
                first, last = int(wanted[start]), int(wanted[stop - 1])
                run = np.empty((last - first + 1, self.row_bytes), np.uint8)
                self._fill(stream.fileno(), first, run)
                into[order[start:stop]] = run[wanted[start:stop] - first]

    def _runs(self, wanted: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Places in `wanted`, ascending, of rows to be read in one go: first and end of each."""
        size = max(self.row_bytes, 1)
        breaks = np.flatnonzero(np.diff(wanted) > max(_GAP_BYTES // size, 1)) + 1
        most = max(_RUN_BYTES // size, 1)
        start = 0
        for end in [*breaks.tolist(), wanted.size]:
            while start < end:
                stop = start + int(np.searchsorted(wanted[start:end], wanted[start] + most))
                yield start, stop
                start = stop

    def _fill(self, descriptor: int, first: int, into: Bytes) -> None:
        assert into.shape[1] == self.row_bytes
        assert into.flags.c_contiguous
        view, offset = into.reshape(-1).data, self.start + first * self.row_bytes
        while view:
            found = os.preadv(descriptor, [view], offset)
            if not found:
                raise OSError(f"{self.path} ends after {offset} bytes")
            view, offset = view[found:], offset + found
