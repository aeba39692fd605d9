"""What changed in one table between two states: rows bit by bit, in blocks, and raw ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from emberline.delta_manifest import IdChange, TableChange
from emberline.export.table_rows import TableRows
from emberline.manifest import FileEntry
from emberline.serving.deltas import ChangedIds
from emberline.serving.deltas.changes import find_places
from emberline.serving.files import InBlocks, write_tensors
from emberline.serving.remap import RemapParts
from emberline.serving.rows_on_disk import RowsOnDisk
from emberline.train.data.prefetch import Prefetch

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def find_changed_rows(before: RowsOnDisk, now: TableRows) -> Tensor:
    """The rows whose bits differ: int64 [M], ascending. A zero whose sign changed has changed.

    Args:
        before: as many rows as there are now, stored in the same number type.
        now: the table.

    Raises:
        ArtifactError: a file of the artifact cannot be read.
        CheckpointError: the same of the checkpoint.
        ExportError: a row holds NaN, infinity, or more than its number type can, now.
    """
    assert before.shape == (now.num_rows, now.width), (before.shape, now.num_rows)
    found, first = [torch.empty(0, dtype=torch.int64)], 0
    with Prefetch(now.blocks(), depth=1) as blocks:
        for block in blocks:
            differ = (_bits(before.read(first, first + len(block))) != _bits(block)).any(dim=1)
            found.append(differ.nonzero().flatten() + first)
            first += len(block)
    return torch.cat(found)


def find_id_changes(before: RemapParts, now: RemapParts) -> ChangedIds:
    """What came, moved or went between two maps."""
    places, is_there = find_places(now.raw_ids, before.raw_ids)
    same = is_there.clone()
    same[is_there] = before.rows[places[is_there]] == now.rows[is_there]
    gone = ~find_places(before.raw_ids, now.raw_ids)[1]
    return ChangedIds(now.raw_ids[~same], now.rows[~same], before.raw_ids[gone])


@dataclass(frozen=True, eq=False)
class Changes:
    """What changed in one table.

    Args:
        now: the table.
        places: int64 [M], ascending: the rows that are other vectors now.
        ids: None where no raw id changed.
        num_ids: raw ids that own a row now.
    """

    now: TableRows
    places: Tensor
    ids: ChangedIds | None = None
    num_ids: int = 0

    @property
    def prefix(self) -> str:
        """What the names of its tensors begin with."""
        return f"{self.now.spec.name}/"

    def blocks(self) -> Iterator[Tensor]:
        """The changed rows as they are now, in order."""
        return map(self.now.take, torch.split(self.places, self.now.block_rows))

    def described(self, file: str) -> TableChange:
        """What the manifest says of it, where all of it is in `file`."""
        ids = None if self.ids is None else IdChange(file=file, came=self.ids.came_ids.numel(), went=self.ids.went_ids.numel(), num_ids=self.num_ids)
        num_rows = self.places.numel()
        return TableChange(table=self.now.spec.name, file=file if num_rows else None, rows=num_rows, ids=ids, prefix=self.prefix)


def write_changes(path: Path, changes: Sequence[Changes]) -> FileEntry:
    """Write what changed in some tables as one file, rows block by block. Large numbers come first, so that each lies at a multiple of its size.

    Returns:
        Size and digests of the file.
    """
    tensors: dict[str, Tensor | InBlocks] = {}
    for change in changes:
        if change.ids is not None:
            tensors |= {f"{change.prefix}{field.name}": getattr(change.ids, field.name) for field in fields(change.ids)}
        if change.places.numel():
            tensors[f"{change.prefix}places"] = change.places
    for change in sorted(changes, key=lambda change: change.now.dtype.itemsize, reverse=True):
        if num_rows := change.places.numel():
            tensors[f"{change.prefix}rows"] = InBlocks((num_rows, change.now.width), change.now.dtype, change.blocks())
    return write_tensors(path, tensors)


def _bits(rows: Tensor) -> Tensor:
    return rows.contiguous().view(_BITS[rows.element_size()])
