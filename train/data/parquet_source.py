"""Parquet files: footers are read first (rows, columns), then row group after row group as record batches."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from emberline.errors import DataError
from emberline.train.data.source import Fragment

SUFFIXES = (".parquet", ".pq")
_READ_AHEAD_BYTES = 1 << 20


class ParquetSource:
    """Parquet files, of which only the columns named are read.

    Args:
        files: in order.
        columns: names of top-level columns.

    Raises:
        DataError: a file cannot be opened, is no parquet file, or lacks a column; names file and column, and lists what is there.
    """

    def __init__(self, files: Sequence[Path], columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._footers: dict[Path, pq.FileMetaData] = {}
        fragments: list[Fragment] = []
        for path in files:
            footer = self._read_footer(path)
            self._footers[path] = footer
            first_row = 0
            for index in range(footer.num_row_groups):
                num_rows = footer.row_group(index).num_rows
                fragments.append(Fragment(path, index, first_row, num_rows))
                first_row += num_rows
        self.fragments = tuple(fragments)

    def _read_footer(self, path: Path) -> pq.FileMetaData:
        with open_parquet(path) as file:
            footer, names = file.metadata, file.schema_arrow.names
        check_columns(path, self._columns, names)
        return footer

    def read(self, fragment: Fragment, chunk_rows: int) -> Iterator[Any]:
        """Record batches of one row group."""
        try:
            with pq.ParquetFile(fragment.path, metadata=self._footers[fragment.path], buffer_size=_READ_AHEAD_BYTES) as file:
                yield from file.iter_batches(batch_size=chunk_rows, row_groups=[fragment.index], columns=self._columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{fragment.path} is damaged in row group {fragment.index} (rows from {fragment.first_row}): {error}") from error


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file with its footer and schema read.

    Raises:
        DataError: it is missing, or no parquet file.
    """
    try:
        file = pq.ParquetFile(path)
        _ = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error
    return file


def check_columns(path: Path, wanted: Sequence[str], there: Sequence[str]) -> None:
    """Refuse a file without a wanted column, or with one twice.

    Raises:
        DataError: names the file and every such column, and lists what is there.
    """
    missing = [name for name in wanted if name not in there]
    if missing:
        near = difflib.get_close_matches(missing[0], there, n=1)
        hint = f" (is {near[0]!r} meant?)" if near else ""
        names = ", ".join(map(repr, missing))
        raise DataError(f"{path} has no column {names}{hint}; there are: {', '.join(there) or 'none'}")
    for name in wanted:
        if there.count(name) > 1:
            raise DataError(f"{path} has the column {name!r} {there.count(name)} times")
