"""The part of a zero-collision table that is not vectors: which raw id reads which row, split out of the model for serving."""

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path

from torch import Tensor

from emberline.errors import ExportError
from emberline.manifest import RemapEntry
from emberline.schema import TableSpec
from emberline.serving.remap import write_remap
from emberline.serving.remap.files import find_faults
from emberline.train.models import RecModel
from emberline.train.zch import remap_entries, zch_modules


@dataclass(frozen=True)
class RemapParts:
    """One table's map.

    Args:
        raw_ids: int64 [K], ascending, of ids that own a row; without the marker of free rows.
        rows: int64 [K], the row of each.
        fallback_starts: int64 [S], ascending from -2**63, where each range of ids that shares a fallback row begins.
        fallback_rows: int64 [S], the fallback row of each range.
        routing: how an id finds its range, of `emberline.routing`.
    """

    raw_ids: Tensor
    rows: Tensor
    fallback_starts: Tensor
    fallback_rows: Tensor
    routing: str


def split_remaps(model: RecModel) -> dict[str, RemapParts]:
    """The map of every zero-collision table of a model, by table."""
    return {table: RemapParts(*remap_entries(module), routing=module.routing) for table, module in zch_modules(model).items()}


def write_remap_file(parts: RemapParts, spec: TableSpec, path: Path) -> RemapEntry:
    """Write one table's map.

    Raises:
        ExportError: the map contradicts itself; the message says how.
    """
    fields = {field.name: getattr(parts, field.name) for field in dataclass_fields(parts) if field.name != "routing"}
    faults = find_faults(**fields, num_rows=spec.rows)
    if faults:
        raise ExportError(f"table {spec.name!r}: the id map in the checkpoint is damaged: {'; '.join(faults)}")
    return write_remap(path, **fields, num_rows=spec.rows, routing=parts.routing)
