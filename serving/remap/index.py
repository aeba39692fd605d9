"""Find the row of each raw id."""

from typing import Protocol

import torch
from torch import Tensor

from emberline.routing import owner_of


class RemapIndex(Protocol):
    """One table's map from raw ids to rows. It never changes, so any number of threads may read it."""

    def __call__(self, raw_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each id.

        Args:
            raw_ids: int64 [N], any values.

        Returns:
            Rows int64 [N], and whether each id was trained, bool [N].
        """


class SortedRemap:
    """Binary search over the sorted raw ids, then an exact comparison.

    Args:
        raw_ids: int64 [K], strictly ascending.
        rows: int64 [K], the row of each.
        fallback_starts: int64 [S], strictly ascending, the first is -2**63; S >= 1.
        fallback_rows: int64 [S]: an id that is not in `raw_ids` reads the row of the last start at or below it.
        routing: where given, it reads the row of its part instead; see `emberline.routing`.
    """

    def __init__(
        self, raw_ids: Tensor, rows: Tensor, fallback_starts: Tensor, fallback_rows: Tensor, *, routing: str | None = None
    ) -> None:
        self._raw_ids = raw_ids
        self._rows = rows
        self._fallback_starts = fallback_starts
        self._fallback_rows = fallback_rows
        self._routing = routing

    @property
    def num_ids(self) -> int:
        """K: how many ids have a row of their own."""
        return self._raw_ids.numel()

    def __call__(self, raw_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each id, and whether it was trained; see `RemapIndex`."""
        fallback = self._fallback(raw_ids)
        if self._raw_ids.numel() == 0:
            return fallback, torch.zeros_like(raw_ids, dtype=torch.bool)
        place = torch.searchsorted(self._raw_ids, raw_ids).clamp_(max=self._raw_ids.numel() - 1)
        known = self._raw_ids[place] == raw_ids
        return torch.where(known, self._rows[place], fallback), known

    def _fallback(self, raw_ids: Tensor) -> Tensor:
        if self._fallback_rows.numel() == 1:
            return self._fallback_rows.expand(raw_ids.shape)
        if self._routing is not None:
            return self._fallback_rows[owner_of(raw_ids, self._fallback_rows.numel(), self._routing)]
        return self._fallback_rows[torch.searchsorted(self._fallback_starts, raw_ids, right=True) - 1]
