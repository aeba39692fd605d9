"""The part of a table with raw ids that is not vectors: which id reads which row, split out of the model or its checkpoint for serving."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from emberline.errors import ExportError
from emberline.export.row_source import RowSource
from emberline.manifest import FileEntry, RemapEntry
from emberline.schema import TableKind, TableSpec
from emberline.serving.remap import RemapParts, write_remap
from emberline.serving.remap.files import find_faults
from emberline.train.models import RecModel
from emberline.train.zch import remap_entries, zch_modules


def split_remaps(model: RecModel) -> dict[str, RemapParts]:
    """The map of every zero-collision table of a model, by table."""
    return {table: RemapParts(*remap_entries(module), routing=module.routing) for table, module in zch_modules(model).items()}


def dynamic_remaps(model: RecModel, rows: RowSource) -> dict[str, RemapParts]:
    """The map of every table of a model that grows, by table.

    Raises:
        CheckpointError: one is damaged.
        ExportError: there is no room for its new ids, where it is laid over one of an artifact.
    """
    return {table.name: rows.dynamic(table.name).remap for table in model.embedding_group.tables if table.kind is TableKind.DYNAMIC}


def write_remap_file(parts: RemapParts, spec: TableSpec, path: Path, spare_rows: int = 0) -> tuple[RemapEntry, FileEntry]:
    """Write one table's map; as `write_remap`.

    Args:
        parts: the map.
        spec: the table.
        path: where to write.
        spare_rows: of the table.

    Raises:
        ExportError: as `require_sound_map`.
    """
    require_sound_map(parts, spec)
    entry, written = write_remap(path, **_lists(parts), num_rows=spec.rows, routing=parts.routing, kind=spec.kind)
    return replace(entry, spare_rows=spare_rows), written


def require_sound_map(parts: RemapParts, spec: TableSpec) -> None:
    """Refuse a map that no artifact may hold.

    Raises:
        ExportError: the map contradicts itself; the message says how.
    """
    if faults := find_faults(**_lists(parts), num_rows=spec.rows, kind=spec.kind):
        raise ExportError(f"table {spec.name!r}: the id map in the checkpoint is damaged: {'; '.join(faults)}")


def _lists(parts: RemapParts) -> dict[str, Tensor]:
    return {name: getattr(parts, name) for name in ("raw_ids", "rows", "fallback_starts", "fallback_rows")}
