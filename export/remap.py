"""The part of a zero-collision table that is not vectors: which raw id reads which row, split out of the model for serving."""

from pathlib import Path

from emberline.errors import ExportError
from emberline.manifest import RemapEntry
from emberline.schema import TableSpec
from emberline.serving.remap import write_remap
from emberline.serving.remap.files import find_faults
from emberline.train.models import RecModel
from emberline.train.zch import remap_entries, zch_modules


def split_remap(model: RecModel, spec: TableSpec, path: Path) -> RemapEntry:
    """Write one table's map: raw ids that own a row, ascending and without markers of free rows, and the fallback row of each range of ids.

    Raises:
        ExportError: the model's map of this table contradicts itself; the message says how.
    """
    raw_ids, rows, fallback_starts, fallback_rows = remap_entries(zch_modules(model)[spec.name])
    faults = find_faults(raw_ids, rows, fallback_starts, fallback_rows, spec.rows)
    if faults:
        raise ExportError(f"table {spec.name!r}: the id map in the checkpoint is damaged: {'; '.join(faults)}")
    return write_remap(path, raw_ids=raw_ids, rows=rows, fallback_starts=fallback_starts, fallback_rows=fallback_rows, num_rows=spec.rows)
