"""The part of a zero-collision table that is not vectors: which raw id reads which row, split out of the model for serving."""

from dataclasses import fields
from pathlib import Path

from emberline.errors import ExportError
from emberline.manifest import RemapEntry
from emberline.schema import TableSpec
from emberline.serving.remap import RemapParts, write_remap
from emberline.serving.remap.files import find_faults
from emberline.train.models import RecModel
from emberline.train.zch import remap_entries, zch_modules


def split_remaps(model: RecModel) -> dict[str, RemapParts]:
    """The map of every zero-collision table of a model, by table."""
    return {table: RemapParts(*remap_entries(module), routing=module.routing) for table, module in zch_modules(model).items()}


def write_remap_file(parts: RemapParts, spec: TableSpec, path: Path) -> RemapEntry:
    """Write one table's map.

    Raises:
        ExportError: the map contradicts itself; the message says how.
    """
    lists = {field.name: getattr(parts, field.name) for field in fields(parts) if field.name != "routing"}
    faults = find_faults(**lists, num_rows=spec.rows)
    if faults:
        raise ExportError(f"table {spec.name!r}: the id map in the checkpoint is damaged: {'; '.join(faults)}")
    return write_remap(path, **lists, num_rows=spec.rows, routing=parts.routing)
