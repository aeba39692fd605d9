"""What a delta does to one table: rows that are other vectors now, and raw ids that came, moved or went."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from emberline.serving.remap.files import RemapParts, find_faults


@dataclass(frozen=True, eq=False)
class ChangedRows:
    """Some rows of a table.

    Args:
        places: int64 [M], strictly ascending.
        rows: [M, dim], what they are now.
    """

    places: Tensor
    rows: Tensor

    def write_to(self, table: Tensor) -> None:
        """Overwrite them in `table` [rows, dim], on whatever device it is."""
        table[self.places.to(table.device)] = self.rows.to(table.device)


@dataclass(frozen=True, eq=False)
class ChangedIds:
    """The difference of two maps from raw ids to rows.

    Args:
        came_ids: int64 [A], strictly ascending: ids that are new, or have another row than before.
        came_rows: int64 [A], the row of each.
        went_ids: int64 [W], strictly ascending: ids that own no row any more.
    """

    came_ids: Tensor
    came_rows: Tensor
    went_ids: Tensor


def merge_ids(before: RemapParts, change: ChangedIds, num_rows: int) -> RemapParts:
    """The map after a change.

    Args:
        before: the map.
        change: what came and went.
        num_rows: rows of the table.

    Raises:
        ValueError: the change does not fit the map; the message says how.
    """
    if bool((change.went_ids[1:] <= change.went_ids[:-1]).any()):
        raise ValueError("went_ids is not strictly ascending")
    if not bool(_is_in(change.went_ids, before.raw_ids).all()):
        raise ValueError("an id is to go that owns no row")
    if bool(_is_in(change.came_ids, change.went_ids).any()):
        raise ValueError("an id is to come and to go")
    kept = ~(_is_in(before.raw_ids, change.came_ids) | _is_in(before.raw_ids, change.went_ids))
    raw_ids, order = torch.sort(torch.cat([before.raw_ids[kept], change.came_ids]))
    rows = torch.cat([before.rows[kept], change.came_rows])[order]
    faults = find_faults(raw_ids, rows, before.fallback_starts, before.fallback_rows, num_rows)
    if faults:
        raise ValueError("; ".join(faults))
    return replace(before, raw_ids=raw_ids, rows=rows)


def _is_in(ids: Tensor, listed: Tensor) -> Tensor:
    """Whether each id [N] is in `listed` [K], which is ascending: bool [N]."""
    if not listed.numel():
        return torch.zeros_like(ids, dtype=torch.bool)
    return listed[torch.searchsorted(listed, ids).clamp_(max=listed.numel() - 1)] == ids
