"""The rows of one table as an artifact has them: those that were trained, and after them rows for unknown ids; never whole in memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emberline.errors import ExportError
from emberline.export.row_source import RowSource
from emberline.schema import TableSpec

_BLOCKS_AT_ONCE = 8
"""Blocks that may be in memory together: one that is read, with a part of it where tables are cut by columns, one that waits, one that is checked and
encoded, and two that are written."""
_MOST_BLOCK_BYTES = 16 << 20
"""Larger blocks are no faster."""


@dataclass(frozen=True, eq=False)
class TableRows:
    """Reads a table block by block.

    Args:
        spec: the table, as it was trained.
        source: reads the trained rows.
        memory: bytes that all blocks together may take.
        more: rows [dim] after the trained ones.
    """

    spec: TableSpec
    source: RowSource
    memory: int
    more: Sequence[Tensor] = ()

    @property
    def num_rows(self) -> int:
        """Rows, with those after the trained ones."""
        return self.spec.rows + len(self.more)

    @property
    def block_rows(self) -> int:
        """Rows of a block, at least one."""
        block = min(self.memory // _BLOCKS_AT_ONCE, _MOST_BLOCK_BYTES)
        return max(1, block // max(1, self.spec.dim * self.source.dtype(self.spec.name).itemsize))

    def blocks(self) -> Iterator[Tensor]:
        """All rows in order, in new tensors [n, dim]; the last one has the rows after the trained ones.

        Raises:
            CheckpointError: a file cannot be read.
            ExportError: a row holds NaN or infinity; names the first.
        """
        first = 0
        for block in self.source.blocks(self.spec.name, self.block_rows):
            _require_finite(self.spec, first, block)
            yield block
            first += len(block)
        if self.more:
            yield torch.stack(list(self.more))

    def take(self, places: Tensor) -> Tensor:
        """Some rows: [M, dim], for places int64 [M], ascending."""
        own, after = places[places < self.spec.rows], places[places >= self.spec.rows]
        rows = self.source.take(self.spec.name, own)
        return torch.cat([rows, torch.stack(list(self.more))[after - self.spec.rows]]) if after.numel() else rows


RowsOf = Callable[[TableSpec], TableRows]


def _require_finite(spec: TableSpec, first: int, rows: Tensor) -> None:
    """Refuse a block, whose first row is row `first` of the table, that no artifact may hold."""
    if bool(rows.sum(dtype=torch.float32).isfinite()):  # which it is not where one number is not, and seldom else
        return
    finite = rows.isfinite()
    if not bool(finite.all()):
        row = first + int((~finite.all(dim=1)).nonzero()[0])
        raise ExportError(f"table {spec.name!r}: row {row} holds NaN or infinity; the training has diverged: export an earlier step")
