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
    """

    def __init__(self, starts: Tensor, rows: Tensor, *, routing: str | None = None) -> None:
        self._starts = starts
        self._rows = rows
        self._routing = routing
        self.first = int(rows[0])
        """The row of the first range."""
        self.same_for_all = rows.numel() == 1
        """Whether there is only one."""

    def reading(self, row: int) -> "FallbackRows":
        """The same, with one row for all ids."""
        return FallbackRows(self._starts[:1], torch.full_like(self._rows[:1], row))

    def __call__(self, raw_ids: Tensor) -> Tensor:
        """The fallback row of each id: int64 [N]."""
        if self.same_for_all:
            return torch.full_like(raw_ids, self.first)
        if self._routing is not None:
            return self._rows[owner_of(raw_ids, self._rows.numel(), self._routing)]
        return self._rows[torch.searchsorted(self._starts, raw_ids, right=True) - 1]
