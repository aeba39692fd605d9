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

    def take(self, rows: npt.NDArray[np.int64], into: Bytes, places: npt.NDArray[np.int64] | None = None) -> None:
        """Read some rows; a megabyte is all the memory that it needs beside them.

        Args:
            rows: int64 [n], in any order.
            into: uint8 [m, row_bytes], which may be columns of a wider array.
            places: of each row in `into`, int64 [n]; None: its place in `rows`.

        Raises:
            OSError: the file cannot be read, or ends before.
        """
        if not rows.size:
            return
        order = np.argsort(rows, kind="stable")
        wanted, places = rows[order], order if places is None else places[order]
        assert wanted[0] >= 0, wanted[0]
        assert wanted[-1] < self.num_rows, (wanted[-1], self.num_rows)
        firsts, ats = wanted.tolist(), places.tolist()
        with self.path.open("rb", buffering=0) as stream:
            for start, stop in self._runs(wanted):
                if stop - start == 1:
                    at = ats[start]
                    self._fill(stream.fileno(), firsts[start], into[at : at + 1])
                    continue
                run = np.empty((firsts[stop - 1] - firsts[start] + 1, self.row_bytes), np.uint8)
                self._fill(stream.fileno(), firsts[start], run)
                into[places[start:stop]] = run[wanted[start:stop] - firsts[start]]

    def _runs(self, wanted: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Places in `wanted`, ascending, of rows to be read in one go: first and end of each."""
        size = max(self.row_bytes, 1)
        breaks = np.flatnonzero(np.diff(wanted) > max(_GAP_BYTES // size, 1)) + 1
        most = max(_RUN_BYTES // size, 1)
        start = 0
        for end in [*breaks.tolist(), wanted.size]:
            while end - start > 1:
                stop = start + int(np.searchsorted(wanted[start:end], wanted[start] + most))
                yield start, stop
                start = stop
            if start < end:
                yield start, end
                start = end

    def _fill(self, descriptor: int, first: int, into: Bytes) -> None:
        assert into.shape[1] == self.row_bytes
        assert into.flags.c_contiguous
        view, offset = into.data.cast("B") if into.size else memoryview(b""), self.start + first * self.row_bytes
        while view:
            found = os.preadv(descriptor, [view], offset)
            if not found:
                raise OSError(f"{self.path} ends after {offset} bytes")
            view, offset = view[found:], offset + found
