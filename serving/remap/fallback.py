"""The row of an id that has none of its own."""

import torch
from torch import Tensor

from emberline.routing import owner_of


class FallbackRows:
    """One row for each range of ids: a table that was trained in several parts has one in each.

    Args:
        starts: int64 [S], strictly ascending, the first is -2**63; S >= 1.
        rows: int64 [S]: an id reads the row of the last start at or below it.
        routing: where given, an id reads the row of its part instead; see `emberline.routing`.

    Attributes:
        starts: as given, and so are `rows` and `routing`.
    """

    def __init__(self, starts: Tensor, rows: Tensor, *, routing: str | None = None) -> None:
        self.starts = starts
        self.rows = rows
        self.routing = routing
        self.first = int(rows[0])
        """The row of the first range."""
        self.same_for_all = rows.numel() == 1
        """Whether there is only one."""

    def reading(self, row: int) -> "FallbackRows":
        """The same, with one row for all ids."""
        return FallbackRows(self.starts[:1], torch.full_like(self.rows[:1], row))

    def __call__(self, raw_ids: Tensor) -> Tensor:
        """The fallback row of each id: int64 [N]."""
        if self.same_for_all:
            return torch.full_like(raw_ids, self.first)
        if self.routing is not None:
            return self.rows[owner_of(raw_ids, self.rows.numel(), self.routing)]
        return self.rows[torch.searchsorted(self.starts, raw_ids, right=True) - 1]
