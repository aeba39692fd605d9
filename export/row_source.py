"""The rows of a checkpoint's tables, out of its files: no table is ever whole in memory, whatever ranks had held it and however they had cut it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from emberline.train.checkpoint.stored_rows import StoredRows
from emberline.train.checkpoint.tensors import read_index


class RowSource:
    """Reads rows of tables, as they were trained.

    Args:
        folder: of the checkpoint's tensors.

    Raises:
        CheckpointError: it has no index.
    """

    def __init__(self, folder: Path) -> None:
        index = read_index(folder)
        self._table = cache(lambda table: StoredRows(folder, f"tables/{table}/weight", index))
        self._instead: Mapping[str, tuple[Tensor, Tensor]] = {}

    def rows(self, table: str) -> int:
        """Rows of a table."""
        return int(self._table(table).shape[0])

    def dim(self, table: str) -> int:
        """Numbers of each row."""
        return int(self._table(table).shape[1])

    def dtype(self, table: str) -> torch.dtype:
        """Number type of a table's rows."""
        return self._table(table).dtype

    def blocks(self, table: str, max_rows: int) -> Iterator[Tensor]:
        """All rows in order, in new tensors [n, dim] of at most `max_rows` each.

        Raises:
            CheckpointError: a file cannot be read.
        """
        for first in range(0, self.rows(table), max_rows):
            yield self._table(table).read(first, min(first + max_rows, self.rows(table)))

    def take(self, table: str, rows: Tensor) -> Tensor:
        """Some rows: int64 [n], in any order -> a new tensor [n, dim].

        Raises:
            CheckpointError: a file cannot be read.
        """
        found = self._table(table).take(rows)
        if table in self._instead:
            places, vector = self._instead[table]
            found[torch.isin(rows, places)] = vector
        return found

    @contextmanager
    def instead(self, vectors: Mapping[str, tuple[Tensor, Tensor]]) -> Iterator[None]:
        """Let `take` give other vectors meanwhile.

        Args:
            vectors: by table: rows int64 [K], and the vector [dim] that each of them has then.
        """
        before, self._instead = self._instead, vectors
        try:
            yield
        finally:
            self._instead = before
