"""Which lookup backend answers."""

from collections.abc import Mapping

import torch
from torch import Tensor

from emberline.errors import ConfigError, MissingDependencyError
from emberline.schema import ModelSchema
from emberline.serving.lookup.backend import LookupBackend
from emberline.serving.lookup.fbgemm_backend import FbgemmLookup
from emberline.serving.lookup.fused import FusedLookup
from emberline.serving.lookup.native import KERNEL, NativeLookup
from emberline.serving.lookup.rows import RowFinder
from emberline.serving.lookup.torch_backend import TorchLookup
from emberline.serving.remap import RemapIndex
from emberline.serving.rows_on_disk import RowsOnDisk, TableRows

LOOKUPS = ("native", "torch", "fbgemm", "fused")
"""The backends by name."""


def choose_lookup(
    schema: ModelSchema,
    tables: Mapping[str, TableRows],
    types: Mapping[str, str],
    device: torch.device,
    name: str | None = None,
) -> LookupBackend:
    """The backend of a name, with a model's tables.

    Args:
        schema: the model's description.
        tables: stored rows of each table.
        types: the number type of each table; float32 where one is not there.
        device: where lookups run.
        name: of `LOOKUPS`; None takes the first of `native` and `torch` that works here.

    Raises:
        ConfigError: there is none of that name.
        MissingDependencyError: it does not work here; the message says why.
    """
    if name is not None and name not in LOOKUPS:
        raise ConfigError(f"there is no lookup {name!r}: {', '.join(LOOKUPS)}")
    library = KERNEL.get() if device.type == "cpu" and name in ("native", "fbgemm", None) else None
    if name == "native" and library is None:
        why = KERNEL.reason() if device.type == "cpu" else f"it is for CPUs, and the device is {str(device)!r}"
        raise MissingDependencyError(f"lookup 'native' does not work here: {why}")
    if name == "fused":
        return FusedLookup.of(schema, tables, types, device)
    plain: LookupBackend = TorchLookup(schema, tables, types) if library is None else NativeLookup(schema, tables, types, library)
    if name != "fbgemm":
        return plain
    return FbgemmLookup.of(schema, {table: _whole(rows) for table, rows in tables.items()}, types, device, plain)


def choose_finder(schema: ModelSchema, remaps: Mapping[str, RemapIndex], lookup: LookupBackend) -> RowFinder:
    """What finds the rows of batches.

    Args:
        schema: the model's description, or a part of it.
        remaps: raw id -> row, for each ZCH or dynamic table.
        lookup: of the same.
    """
    return lookup.finder(remaps) if isinstance(lookup, FusedLookup) else RowFinder(schema, remaps)


def _whole(rows: TableRows) -> Tensor:
    if isinstance(rows, RowsOnDisk):
        raise MissingDependencyError("lookup 'fbgemm' needs tables in memory, and these stay on disk")
    return rows if isinstance(rows, Tensor) else rows.take(torch.arange(rows.base.shape[0], device=rows.base.device))
