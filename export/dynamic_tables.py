"""Tables that grow, as an artifact has them: a row for each id of the checkpoint, spare rows for ids that deltas bring, and the default vector.

    a checkpoint       ids of rank 0, ascending | those of rank 1 | ..
    a new artifact     ids 0 to K - 1, ascending | spare rows, zeros | what unknown ids read
    with a delta       ids that stayed where they were, new ones in rows of ids that went, and in spare ones; rows left over are zeros

In serving such a table is a zero-collision one: a map from raw ids to rows, and one fallback row for all ids that it does not have.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from emberline.errors import ExportError
from emberline.serving.deltas.changes import find_places
from emberline.serving.remap import RemapParts
from emberline.train.checkpoint.dynamic_rows import DynamicRows
from emberline.train.checkpoint.stored_dynamic import WEIGHT

SPARE_SHARE = 8
"""Of so many ids that own a row, one more row is spare."""
LEAST_SPARE = 64
"""Spare rows of any artifact, above that share."""
INT64_MIN = -(2**63)


@dataclass(frozen=True, eq=False)
class DynamicTable:
    """One table's rows in an artifact's order; only ids and the places of rows are in memory.

    Args:
        stored: the table in the checkpoint.
        remap: which row each id has, and that of all others: the last.
        places: int64 [R - 1], of each row but the last: the row of its vector in the checkpoint; -1 where it has none.
    """

    stored: DynamicRows
    remap: RemapParts
    places: Tensor

    @classmethod
    def new(cls, stored: DynamicRows) -> Self:
        """The table of a new artifact."""
        num_ids = stored.keys.numel()
        spare = min(num_ids // SPARE_SHARE, max(0, stored.stored.notes.max_capacity - num_ids)) + LEAST_SPARE
        places = torch.cat([stored.rows, stored.rows.new_full((spare,), -1)])
        return cls(stored, _map(stored.keys, torch.arange(num_ids), num_ids + spare), places)

    @classmethod
    def after(cls, stored: DynamicRows, before: RemapParts) -> Self:
        """The table of an artifact that has it already, and gets what was trained since.

        Args:
            stored: the table in the checkpoint.
            before: the artifact's map, with one fallback row, which is its last one.

        Raises:
            ExportError: there are more new ids than free rows.
        """
        last, ids = int(before.fallback_rows), stored.keys
        at, stayed = find_places(ids, before.raw_ids)
        rows = torch.full_like(ids, -1)
        rows[stayed] = before.rows[at[stayed]]
        free = torch.ones(last, dtype=torch.bool)
        free[rows[stayed]] = False
        new, room = int((~stayed).sum()), free.nonzero().flatten()
        if new > room.numel():
            went = before.raw_ids.numel() - int(stayed.sum())
            had = f"{room.numel() - went} were spare, and {went} ids went"
            found = f"{new} ids are new, and the version has room for {room.numel()} ({had})"
            raise ExportError(f"table {stored.stored.table!r}: {found}; export a whole version instead")
        rows[~stayed] = room[:new]
        places = torch.full((last,), -1, dtype=torch.int64)
        places[rows] = stored.rows
        return cls(stored, _map(ids, rows, last), places)

    @property
    def shape(self) -> tuple[int, int]:
        """R rows, of them spare ones and the last one, and numbers of each."""
        return self.places.numel() + 1, self.stored.stored.dim

    @property
    def dtype(self) -> torch.dtype:
        """Number type of the rows."""
        return self.stored.default.dtype

    @property
    def spare_rows(self) -> int:
        """Rows that no id owns, but for the last one."""
        return self.places.numel() - self.remap.raw_ids.numel()

    def find(self, ids: Tensor) -> Tensor:
        """The row of each raw id, int64 [n] -> [n]; the last one where it has none of its own."""
        at, known = find_places(ids, self.remap.raw_ids)
        rows = torch.full_like(ids, self.places.numel())
        rows[known] = self.remap.rows[at[known]]
        return rows

    def read(self, first: int, stop: int) -> Tensor:
        """The rows from `first` to before `stop`, [stop - first, dim]. Raises CheckpointError: a file cannot be read."""
        return self.take(torch.arange(first, stop))

    def take(self, rows: Tensor) -> Tensor:
        """Some rows: int64 [n], in any order -> a new tensor [n, dim].

        Raises:
            CheckpointError: a file cannot be read.
        """
        last = self.places.numel()
        found = torch.zeros(len(rows), self.shape[1], dtype=self.dtype)
        found[rows == last] = self.stored.default
        at = torch.full_like(rows, -1)
        at[rows < last] = self.places[rows[rows < last]]
        owned = (at >= 0).nonzero().flatten()
        found[owned] = self.stored.stored.take(WEIGHT, at[owned])
        return found


def _map(ids: Tensor, rows: Tensor, last: int) -> RemapParts:
    return RemapParts(ids, rows, torch.tensor([INT64_MIN]), torch.tensor([last]))
