"""The part of a zero-collision table that is not vectors: which raw id reads which row, split out of the model for serving."""

from pathlib import Path

from torch import Tensor

from emberline.errors import ExportError
from emberline.manifest import FileEntry, RemapEntry
from emberline.schema import TableSpec
from emberline.serving.remap import RemapParts, write_remap
from emberline.serving.remap.files import find_faults
from emberline.train.models import RecModel
from emberline.train.zch import remap_entries, zch_modules


def split_remaps(model: RecModel) -> dict[str, RemapParts]:
    """The map of every zero-collision table of a model, by table."""
    return {table: RemapParts(*remap_entries(module), routing=module.routing) for table, module in zch_modules(model).items()}


def write_remap_file(parts: RemapParts, spec: TableSpec, path: Path) -> tuple[RemapEntry, FileEntry]:
    """Write one table's map; as `write_remap`.

    Raises:
        ExportError: as `require_sound_map`.
    """
    require_sound_map(parts, spec)
    return write_remap(path, **_lists(parts), num_rows=spec.rows, routing=parts.routing)


def require_sound_map(parts: RemapParts, spec: TableSpec) -> None:
    """Refuse a map that no artifact may hold.

    Raises:
        ExportError: the map contradicts itself; the message says how.
    """
    if faults := find_faults(**_lists(parts), num_rows=spec.rows):
        raise ExportError(f"table {spec.name!r}: the id map in the checkpoint is damaged: {'; '.join(faults)}")


def _lists(parts: RemapParts) -> dict[str, Tensor]:
    return {name: getattr(parts, name) for name in ("raw_ids", "rows", "fallback_starts", "fallback_rows")}
