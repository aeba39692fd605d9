"""Vectors from parquet files into tables: pretrained ones, of any origin.

A file has a column `id` (whole numbers) and a column `vector` (lists of as many numbers as the table is wide). Ids of a table of fixed rows are its
rows; rows that no id names stay as they are. Ids of a ZCH table are raw ids: those that have a row keep it, and others are admitted as if training
had met each once. So are those of a table that grows, which may be any whole number of 64 bits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor, nn

from emberline.errors import ConfigError, DataError
from emberline.routing import MIXED, owner_of
from emberline.schema import TableSpec
from emberline.train.checkpoint.admit import admit
from emberline.train.checkpoint.live_dynamic import HeldTables, live_tables
from emberline.train.checkpoint.shards import TableShard, by_table, reset_caches, table_shards
from emberline.train.checkpoint.take_dynamic import merged
from emberline.train.checkpoint.tensors import dtype_name
from emberline.train.data.parquet_source import open_parquet
from emberline.train.features.configs import HASHED
from emberline.train.features.sentences import given_again, unknown_name
from emberline.train.models import RecModel
from emberline.train.zch import FREE_ROW, IdMap, zch_modules

Ids = npt.NDArray[np.int64]
ID, VECTOR = "id", "vector"
_ROWS = 1 << 14


@dataclass(frozen=True)
class VectorFile:
    """The vectors of one table.

    Args:
        table: its name.
        path: a parquet file.
    """

    table: str
    path: Path


def parse_vector_file(text: str) -> VectorFile:
    """`TABLE=FILE`.

    Raises:
        ValueError: it is not of that form, or the file is on another machine.
    """
    table, sign, path = text.partition("=")
    if not (table and sign and path):
        raise ValueError(f"must be TABLE=FILE, found {text!r}")
    return VectorFile(table, local_file(path))


def local_file(text: str) -> Path:
    """A file's path.

    Raises:
        ValueError: it is on another machine.
    """
    scheme, sign, _ = text.partition("://")
    if sign:
        raise ValueError(f"files of vectors are read from disks, and {text!r} is at a place of {scheme}: copy or mount it")
    return Path(text)


def check_vector_files(files: Sequence[VectorFile], tables: Sequence[TableSpec]) -> None:
    """Look at the files' columns, before anything is built.

    Raises:
        ConfigError: no table of that name, or a table twice; names all.
        DataError: a file cannot be read, or has other columns.
    """
    dims = {spec.name: spec.dim for spec in tables}
    problems = [f"--init-table: {unknown_name('table', file.table, list(dims))}" for file in files if file.table not in dims]
    problems += given_again("--init-table: table", [file.table for file in files])
    if problems:
        raise ConfigError(problems)
    for file in files:
        with open_parquet(file.path) as parquet:
            schema = parquet.schema_arrow
        if ID not in schema.names or VECTOR not in schema.names:
            raise DataError(f"{file.path} must have the columns {ID!r} and {VECTOR!r}, found {', '.join(schema.names) or 'none'}")
        if not pa.types.is_integer(schema.field(ID).type):
            raise DataError(f"{file.path}: column {ID!r} must hold whole numbers, found {schema.field(ID).type}")
        _check_vectors(file.path, schema.field(VECTOR).type, dims[file.table])


@torch.no_grad()
def fill_tables(files: Sequence[VectorFile], sharded: nn.Module, model: RecModel) -> None:
    """Fill the parts of tables that this rank holds; every rank reads the files.

    Raises:
        DataError: a row that has no id or no vector of the table's width, an id twice or that the table has no row for; names file and row.
    """
    maps, shards, growing = zch_modules(model), table_shards(sharded), live_tables(sharded)
    own = by_table(shards)
    for file in files:
        parts = own.get(file.table, [])
        if file.table in maps:
            _admit(file, maps[file.table], parts)
        elif file.table in growing:
            _grow(file, growing[file.table])
        elif parts:
            _fill_rows(file, parts)
    reset_caches(shards)


@dataclass(frozen=True)
class _Rows:
    """Rows of a file.

    Args:
        first: the place of the first.
        ids: int64 [n].
        vectors: [n, dim] of the table's number type.
    """

    first: int
    ids: Ids
    vectors: Tensor


def _fill_rows(file: VectorFile, parts: Sequence[TableShard]) -> None:
    """Ids that are rows."""
    num_rows, dim = parts[0].shape
    low = min(part.offsets[0] for part in parts)
    high = max(part.offsets[0] + len(part.weight) for part in parts)
    seen = np.zeros(high - low, dtype=bool)
    for rows in _read(file.path, dim, parts[0].weight.dtype):
        bad = (rows.ids < 0) | (rows.ids >= num_rows)
        if bad.any():
            place = int(bad.argmax())
            raise DataError(f"{file.path} row {rows.first + place}: table {file.table!r} has rows 0 to {num_rows - 1}, found id {rows.ids[place]}")
        near = (rows.ids >= low) & (rows.ids < high)
        before = np.zeros(len(near), dtype=bool)
        before[near] = seen[rows.ids[near] - low]
        _refuse_twice(file.path, rows, before)
        seen[rows.ids[near] - low] = True
        ids = torch.from_numpy(rows.ids)
        for part in parts:
            (first, column), (size, width) = part.offsets, part.weight.shape
            here = (ids >= first) & (ids < first + size)
            part.weight[ids[here] - first] = rows.vectors[here, column : column + width].to(part.weight)


def _admit(file: VectorFile, module: IdMap, parts: Sequence[TableShard]) -> None:
    """Raw ids, each of which has a row in the shard that it is routed to, or gets one; ids are read first, and no rank keeps those of others."""
    (part,) = parts  # such tables are cut by rows
    ids = torch.from_numpy(_own_ids(file.path, lambda found: _owned(found, module), reserved_id=FREE_ROW))
    taken = module.rows_in_use
    rows_of = admit(module, ids)
    if rows_of is None:
        had = f", {taken} of them taken before" if taken else ""
        where = " where they may lie" if module.kind == HASHED else ""
        raise DataError(
            f"{file.path}: more ids than table {file.table!r} has rows for{where}: "
            f"{module.capacity} on rank {module.shard} of {module.num_shards}{had}; raise zch_size"
        )
    for rows in _read(file.path, part.shape[1], part.weight.dtype):
        own = _owned(rows.ids, module)
        places = torch.searchsorted(ids, torch.from_numpy(rows.ids[own]))
        part.weight[rows_of[places].to(part.weight.device)] = rows.vectors[torch.from_numpy(own)].to(part.weight)


def _grow(file: VectorFile, kernel: HeldTables) -> None:
    """Raw ids of any 64 bits, each of which has a row on the rank that it belongs to, or gets one; no rank keeps those of others."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def owns(ids: Ids) -> npt.NDArray[np.bool_]:
        owned: npt.NDArray[np.bool_] = owner_of(ids, ranks, MIXED) == rank
        return owned

    table = next(one for one in kernel.described if one.name == file.table)
    keys, state = torch.from_numpy(_own_ids(file.path, owns)), kernel.dump(file.table)
    room, new = table.max_rows, int((~torch.isin(keys, state.keys)).sum())
    if new + len(state.keys) > room:
        had = f", {len(state.keys)} of them taken before" if len(state.keys) else ""
        raise DataError(
            f"{file.path}: more ids than table {file.table!r} has rows for: {new} new ones, and {room} rows on rank {rank} of {ranks}{had}; "
            "raise max_capacity"
        )
    vectors = torch.empty(len(keys), table.dim, dtype=kernel.dtype)
    for rows in _read(file.path, table.dim, kernel.dtype):
        own = owns(rows.ids)
        vectors[torch.searchsorted(keys, torch.from_numpy(rows.ids[own]))] = rows.vectors[torch.from_numpy(own)]
    kernel.load(file.table, merged(state, keys, vectors, kernel, file.table))


def _own_ids(path: Path, owns: Callable[[Ids], npt.NDArray[np.bool_]], *, reserved_id: int | None = None) -> Ids:
    """The ids of a file that this rank has, ascending."""
    ids, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for first, batch in _batches(path, [ID]):
        found = _whole_ids(path, first, batch.column(0))
        reserved = found == reserved_id if reserved_id is not None else np.zeros(len(found), dtype=bool)
        if reserved.any():
            raise DataError(f"{path} row {first + int(reserved.argmax())}: the id {reserved_id} can't have a row")
        own = owns(found)
        ids.append(found[own])
        places.append(own.nonzero()[0] + first)
    joined, rows = np.concatenate(ids), np.concatenate(places)
    order = np.argsort(joined, kind="stable")
    ascending = joined[order]
    again = order[1:][ascending[1:] == ascending[:-1]]
    if len(again):
        place = int(again.min())
        raise DataError(f"{path} row {rows[place]}: the id {joined[place]} is there before")
    return ascending


def _owned(ids: Ids, module: IdMap) -> npt.NDArray[np.bool_]:
    """Which ids belong to a shard."""
    owned: npt.NDArray[np.bool_] = module.owns(torch.from_numpy(ids)).numpy()
    return owned


def _read(path: Path, dim: int, dtype: torch.dtype) -> Iterator[_Rows]:
    """The file's rows, some at a time."""
    for first, batch in _batches(path, [ID, VECTOR]):
        yield _rows(path, first, batch, dim, dtype)


def _batches(path: Path, columns: list[str]) -> Iterator[tuple[int, Any]]:
    """The place of the first row, and the rows."""
    first = 0
    with open_parquet(path) as parquet:
        try:
            for batch in parquet.iter_batches(batch_size=_ROWS, columns=columns):
                yield first, batch
                first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is damaged after row {first}: {error}") from error


def _rows(path: Path, first: int, batch: Any, dim: int, dtype: torch.dtype) -> _Rows:
    whole, lists = _whole_ids(path, first, batch.column(0)), batch.column(1)
    _refuse_none(path, first, lists, VECTOR)
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    if (lengths != dim).any():
        place = int((lengths != dim).argmax())
        raise DataError(f"{path} row {first + place}: the table has vectors of {dim} numbers, found {lengths[place]}")
    values = lists.flatten()
    numbers = values.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False).reshape(-1, dim)
    bad = ~np.isfinite(numbers).all(axis=1)
    if bad.any():
        raise DataError(f"{path} row {first + int(bad.argmax())}: a number of the vector is missing, NaN or infinite")
    vectors = torch.from_numpy(np.array(numbers)).to(dtype)
    beyond = ~torch.isfinite(vectors).all(dim=1)
    if beyond.any():
        raise DataError(
            f"{path} row {first + int(beyond.int().argmax())}: a number of the vector is beyond what the table's {dtype_name(dtype)} holds"
        )
    return _Rows(first, whole, vectors)


def _whole_ids(path: Path, first: int, column: Any) -> Ids:
    _refuse_none(path, first, column, ID)
    try:
        return np.array(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} rows {first} to {first + len(column) - 1}: an id is beyond 64-bit integers with a sign: {error}") from error


def _refuse_none(path: Path, first: int, column: Any, name: str) -> None:
    if column.null_count:
        raise DataError(f"{path} row {first + int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))}: no {name}")


def _refuse_twice(path: Path, rows: _Rows, seen: npt.NDArray[np.bool_]) -> None:
    """Refuse ids that came before, in other rows or among these."""
    _, places = np.unique(rows.ids, return_index=True)
    first_here = np.zeros(len(rows.ids), dtype=bool)
    first_here[places] = True
    again = seen | ~first_here
    if again.any():
        place = int(again.argmax())
        raise DataError(f"{path} row {rows.first + place}: the id {rows.ids[place]} is there before")


def _check_vectors(path: Path, kind: Any, dim: int) -> None:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise DataError(f"{path}: column {VECTOR!r} must hold lists of numbers, found {kind}")
    if pa.types.is_fixed_size_list(kind) and kind.list_size != dim:
        raise DataError(f"{path}: the table has vectors of {dim} numbers, found {kind.list_size}")
