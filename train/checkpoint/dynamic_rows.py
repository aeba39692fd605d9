"""The vectors of raw ids in a checkpoint's tables that grow, read when they are asked for: ids that have no row read the default vector."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from emberline.train.checkpoint.stored_dynamic import DEFAULT, WEIGHT, DynamicNotes, StoredDynamic
from emberline.train.checkpoint.tensors import read_index


class DynamicRows:
    """Of one table; only its ids are in memory.

    Args:
        stored: the table.
    """

    def __init__(self, stored: StoredDynamic) -> None:
        self.stored = stored
        self.keys, self.rows = stored.own_rows(0, 1)
        self.default = stored.whole(DEFAULT).to(stored.infos[WEIGHT].dtype)

    def find(self, ids: Tensor) -> Tensor:
        """The row of each id among those stored, int64 [n] -> [n]; -1 where it has none."""
        if not len(self.keys):
            return torch.full_like(ids, -1)
        places = torch.searchsorted(self.keys, ids).clamp_(max=len(self.keys) - 1)
        return torch.where(self.keys[places] == ids, self.rows[places], -1)

    def take(self, ids: Tensor) -> Tensor:
        """The vector of each id, as evaluation reads it: int64 [n] -> [n, dim] of the table's dtype.

        Raises:
            CheckpointError: a file cannot be read.
        """
        rows = self.find(ids)
        found = self.default.repeat(len(ids), 1)
        known = (rows >= 0).nonzero().flatten()
        found[known] = self.stored.take(WEIGHT, rows[known])
        return found


def open_rows(folder: Path, notes: Mapping[str, DynamicNotes]) -> dict[str, DynamicRows]:
    """All tables that grow of a checkpoint.

    Args:
        folder: of the tensors.
        notes: what the manifest says of each.

    Raises:
        CheckpointError: one is missing or damaged.
    """
    index = read_index(folder) if notes else None
    return {table: DynamicRows(StoredDynamic(folder, table, found, index)) for table, found in notes.items()}
