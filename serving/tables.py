"""Embedding tables on disk and in memory: one safetensors file each, whose tensor `rows` is [rows, dim], or bytes [rows, stored_width]."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from emberline.errors import ArtifactError, ConfigError
from emberline.manifest import FileEntry, TableEntry
from emberline.schema import TableSpec
from emberline.serving.files import TensorWriter, map_tensors, write_tensors
from emberline.serving.quantized import STORED_DTYPES, stored_width
from emberline.serving.row_layout import DEFAULT_GROWTH, require_growth
from emberline.serving.rows_on_disk import RowsOnDisk

TABLE_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""What tables are trained in; `emberline.serving.quantized` has all that they are stored in."""
PRIVATE, MAPPED, ON_DISK = TABLE_MEMORIES = ("private", "mapped", "disk")
"""Where an engine's tables are: in memory of its own, on huge pages; in the pages of their files, which all processes share; or in their files."""


class TableWriter(TensorWriter):
    """Writes a table file block by block.

    Args:
        path: of the file.
        rows: how many there will be.
        width: elements of a stored row.
        dtype: of an element.
    """

    def __init__(self, path: Path, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(path, {"rows": ((rows, width), dtype)})


def write_table(path: Path, rows: Tensor) -> FileEntry:
    """Write stored rows [rows, stored_width] as a table file.

    Returns:
        Size and digests of the file.
    """
    assert rows.dim() == 2, rows.shape
    return write_tensors(path, {"rows": rows})


def require_memory(tables: str, device_type: str) -> None:
    """Refuse what tables cannot be in, for lookups on a type of device, `cpu` or `cuda`.

    Raises:
        ConfigError: there is no such memory, or not for lookups on this device.
    """
    if tables not in TABLE_MEMORIES:
        raise ConfigError(f"tables cannot be in {tables!r}: choose {', '.join(TABLE_MEMORIES[:-1])} or {TABLE_MEMORIES[-1]}")
    if tables == MAPPED and device_type != "cpu":
        raise ConfigError(f"tables are mapped for lookups on a CPU; on {device_type} they are in its own memory: choose {PRIVATE!r}")


def growth_of(growth: float | None, tables: str, device_type: str) -> float:
    """By what share tables may be larger than their files.

    Args:
        growth: what was asked for; None for the usual.
        tables: where they are.
        device_type: of lookups.

    Raises:
        ConfigError: it is no share, or the tables are not in memory of their own, where rows could lie apart.
    """
    if growth is None:
        return DEFAULT_GROWTH
    require_growth(growth)
    if growth and (tables != PRIVATE or device_type != "cpu"):
        where = f"tables that are {'on disk' if tables == ON_DISK else tables}" if tables != PRIVATE else f"tables in memory of {device_type}"
        raise ConfigError(f"row_growth is for {PRIVATE} tables on a CPU: {where} do not grow; leave it out")
    return growth


def stored_layout(spec: TableSpec, entry: TableEntry) -> tuple[int, torch.dtype]:
    """How a table's rows are stored, in its own file and in deltas, as its entry says: elements of a row, and their type.

    Raises:
        ArtifactError: this release does not read it.
    """
    if entry.dtype not in STORED_DTYPES:
        raise ArtifactError(f"table {spec.name!r}: rows of type {entry.dtype!r} are not supported; this release reads {', '.join(STORED_DTYPES)}")
    return stored_width(spec.dim, entry.dtype), STORED_DTYPES[entry.dtype]


def require_table(found: Mapping[str, Tensor], spec: TableSpec, entry: TableEntry) -> None:
    """Make sure that a file's tensors are the table that the schema describes.

    Raises:
        ArtifactError: they are not.
    """
    width, dtype = stored_layout(spec, entry)
    rows = found.get("rows")
    if rows is None:
        raise ArtifactError(f"{entry.file}: there is no tensor 'rows' for table {spec.name!r}")
    want = (spec.rows, width)
    if tuple(rows.shape) != want or rows.dtype != dtype:
        raise ArtifactError(f"{entry.file}: table {spec.name!r} should be {want} of {entry.dtype}, found {tuple(rows.shape)} of {rows.dtype}")


def leave_table(path: Path, spec: TableSpec, entry: TableEntry) -> RowsOnDisk:
    """The table, its rows left in the file.

    Raises:
        ArtifactError: the file does not hold the table that the schema describes.
    """
    require_table(map_tensors(path), spec, entry)
    return RowsOnDisk.find(path)
