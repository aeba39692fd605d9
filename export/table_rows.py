"""The rows of one table as an artifact has them: those that were trained, and after them rows for unknown ids, in the number type that they are
stored in; never whole in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emberline.errors import ExportError
from emberline.export.row_source import RowSource
from emberline.export.table_errors import TableErrors
from emberline.schema import TableSpec
from emberline.serving.quantized import STORED_DTYPES, decode_rows, encode_rows, find_overflow, stored_width

_BLOCKS_AT_ONCE = 16
"""Blocks that may be in memory together: one that is read, with a part of it where tables are cut by columns, one that waits, one that is checked and
encoded, two that are written; and as many again that the allocator keeps for its threads.
"""
_MOST_BLOCK_BYTES = 2 << 20
"""Larger blocks are slower: each takes fresh pages of the system, and leaves the processor's cache before it is hashed and written."""
_ENCODED_NUMBERS = 1 << 18
"""Numbers that are encoded at a time, which takes several times their memory."""


@dataclass(frozen=True, eq=False)
class TableRows:
    """Reads a table block by block.

    Args:
        spec: the table, as it was trained; of one that grows with as many rows as the artifact has of it.
        source: reads the trained rows.
        memory: bytes that all blocks together may take.
        more: rows [dim] after the trained ones.
        stored: the number type that rows are stored in; empty: as they were trained.
        errors: takes in the trained rows that `blocks` gives, as they were trained and as they are stored, where the types differ.
    """

    spec: TableSpec
    source: RowSource
    memory: int
    more: Sequence[Tensor] = ()
    stored: str = ""
    errors: TableErrors | None = None

    @property
    def num_rows(self) -> int:
        """Rows, with those after the trained ones."""
        return self.spec.rows + len(self.more)

    @property
    def spare_rows(self) -> int:
        """Of the trained rows, those that no id owns yet."""
        return self.source.spare_rows(self.spec.name)

    @property
    def number_type(self) -> str:
        """The number type that rows are stored in."""
        return self.stored or self.spec.dtype

    @property
    def width(self) -> int:
        """Elements of a stored row."""
        return stored_width(self.spec.dim, self.number_type)

    @property
    def dtype(self) -> torch.dtype:
        """The type of an element of a stored row."""
        return STORED_DTYPES[self.number_type]

    @property
    def block_rows(self) -> int:
        """Rows of a block, at least one."""
        block = min(self.memory // _BLOCKS_AT_ONCE, _MOST_BLOCK_BYTES)
        return max(1, block // max(1, self.spec.dim * self.source.dtype(self.spec.name).itemsize))

    def blocks(self) -> Iterator[Tensor]:
        """All rows in order, in new tensors [n, width]; the last one has the rows after the trained ones.

        Raises:
            CheckpointError: a file cannot be read.
            ExportError: a row holds NaN or infinity, or more than its number type can hold; names the first.
        """
        first = 0
        for block in self.source.blocks(self.spec.name, self.block_rows):
            _require_finite(self.spec, first, block)
            yield self._as_stored(block, range(first, first + len(block)), self.errors)
            first += len(block)
        if self.more:
            yield self._as_stored(torch.stack(list(self.more)), range(first, self.num_rows))

    def take(self, places: Tensor) -> Tensor:
        """Some rows: [M, width], for places int64 [M], ascending."""
        own, after = places[places < self.spec.rows], places[places >= self.spec.rows]
        rows = self.source.take(self.spec.name, own)
        return self._as_stored(torch.cat([rows, torch.stack(list(self.more))[after - self.spec.rows]]) if after.numel() else rows, places)

    def _as_stored(self, rows: Tensor, places: range | Tensor, errors: TableErrors | None = None) -> Tensor:
        """Rows [n, dim] encoded, which have these places in the table."""
        if self.number_type == self.spec.dtype:
            return rows
        found = torch.empty(len(rows), self.width, dtype=self.dtype)
        step = max(1, _ENCODED_NUMBERS // self.spec.dim)
        for part, into in zip(torch.split(rows, step), torch.split(found, step), strict=True):
            into.copy_(encode_rows(part, self.number_type))
            if errors is not None:
                errors.add(part, decode_rows(into, self.spec.dim, self.number_type))
        if (row := find_overflow(found, self.number_type)) is not None:
            holds = f"row {int(places[row])} holds {rows[row].abs().max().item():.6g}"
            wider = f"leave it as it was trained: --quantize {self.spec.name}=fp32"
            raise ExportError(f"table {self.spec.name!r}: {holds}, which is more than {self.number_type} can hold; {wider}")
        return found


def _require_finite(spec: TableSpec, first: int, rows: Tensor) -> None:
    """Refuse a block, whose first row is row `first` of the table, that no artifact may hold."""
    if rows.dtype == torch.float32:  # a sum is finite only where all is; numpy's has one thread, and torch's wait for each other beside other work
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.add.reduce(rows.numpy(), axis=None)):
                return
    finite = rows.isfinite()
    if not bool(finite.all()):
        row = first + int((~finite.all(dim=1)).nonzero()[0])
        raise ExportError(f"table {spec.name!r}: row {row} holds NaN or infinity; the training has diverged: export an earlier step")
