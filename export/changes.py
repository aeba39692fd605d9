"""What changed in one table between two states: rows bit by bit, in blocks, and raw ids."""

from pathlib import Path

import torch
from torch import Tensor

from emberline.delta_manifest import IdChange
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


def write_changed_rows(path: Path, now: TableRows, places: Tensor) -> FileEntry:
    """Write some rows of a table, as `TableChange` tells, block by block.

    Returns:
        Size and sha256 of the file.
    """
    path.parent.mkdir(exist_ok=True)
    blocks = (now.take(part) for part in torch.split(places, now.block_rows))
    return write_tensors(path, {"places": places, "rows": InBlocks((places.numel(), now.width), now.dtype, blocks)})


def find_id_changes(before: RemapParts, now: RemapParts) -> ChangedIds:
    """What came, moved or went between two maps."""
    places, is_there = find_places(now.raw_ids, before.raw_ids)
    same = is_there.clone()
    same[is_there] = before.rows[places[is_there]] == now.rows[is_there]
    gone = ~find_places(before.raw_ids, now.raw_ids)[1]
    return ChangedIds(now.raw_ids[~same], now.rows[~same], before.raw_ids[gone])


def write_id_changes(root: Path, file: str, change: ChangedIds, num_ids: int) -> IdChange:
    """Write them to `root/file`."""
    (root / file).parent.mkdir(exist_ok=True)
    write_tensors(root / file, {"came_ids": change.came_ids, "came_rows": change.came_rows, "went_ids": change.went_ids})
    return IdChange(file=file, came=change.came_ids.numel(), went=change.went_ids.numel(), num_ids=num_ids)


def _bits(rows: Tensor) -> Tensor:
    return rows.contiguous().view(_BITS[rows.element_size()])
