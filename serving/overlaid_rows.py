"""A table in memory that is left as it is, and over it rows that changed: those who share its memory, or read it just now, see nothing of them."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class OverlaidRows:
    """A table, some of whose rows are elsewhere. Never changes.

    Args:
        base: [R, width], all rows.
        places: int64 [M], strictly ascending, of those that count no more.
        rows: [M, width], what these are instead.
        marks: uint8 [R / 8, rounded up], a bit for each row, the lowest first: 1 where it is among `places`.
    """

    base: Tensor
    places: Tensor
    rows: Tensor
    marks: Tensor

    @classmethod
    def over(cls, table: "Tensor | OverlaidRows", places: Tensor, rows: Tensor) -> Self:
        """A table after a change of some rows.

        Args:
            table: it, with the changes before.
            places: int64 [M], strictly ascending.
            rows: [M, width], of the table's type.
        """
        base = table if isinstance(table, Tensor) else table.base
        places, rows = places.to(base.device), rows.to(base.device)
        if isinstance(table, OverlaidRows):
            at = torch.searchsorted(places, table.places).clamp_(max=max(0, places.numel() - 1))
            kept = places[at] != table.places if places.numel() else torch.ones_like(table.places, dtype=torch.bool)
            places, order = torch.sort(torch.cat([table.places[kept], places]))
            rows = torch.cat([table.rows[kept], rows])[order]
        return cls(base, places, rows, _marks(places, base.shape[0]))

    @property
    def shape(self) -> tuple[int, int]:
        """All rows, and numbers of each."""
        return self.base.shape[0], self.base.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of a number."""
        return self.base.dtype

    @property
    def num_bytes(self) -> int:
        """Memory beside the base."""
        return sum(part.numel() * part.element_size() for part in (self.places, self.rows, self.marks))

    def take(self, rows: Tensor) -> Tensor:
        """Some rows: int64 [n], in any order -> [n, width]."""
        found = self.base.index_select(0, rows)
        changed = ((self.marks[rows >> 3] >> (rows & 7).to(torch.uint8)) & 1).nonzero().squeeze(1)
        if changed.numel():
            found[changed] = self.rows[torch.searchsorted(self.places, rows[changed])]
        return found

    def settle(self) -> Tensor:
        """Write the changed rows into the base, which nobody may be reading but by this; and the base."""
        write_rows(self.base, self.places, self.rows)
        return self.base


def write_rows(table: Tensor, places: Tensor, rows: Tensor) -> None:
    """Overwrite some rows of a table [R, width], on whatever device it is: `rows` [M, width] at `places` int64 [M].

    On a CPU each row is copied as one piece by numpy: torch's operators take twenty times as long.
    """
    if table.device.type != "cpu" or not table.numel():
        table[places.to(table.device)] = rows.to(table.device)
        return
    whole, new = _pieces(table), _pieces(rows.cpu().contiguous())
    whole[places.cpu().numpy()] = new


def _pieces(rows: Tensor) -> npt.NDArray[np.void]:
    """Rows [R, width], which may have gaps behind them, as one number each: their bytes, where they are."""
    return rows.view(torch.uint8).numpy().view(f"V{rows.shape[1] * rows.element_size()}")[:, 0]


def _marks(places: Tensor, num_rows: int) -> Tensor:
    """The bit of each row; see `OverlaidRows`."""
    marks, at = np.zeros(-(-num_rows // 8), np.uint8), places.cpu().numpy()
    if at.size:
        starts = np.flatnonzero(np.diff(at >> 3, prepend=-1))  # rows of one byte follow each other
        marks[at[starts] >> 3] = np.bitwise_or.reduceat((1 << (at & 7)).astype(np.uint8), starts)
    return torch.from_numpy(marks).to(places.device)
