"""The embedding tables of an artifact: rows as safetensors files, and beside each with raw ids the map of these."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from emberline.errors import ExportError
from emberline.export.remap import write_remap_file
from emberline.export.table_rows import TableRows
from emberline.manifest import FileEntry, TableEntry
from emberline.schema import TableKind
from emberline.serving.remap import RemapParts
from emberline.serving.tables import TableWriter
from emberline.train.data.prefetch import Prefetch

TABLES_DIR = "tables"
REMAP_DIR = "remap"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def write_tables(
    tables: Sequence[TableRows], remaps: Mapping[str, RemapParts], root: Path, progress: Callable[[str], None]
) -> tuple[tuple[TableEntry, ...], dict[str, FileEntry]]:
    """Write tables below `root`, each in its own number type, block by block.

    Args:
        tables: every table of a model.
        remaps: the map of every table with raw ids.
        root: the artifact's folder.
        progress: called with one line for each table.

    Returns:
        An entry for each table, and the size and digests of the files.

    Raises:
        CheckpointError: a file of the checkpoint cannot be read.
        ExportError: a table holds NaN, infinity, or more than its number type can, or two tables would have one file.
    """
    stems = file_stems([table.spec.name for table in tables])
    entries, files = [], dict[str, FileEntry]()
    for table in tables:
        spec, file = table.spec, f"{TABLES_DIR}/{stems[table.spec.name]}.safetensors"
        (root / TABLES_DIR).mkdir(exist_ok=True)
        files[file] = _write_rows(table, root / file)
        remap = None
        if spec.kind is not TableKind.STATIC:
            (root / REMAP_DIR).mkdir(exist_ok=True)
            path = root / REMAP_DIR / f"{stems[spec.name]}.safetensors"
            remap, written = write_remap_file(remaps[spec.name], spec, path, table.spare_rows)
            files[remap.file] = written
        entries.append(TableEntry(table=spec.name, file=file, dtype=table.number_type, remap=remap))
        ids = f", {remap.num_ids} raw ids" if remap is not None else ""
        ids += f" and {remap.spare_rows} spare rows" if remap is not None and remap.spare_rows else ""
        own = f", {len(table.more)} more row{'s' if len(table.more) > 1 else ''} for unknown ids" if table.more else ""
        progress(f"table {spec.name}: {spec.rows} x {spec.dim} {table.number_type}{ids}{own}")
    return tuple(entries), files


def _write_rows(table: TableRows, path: Path) -> FileEntry:
    """The next block is read while one is written."""
    with Prefetch(table.blocks(), depth=1) as blocks, TableWriter(path, table.num_rows, table.width, table.dtype) as writer:
        for block in blocks:
            writer.write(block)
        return writer.close()


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
