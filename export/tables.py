"""The embedding tables of an artifact: rows as safetensors files, and beside each zero-collision table its map of raw ids."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from emberline.errors import ExportError
from emberline.export.remap import write_remap_file
from emberline.manifest import TableEntry
from emberline.schema import TableKind, TableSpec
from emberline.serving.remap import RemapParts
from emberline.serving.tables import TABLE_DTYPES, write_table
from emberline.train.models import RecModel

TABLES_DIR = "tables"
REMAP_DIR = "remap"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def write_tables(
    model: RecModel,
    remaps: Mapping[str, RemapParts],
    root: Path,
    progress: Callable[[str], None],
    rows_after: Callable[[str], Sequence[Tensor]] = lambda table: (),
) -> tuple[TableEntry, ...]:
    """Write every table of a model below `root`, in its own number type.

    Args:
        model: unsharded, in eval mode.
        remaps: the map of every zero-collision table.
        root: the artifact's folder.
        progress: called with one line for each table.
        rows_after: by table: rows [dim] to write after the trained ones.

    Raises:
        ExportError: a table holds NaN or infinity, or two tables would have one file.
    """
    weights = model.embedding_group.table_weights()
    specs = model.embedding_group.tables
    stems = file_stems([spec.name for spec in specs])
    entries = []
    for spec in specs:
        rows = weights[spec.name].detach()
        require_finite(spec, rows)
        assert rows.dtype == TABLE_DTYPES[spec.dtype], (spec, rows.dtype)
        file = f"{TABLES_DIR}/{stems[spec.name]}.safetensors"
        (root / TABLES_DIR).mkdir(exist_ok=True)
        more = rows_after(spec.name)
        write_table(root / file, torch.cat([rows, torch.stack(list(more))]) if more else rows)
        remap = None
        if spec.kind is not TableKind.STATIC:
            (root / REMAP_DIR).mkdir(exist_ok=True)
            remap = write_remap_file(remaps[spec.name], spec, root / REMAP_DIR / f"{stems[spec.name]}.safetensors")
        entries.append(TableEntry(table=spec.name, file=file, dtype=spec.dtype, remap=remap))
        ids = f", {remap.num_ids} raw ids" if remap is not None else ""
        own = f", {len(more)} more row{'s' if len(more) > 1 else ''} for unknown ids" if more else ""
        progress(f"table {spec.name}: {spec.rows} x {spec.dim} {spec.dtype}{ids}{own}")
    return tuple(entries)


def file_stems(names: Sequence[str]) -> dict[str, str]:
    """A file name for each table: its own name, with `_` for what not every file system takes.

    Raises:
        ExportError: two names become one, upper and lower case taken as equal.
    """
    stems: dict[str, str] = {}
    for name in names:
        stem = _UNSAFE.sub("_", name)
        taken = [other for other, used in stems.items() if used.lower() == stem.lower()]
        if taken:
            raise ExportError(f"tables {taken[0]!r} and {name!r} would both be stored as {stem!r}: rename one by its embedding_name")
        stems[name] = stem
    return stems


def require_finite(spec: TableSpec, rows: Tensor) -> None:
    """Refuse a table that no artifact may hold.

    Raises:
        ExportError: a row holds NaN or infinity; names the first.
    """
    finite = rows.isfinite()
    if not bool(finite.all()):
        row = int((~finite.all(dim=1)).nonzero()[0])
        raise ExportError(f"table {spec.name!r}: row {row} holds NaN or infinity; the training has diverged: export an earlier step")
