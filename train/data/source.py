"""What a reader needs of a file format: files cut into fragments, each read as Arrow record batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Fragment:
    """A part of one file that is read in order: a parquet row group, or a whole CSV file.

    Args:
        path: the file.
        index: which part of the file.
        first_row: rows of the file before it.
        num_rows: None where only reading it tells.
    """

    path: Path
    index: int = 0
    first_row: int = 0
    num_rows: int | None = None


class Source(Protocol):
    """The files of one reader."""

    fragments: tuple[Fragment, ...]

    def read(self, fragment: Fragment, chunk_rows: int) -> Iterator[Any]:
        """Record batches of at most `chunk_rows` rows (CSV: of a block of the file), in file order.

        Raises:
            DataError: the file is damaged or lacks a column; names file and column.
        """
        ...


def count_rows(source: Source) -> int | None:
    """The rows of all files; None where some would have to be read to know."""
    counts = [fragment.num_rows for fragment in source.fragments]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
