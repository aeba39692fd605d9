"""Find the row of each raw id."""

from typing import Protocol

import torch
from torch import Tensor

from emberline.serving.remap.fallback import FallbackRows


class RemapIndex(Protocol):
    """One table's map from raw ids to rows. It never changes, so any number of threads may read it."""

    num_ids: int
    """K: how many ids have a row of their own."""

    def __call__(self, raw_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each id.

        Args:
            raw_ids: int64 [N], any values.

        Returns:
            Rows int64 [N], and whether each id was trained, bool [N]; the caller may write into both.
        """

    def reading(self, row: int) -> "RemapIndex":
        """The same index, and in the same memory, but that all ids without a row of their own read `row`."""


class SortedRemap:
    """Binary search over the sorted raw ids, then an exact comparison: slow, and for any ids and rows.

    Args:
        raw_ids: int64 [K], strictly ascending.
        rows: int64 [K], the row of each.
        fallback: the rows of ids that are not in `raw_ids`.
    """

    def __init__(self, raw_ids: Tensor, rows: Tensor, fallback: FallbackRows) -> None:
        self.num_ids = raw_ids.numel()
        self._raw_ids = raw_ids
        self._rows = rows
        self._fallback = fallback

    def reading(self, row: int) -> "SortedRemap":
        """The same with one row for all other ids; see `RemapIndex`."""
        return SortedRemap(self._raw_ids, self._rows, self._fallback.reading(row))

    def __call__(self, raw_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each id, and whether it was trained; see `RemapIndex`."""
        raw_ids = raw_ids.contiguous()
        fallback = self._fallback(raw_ids)
        if self.num_ids == 0:
            return fallback, torch.zeros_like(raw_ids, dtype=torch.bool)
        place = torch.searchsorted(self._raw_ids, raw_ids).clamp_(max=self.num_ids - 1)
        known = self._raw_ids[place] == raw_ids
        return torch.where(known, self._rows[place], fallback), known
