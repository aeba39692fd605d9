"""A remap table on disk: `raw_ids`, `rows`, `fallback_starts` and `fallback_rows`, int64, in one safetensors file.

Before them lie the `lines` of the finished index, so that nobody builds it again, and all processes that map the file have one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.errors import ArtifactError
from emberline.manifest import FileEntry, RemapEntry
from emberline.routing import ROUTINGS
from emberline.schema import INT64_MAX, TableKind, TableSpec
from emberline.serving.files import write_tensors
from emberline.serving.remap import lines as portable
from emberline.serving.remap.fallback import FallbackRows
from emberline.serving.remap.hashed import HashedRemap, build_index, fill_lines, homes_of
from emberline.serving.remap.index import RemapIndex

INT64_MIN = -(2**63)
LINES = "lines"
_PARTS = ("raw_ids", "rows", "fallback_starts", "fallback_rows")


@dataclass(frozen=True, eq=False)
class RemapParts:
    """One table's map, on the CPU.

    Args:
        raw_ids: int64 [K], ascending, of ids that own a row; of a ZCH table without the marker of free rows.
        rows: int64 [K], the row of each.
        fallback_starts: int64 [S], ascending from -2**63, where each range of ids that shares a fallback row begins.
        fallback_rows: int64 [S], the fallback row of each range.
        routing: how an id finds its part, of `emberline.routing`; None: by its range.
        lines: of the index, int64 [H + MOST_REACH, 8], as `lines.py` lays them out; None where they are yet to be filled.
        seed: that they were filled by.
    """

    raw_ids: Tensor
    rows: Tensor
    fallback_starts: Tensor
    fallback_rows: Tensor
    routing: str | None = None
    lines: Tensor | None = None
    seed: int = 0

    def index(self, num_rows: int, device: torch.device) -> RemapIndex:
        """The index of the ids, on `device`, for a table of `num_rows`: of the lines that are there, which it shares, or built."""
        fallback = FallbackRows(self.fallback_starts.to(device), self.fallback_rows.to(device), routing=self.routing)
        if self.lines is not None:
            return HashedRemap(self.lines.to(device), homes_of(self.lines), self.seed, self.raw_ids.numel(), fallback)
        return build_index(self.raw_ids, self.rows, fallback, num_rows=num_rows, device=device)


def find_faults(
    raw_ids: Tensor, rows: Tensor, fallback_starts: Tensor, fallback_rows: Tensor, num_rows: int, kind: TableKind = TableKind.ZCH
) -> list[str]:
    """What is wrong with a remap table's values, which are on the CPU: one sentence for each fault, empty where there is none.

    Args:
        raw_ids: int64 [K].
        rows: int64 [K].
        fallback_starts: int64 [S].
        fallback_rows: int64 [S].
        num_rows: rows of the table that it points into.
        kind: of that table. In training a ZCH table marks free rows by 2**63 - 1, which is no id there; a dynamic table knows any id.
    """
    faults, ids, starts = [], raw_ids.numpy(), fallback_starts.numpy()
    if not (ids[1:] > ids[:-1]).all():
        faults.append("raw_ids is not strictly ascending")
    if ids.size and ids.max() == INT64_MAX and kind is not TableKind.DYNAMIC:
        faults.append("raw_ids holds 2**63 - 1, which marks free rows and is no id")
    if not starts.size or starts[0] != INT64_MIN:
        faults.append("fallback_starts does not begin at -2**63, so that some ids have no row")
    if not (starts[1:] > starts[:-1]).all():
        faults.append("fallback_starts is not strictly ascending")
    for name, part in (("rows", rows.numpy()), ("fallback_rows", fallback_rows.numpy())):
        if part.size and not (part.min() >= 0 and part.max() < num_rows):
            faults.append(f"{name} points outside the table's {num_rows} rows")
    if not faults and not _all_differ(rows.numpy()):
        faults.append("rows gives one row to two ids")
    return faults


def _all_differ(rows: npt.NDArray[np.int64]) -> bool:
    """Whether no two of some numbers from 0 up are the same."""
    seen = np.zeros(rows.max(initial=-1) + 1, np.bool_)
    seen[rows] = True
    return np.count_nonzero(seen) == rows.size


def write_remap(
    path: Path,
    *,
    raw_ids: Tensor,
    rows: Tensor,
    fallback_starts: Tensor,
    fallback_rows: Tensor,
    num_rows: int,
    routing: str | None = None,
    kind: TableKind = TableKind.ZCH,
) -> tuple[RemapEntry, FileEntry]:
    """Write one table's remap file, with the index of its ids.

    Args:
        path: where to write.
        raw_ids: int64 [K], strictly ascending; of a ZCH table without the marker 2**63 - 1.
        rows: int64 [K].
        fallback_starts: int64 [S], strictly ascending from -2**63.
        fallback_rows: int64 [S].
        num_rows: rows of the table that it points into.
        routing: how ids find their fallback row, where it is not by `fallback_starts`.
        kind: of the table.

    Returns:
        What the manifest says of it: its `file` is the path's last two parts (`remap/<table>.safetensors`); and size and digests of the file.
    """
    parts = dict(zip(_PARTS, (raw_ids, rows, fallback_starts, fallback_rows), strict=True))
    assert all(part.dtype == torch.int64 and part.dim() == 1 for part in parts.values())
    faults = find_faults(**parts, num_rows=num_rows, kind=kind)
    assert not faults, faults
    lines, seed = fill_lines(raw_ids, rows, num_rows) or (None, None)
    written = write_tensors(path, parts if lines is None else {LINES: lines, **parts})
    return RemapEntry(file="/".join(path.parts[-2:]), num_ids=raw_ids.numel(), routing=routing, seed=seed), written


def read_remap(found: Mapping[str, Tensor], spec: TableSpec, entry: RemapEntry) -> RemapParts:
    """One table's map, of the tensors of its file, whose values nobody looks at: `require_sound_values` does.

    Args:
        found: the tensors, on the CPU.
        spec: the table that it points into.
        entry: what the manifest says of it.

    Raises:
        ArtifactError: they are no remap of this table.
    """
    wanted = _PARTS if entry.seed is None else (LINES, *_PARTS)
    if sorted(found) != sorted(wanted) or any(part.dtype != torch.int64 or part.dim() != 1 for name, part in found.items() if name != LINES):
        raise ArtifactError(f"{entry.file}: table {spec.name!r} needs int64 lists {', '.join(wanted)}; found {sorted(found)}")
    raw_ids, rows, starts, fallback_rows = (found[name] for name in _PARTS)
    if not (raw_ids.numel() == rows.numel() == entry.num_ids and starts.numel() == fallback_rows.numel() >= 1):
        sizes = ", ".join(f"{name} {found[name].numel()}" for name in _PARTS)
        raise ArtifactError(f"{entry.file}: table {spec.name!r} should hold {entry.num_ids} ids, found {sizes}")
    if entry.routing not in (None, *ROUTINGS):
        raise ArtifactError(f"{entry.file}: table {spec.name!r}: ids are routed by {entry.routing!r}, not by {' or '.join(ROUTINGS)}")
    parts = RemapParts(raw_ids, rows, starts, fallback_rows, entry.routing)
    if entry.seed is None:
        return parts
    lines, width = found[LINES], portable.NUMBERS
    if lines.dtype != torch.int64 or lines.dim() != 2 or lines.shape[1] != width or homes_of(lines) < 1 or not 0 <= entry.seed < 2**63:
        raise ArtifactError(f"{entry.file}: table {spec.name!r}: its index is {lines.dtype} {list(lines.shape)} by seed {entry.seed}")
    return replace(parts, lines=lines, seed=entry.seed)


def require_sound_values(parts: RemapParts, spec: TableSpec, entry: RemapEntry, *, rebuild: bool = False) -> None:
    """Look at every value of a map.

    Args:
        parts: the map.
        spec: the table that it points into.
        entry: what the manifest says of it.
        rebuild: also compare the index with one that is built anew.

    Raises:
        ArtifactError: it contradicts itself, or the table.
    """
    lines = parts.lines
    faults = find_faults(parts.raw_ids, parts.rows, parts.fallback_starts, parts.fallback_rows, spec.rows, spec.kind)
    if lines is not None:
        faults += portable.find_line_faults(lines, entry.num_ids, spec.rows)
    if lines is not None and rebuild and not faults:
        filled = fill_lines(parts.raw_ids, parts.rows, spec.rows)
        if filled is None or filled[1] != parts.seed or not torch.equal(filled[0], lines):
            faults.append("lines is not the index of raw_ids and rows")
    if faults:
        raise ArtifactError(f"{entry.file}: table {spec.name!r}: {'; '.join(faults)}")
