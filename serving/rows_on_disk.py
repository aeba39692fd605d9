"""Tables whose rows stay in the artifact's files: a lookup reads the rows that it needs, and nothing else is in memory.

It is for those who check an artifact beside other work, as the export's own gate does; a server that answers all day has its tables in memory.
"""

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from emberline.errors import ArtifactError
from emberline.file_rows import FileRows
from emberline.serving.files import map_tensors
from emberline.serving.overlaid_rows import OverlaidRows


@dataclass(frozen=True, eq=False)
class RowsOnDisk:
    """The rows of a table, as its files hold them: all of them, and over these what deltas made of some.

    Args:
        shape: rows, and numbers of each.
        dtype: of a number.
        file: where all rows are.
        changes: in the order in which they were made: places int64 [M], strictly ascending, and their rows.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    file: FileRows
    changes: tuple[tuple[Tensor, "RowsOnDisk"], ...] = ()

    @classmethod
    def find(cls, path: Path, name: str = "rows") -> Self:
        """A tensor [rows, width] of a safetensors file.

        Raises:
            ArtifactError: the file is not safetensors, or has no such tensor.
        """
        mapped = map_tensors(path).get(name)  # which is not touched, and let go of
        if mapped is None or mapped.dim() != 2:
            raise ArtifactError(f"{path}: there is no tensor {name!r} of rows")
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            start = json.loads(stream.read(length))[name]["data_offsets"][0]
        shape = (mapped.shape[0], mapped.shape[1])
        return cls(shape, mapped.dtype, FileRows(path, 8 + length + start, shape[0], shape[1] * mapped.itemsize))

    def with_changes(self, changes: Iterable[tuple[Tensor, "RowsOnDisk"]]) -> Self:
        """The table after further changes."""
        return replace(self, changes=(*self.changes, *(change for change in changes if change[0].numel())))

    def take(self, rows: Tensor) -> Tensor:
        """Some rows: int64 [n], in any order -> [n, width].

        Raises:
            ArtifactError: a file cannot be read.
        """
        found = self._empty(rows.numel())
        try:
            self.file.take(rows.numpy(), found.view(torch.uint8).numpy())
        except OSError as error:
            raise ArtifactError(f"{self.file.path} cannot be read: {error}") from error
        for places, changed in self.changes:
            at = torch.searchsorted(places, rows).clamp_(max=places.numel() - 1)
            is_there = places[at] == rows
            found[is_there] = changed.take(at[is_there])
        return found

    def read(self, first: int, stop: int) -> Tensor:
        """The rows from `first` to before `stop`: [stop - first, width].

        Raises:
            ArtifactError: a file cannot be read.
        """
        found = self._empty(stop - first)
        try:
            self.file.read(first, found.view(torch.uint8).numpy())
        except OSError as error:
            raise ArtifactError(f"{self.file.path} cannot be read: {error}") from error
        for places, changed in self.changes:
            start, end = torch.searchsorted(places, torch.tensor([first, stop])).tolist()
            found[places[start:end] - first] = changed.read(start, end)
        return found

    def _empty(self, rows: int) -> Tensor:
        return torch.empty(rows, self.shape[1], dtype=self.dtype)


TableRows = Tensor | OverlaidRows | RowsOnDisk
"""A table, wherever its rows are."""


def rows_needed(table: TableRows, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What holds the rows of some ids, int64 [N], and where they are in it: of rows that are not one tensor, those that are needed.

    Raises:
        ArtifactError: a file cannot be read.
    """
    if isinstance(table, Tensor):
        return table, ids
    if isinstance(table, OverlaidRows):
        return table.take(ids), torch.arange(ids.numel(), device=ids.device)
    rows, places = torch.unique(ids, return_inverse=True)
    return table.take(rows.cpu()).to(ids.device), places
