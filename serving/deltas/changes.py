"""What a delta does to one table: rows that are other vectors now, and raw ids that came, moved or went."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from emberline.schema import TableKind
from emberline.serving.overlaid_rows import write_rows
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
        write_rows(table, self.places, self.rows)


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


def merge_ids(before: RemapParts, change: ChangedIds, num_rows: int, kind: TableKind = TableKind.ZCH) -> RemapParts:
    """The map after a change.

    Args:
        before: the map.
        change: what came and went.
        num_rows: rows of the table.
        kind: of the table.

    Raises:
        ValueError: the change does not fit the map; the message says how.
    """
    for name, ids in (("came_ids", change.came_ids), ("went_ids", change.went_ids)):
        if bool((ids[1:] <= ids[:-1]).any()):
            raise ValueError(f"{name} is not strictly ascending")
    went, is_there = find_places(change.went_ids, before.raw_ids)
    if not bool(is_there.all()):
        raise ValueError("an id is to go that owns no row")
    if bool(find_places(change.came_ids, change.went_ids)[1].any()):
        raise ValueError("an id is to come and to go")
    moved, is_there = find_places(change.came_ids, before.raw_ids)
    kept = torch.ones_like(before.raw_ids, dtype=torch.bool)
    kept[went] = kept[moved[is_there]] = False
    raw_ids = before.raw_ids[kept]
    at = torch.searchsorted(raw_ids, change.came_ids) + torch.arange(change.came_ids.numel())
    raw_ids, rows = _inserted(raw_ids, change.came_ids, at), _inserted(before.rows[kept], change.came_rows, at)
    faults = find_faults(raw_ids, rows, before.fallback_starts, before.fallback_rows, num_rows, kind)
    if faults:
        raise ValueError("; ".join(faults))
    return replace(before, raw_ids=raw_ids, rows=rows, lines=None)


def find_places(ids: Tensor, listed: Tensor) -> tuple[Tensor, Tensor]:
    """Where each id int64 [N] is in `listed` int64 [K], which is strictly ascending: int64 [N], and whether it is there: bool [N]."""
    if not listed.numel():
        return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    places = torch.searchsorted(listed, ids).clamp_(max=listed.numel() - 1)
    return places, listed[places] == ids


def _inserted(values: Tensor, more: Tensor, at: Tensor) -> Tensor:
    """A list of both: each of `more` [A] at its place `at` int64 [A], ascending, and `values` [K] around them, in order."""
    found = values.new_empty(values.numel() + more.numel())
    free = torch.ones_like(found, dtype=torch.bool)
    free[at], found[at] = False, more
    found[free] = values
    return found
