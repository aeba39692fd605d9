"""The rows of a checkpoint's tables, out of its files: no table is ever whole in memory, whatever ranks had held it and however they had cut it.

Of tables that grow they are those that an artifact has: `DynamicTable` tells which.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from emberline.export.dynamic_tables import DynamicTable
from emberline.export.left_out import LeftOut
from emberline.serving.quantized import STORED_DTYPES, decode_rows, encode_rows
from emberline.serving.remap import RemapParts
from emberline.train.checkpoint.dynamic_rows import DynamicRows
from emberline.train.checkpoint.stored_dynamic import DynamicNotes, StoredDynamic
from emberline.train.checkpoint.stored_rows import StoredRows
from emberline.train.checkpoint.tensors import read_index


class RowSource:
    """Reads rows of tables, as they were trained, and as an artifact gives them that stores them in other number types.

    Args:
        folder: of the checkpoint's tensors.
        dynamic: what the checkpoint says of each of its tables that grow.

    Raises:
        CheckpointError: it has no index.
    """

    def __init__(self, folder: Path, dynamic: Mapping[str, DynamicNotes] | None = None) -> None:
        index, notes = read_index(folder), dynamic or {}
        self._table = cache(
            lambda table: (
                self._dynamic(table) if table in notes else self._left_out.of_stored(table, StoredRows(folder, f"tables/{table}/weight", index))
            )
        )
        self._dynamic = cache(
            lambda table: self._laid_out(table, self._left_out.of_grown(table, DynamicRows(StoredDynamic(folder, table, notes[table], index))))
        )
        self._left_out = LeftOut()
        self._dynamic_names, self._before = frozenset(notes), dict[str, RemapParts]()
        self._instead: Mapping[str, tuple[Tensor, Tensor]] = {}
        self._types: Mapping[str, str] = {}
        self._remembered: dict[tuple[str, bytes], dict[str, Tensor]] | None = None

    def lay_over(self, before: Mapping[str, RemapParts]) -> None:
        """Say that some tables that grow are those of an artifact that has them already, with these maps. Before any of them was asked for."""
        self._before |= before

    def leave_out(self, left_out: LeftOut) -> None:
        """Give tables as if some of their ids had never owned a row. Before any of them was asked for."""
        self._left_out = left_out

    def dynamic(self, table: str) -> DynamicTable:
        """One that grows.

        Raises:
            CheckpointError: it is damaged.
            ExportError: it is laid over one in which there is no room for its new ids.
        """
        return self._dynamic(table)

    def spare_rows(self, table: str) -> int:
        """Of a table that grows: rows of zeros that no id owns yet."""
        return self._dynamic(table).spare_rows if table in self._dynamic_names else 0

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

    def take_decoded(self, table: str, ids: Tensor) -> Tensor:
        """Some rows, as they are after they were stored, for a model: int64 [n], in any order -> a new tensor [n, dim].

        The ids are numbers of rows, and raw ids where the table grows. What is read is float32 where the table is stored in another type than it was
        trained in, and else as `take` gives it.

        Raises:
            CheckpointError: a file cannot be read.
        """
        number_type = self._types.get(table)
        if self._remembered is None:
            return self._decoded(table, self._take_ids(table, ids), number_type)
        asked = (table, ids.numpy().tobytes())
        if asked not in self._remembered:
            self._remembered[asked] = {"": self._take_ids(table, ids)}
        found = self._remembered[asked]
        if (wanted := number_type or "") not in found:
            found[wanted] = self._decoded(table, found[""], number_type)
        return found[wanted].clone()

    def _take_ids(self, table: str, ids: Tensor) -> Tensor:
        return self.take(table, self._dynamic(table).find(ids) if table in self._dynamic_names else self._left_out.readable(table, ids))

    def _decoded(self, table: str, found: Tensor, number_type: str | None) -> Tensor:
        if number_type is None or STORED_DTYPES[number_type] == found.dtype:
            return found
        return decode_rows(encode_rows(found, number_type), self.dim(table), number_type)

    def store_as(self, types: Mapping[str, str]) -> None:
        """Say in which number type tables are stored; one that is not there stays as it was trained."""
        self._types = types

    @contextmanager
    def stored_as(self, types: Mapping[str, str]) -> Iterator[None]:
        """As `store_as`, meanwhile; nothing: let `take_decoded` give rows as they were trained."""
        before, self._types = self._types, types
        try:
            yield
        finally:
            self._types = before

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Keep what `take_decoded` gives, for a model that is asked the same again with tables in other types. Memory grows until the end."""
        self._remembered = {}
        try:
            yield
        finally:
            self._remembered = None

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

    def _laid_out(self, table: str, stored: DynamicRows) -> DynamicTable:
        return DynamicTable.after(stored, self._before[table]) if table in self._before else DynamicTable.new(stored)
