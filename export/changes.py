"""What changed in one table between two states: rows bit by bit, in blocks, and raw ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from emberline.delta_manifest import IdChange
from emberline.serving.deltas import ChangedIds
from emberline.serving.deltas.changes import find_places
from emberline.serving.files import InBlocks, write_tensors
from emberline.serving.remap import RemapParts

_BLOCK_BYTES = 16 << 20
_BITS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, eq=False)
class TableState:
    """A table as it is now, never copied whole.

    Args:
        trained: [rows, dim].
        more: rows [dim] that an artifact has after the trained ones.
    """

    trained: Tensor
    more: Sequence[Tensor] = ()

    @property
    def num_rows(self) -> int:
        """Rows, with those after the trained ones."""
        return self.trained.shape[0] + len(self.more)

    @property
    def block_rows(self) -> int:
        """Rows to look at at a time."""
        return max(1, _BLOCK_BYTES // max(1, self.trained.shape[1] * self.trained.element_size()))

    def take(self, places: Tensor) -> Tensor:
        """Some rows: [M, dim], for places int64 [M], ascending."""
        num_trained = self.trained.shape[0]
        own, after = places[places < num_trained], places[places >= num_trained]
        rows = self.trained.index_select(0, own)
        return torch.cat([rows, torch.stack(list(self.more))[after - num_trained]]) if after.numel() else rows


def find_changed_rows(before: Tensor, now: TableState) -> Tensor:
    """The rows whose bits differ: int64 [M], ascending. A zero whose sign changed has changed.

    Args:
        before: [rows, dim], as many as there are now, of the same number type.
        now: the table.
    """
    assert before.shape == (now.num_rows, now.trained.shape[1]), (before.shape, now.num_rows)
    assert before.dtype == now.trained.dtype, (before.dtype, now.trained.dtype)
    found = [torch.empty(0, dtype=torch.int64)]
    for start in range(0, now.num_rows, now.block_rows):
        places = torch.arange(start, min(start + now.block_rows, now.num_rows))
        differ = (_bits(before[start : start + now.block_rows]) != _bits(now.take(places))).any(dim=1)
        found.append(places[differ])
    return torch.cat(found)


def write_changed_rows(path: Path, now: TableState, places: Tensor) -> None:
    """Write some rows of a table, as `TableChange` tells, block by block."""
    path.parent.mkdir(exist_ok=True)

    def blocks() -> Iterator[Tensor]:
        for part in torch.split(places, now.block_rows):
            yield now.take(part)

    rows = InBlocks((places.numel(), now.trained.shape[1]), now.trained.dtype, blocks())
    write_tensors(path, {"places": places, "rows": rows})


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
