"""A remap table on disk: `raw_ids`, `rows`, `fallback_starts` and `fallback_rows`, int64, in one safetensors file."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from emberline.errors import ArtifactError
from emberline.manifest import RemapEntry
from emberline.routing import ROUTINGS
from emberline.schema import INT64_MAX, TableSpec
from emberline.serving.files import map_tensors, write_tensors
from emberline.serving.remap.fallback import FallbackRows
from emberline.serving.remap.hashed import build_index
from emberline.serving.remap.index import RemapIndex

INT64_MIN = -(2**63)
_PARTS = ("raw_ids", "rows", "fallback_starts", "fallback_rows")


@dataclass(frozen=True, eq=False)
class RemapParts:
    """One table's map, on the CPU.

    Args:
        raw_ids: int64 [K], ascending, of ids that own a row; without the marker of free rows.
        rows: int64 [K], the row of each.
        fallback_starts: int64 [S], ascending from -2**63, where each range of ids that shares a fallback row begins.
        fallback_rows: int64 [S], the fallback row of each range.
        routing: how an id finds its part, of `emberline.routing`; None: by its range.
    """

    raw_ids: Tensor
    rows: Tensor
    fallback_starts: Tensor
    fallback_rows: Tensor
    routing: str | None = None

    def index(self, num_rows: int, device: torch.device) -> RemapIndex:
        """Build the index of the ids, on `device`, for a table of `num_rows`."""
        fallback = FallbackRows(self.fallback_starts.to(device), self.fallback_rows.to(device), routing=self.routing)
        return build_index(self.raw_ids, self.rows, fallback, num_rows=num_rows, device=device)


def find_faults(raw_ids: Tensor, rows: Tensor, fallback_starts: Tensor, fallback_rows: Tensor, num_rows: int) -> list[str]:
    """What is wrong with a remap table's values: one sentence for each fault, empty where there is none.

    Args:
        raw_ids: int64 [K].
        rows: int64 [K].
        fallback_starts: int64 [S].
        fallback_rows: int64 [S].
        num_rows: rows of the table that it points into.
    """
    faults = []
    if not bool((raw_ids[1:] > raw_ids[:-1]).all()):
        faults.append("raw_ids is not strictly ascending")
    if raw_ids.numel() and int(raw_ids.max()) == INT64_MAX:
        faults.append("raw_ids holds 2**63 - 1, which marks free rows and is no id")
    if fallback_starts.numel() == 0 or int(fallback_starts[0]) != INT64_MIN:
        faults.append("fallback_starts does not begin at -2**63, so that some ids have no row")
    if not bool((fallback_starts[1:] > fallback_starts[:-1]).all()):
        faults.append("fallback_starts is not strictly ascending")
    for name, part in (("rows", rows), ("fallback_rows", fallback_rows)):
        if part.numel() and not (int(part.min()) >= 0 and int(part.max()) < num_rows):
            faults.append(f"{name} points outside the table's {num_rows} rows")
    if not faults and int(torch.bincount(rows, minlength=1).max()) > 1:
        faults.append("rows gives one row to two ids")
    return faults


def write_remap(
    path: Path, *, raw_ids: Tensor, rows: Tensor, fallback_starts: Tensor, fallback_rows: Tensor, num_rows: int, routing: str | None = None
) -> RemapEntry:
    """Write one table's remap file; the entry's `file` is the path's last two parts (`remap/<table>.safetensors`).

    Args:
        path: where to write.
        raw_ids: int64 [K], strictly ascending, without the marker 2**63 - 1.
        rows: int64 [K].
        fallback_starts: int64 [S], strictly ascending from -2**63.
        fallback_rows: int64 [S].
        num_rows: rows of the table that it points into.
        routing: how ids find their fallback row, where it is not by `fallback_starts`.
    """
    parts = dict(zip(_PARTS, (raw_ids, rows, fallback_starts, fallback_rows), strict=True))
    assert all(part.dtype == torch.int64 and part.dim() == 1 for part in parts.values())
    faults = find_faults(**parts, num_rows=num_rows)
    assert not faults, faults
    write_tensors(path, parts)
    return RemapEntry(file="/".join(path.parts[-2:]), num_ids=raw_ids.numel(), routing=routing)


def read_remap(path: Path, spec: TableSpec, entry: RemapEntry, *, contents: bool = True) -> RemapParts:
    """Read one table's remap file: its lists are mapped.

    Args:
        path: the file.
        spec: the table that it points into.
        entry: what the manifest says of it.
        contents: check every value too, which reads the whole file.

    Raises:
        ArtifactError: it is not a remap of this table.
    """
    found = map_tensors(path)
    if sorted(found) != sorted(_PARTS) or any(part.dtype != torch.int64 or part.dim() != 1 for part in found.values()):
        raise ArtifactError(f"{entry.file}: table {spec.name!r} needs int64 lists {', '.join(_PARTS)}; found {sorted(found)}")
    raw_ids, rows, starts, fallback_rows = (found[name] for name in _PARTS)
    if not (raw_ids.numel() == rows.numel() == entry.num_ids and starts.numel() == fallback_rows.numel() >= 1):
        sizes = ", ".join(f"{name} {found[name].numel()}" for name in _PARTS)
        raise ArtifactError(f"{entry.file}: table {spec.name!r} should hold {entry.num_ids} ids, found {sizes}")
    if contents and (faults := find_faults(raw_ids, rows, starts, fallback_rows, spec.rows)):
        raise ArtifactError(f"{entry.file}: table {spec.name!r}: {'; '.join(faults)}")
    if entry.routing not in (None, *ROUTINGS):
        raise ArtifactError(f"{entry.file}: table {spec.name!r}: ids are routed by {entry.routing!r}, not by {' or '.join(ROUTINGS)}")
    return RemapParts(raw_ids, rows, starts, fallback_rows, entry.routing)
