"""Ids that an artifact does not get, though its checkpoint has them: in every table that is read for it, as if they had never owned a row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emberline.serving.deltas.changes import find_places
from emberline.train.checkpoint.dynamic_rows import DynamicRows
from emberline.train.checkpoint.stored_rows import StoredRows


@dataclass(frozen=True, eq=False)
class LeftOut:
    """What is left out of each table.

    Args:
        is_gone: called with a table that grows and its ids, int64 [K]: which are left out, bool [K].
        rows: by other tables: int64 ascending, rows that are zeros instead.
        instead: by zero-collision tables: what is read in the place of each of these rows.
    """

    is_gone: Callable[[str, Tensor], Tensor] = lambda table, ids: torch.zeros_like(ids, dtype=torch.bool)
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    instead: Mapping[str, Tensor] = field(default_factory=dict)

    def of_grown(self, table: str, stored: DynamicRows) -> DynamicRows:
        """A table that grows without its ids that are left out."""
        keep = ~self.is_gone(table, stored.keys)
        if not bool(keep.all()):
            stored.keys, stored.rows = stored.keys[keep], stored.rows[keep]
        return stored

    def of_stored(self, table: str, stored: StoredRows) -> "StoredRows | BlankedRows":
        """Another table, with zeros where there is nothing any more."""
        return BlankedRows(stored, self.rows[table]) if table in self.rows else stored

    def readable(self, table: str, rows: Tensor) -> Tensor:
        """The rows that are read in the place of some rows, int64 [n] -> [n]: of those left out, the ones that ids without a row read."""
        if table not in self.instead:
            return rows
        at, is_out = find_places(rows, self.rows[table])
        return torch.where(is_out, self.instead[table][at], rows)


class BlankedRows:
    """A table, some of whose rows are zeros.

    Args:
        stored: the table.
        rows: int64 ascending, at least one: those that are zeros.
    """

    def __init__(self, stored: StoredRows, rows: Tensor) -> None:
        self._stored, self._rows = stored, rows
        self.shape, self.dtype = stored.shape, stored.dtype

    def read(self, first: int, stop: int) -> Tensor:
        """The rows from `first` to before `stop`, [stop - first, dim]. Raises CheckpointError: a file cannot be read."""
        found = self._stored.read(first, stop)
        found[self._rows[(self._rows >= first) & (self._rows < stop)] - first] = 0
        return found

    def take(self, rows: Tensor) -> Tensor:
        """Some rows: int64 [n], in any order -> a new tensor [n, dim]. Raises CheckpointError: a file cannot be read."""
        found = self._stored.take(rows)
        found[find_places(rows, self._rows)[1]] = 0
        return found
