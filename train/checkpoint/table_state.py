"""The tables of a run in a checkpoint: saved from any plan and kernel, restored into any other.

`tables/<table>/weight`, `tables/<table>/<moment>` and `tables/<table>/step` say nothing of kernels and ranks, but for one thing. Optimisers that keep
a moment for each row keep one for each row *of a shard*: where a table is cut by columns, each part averages over its own columns. Such a moment
is [rows, parts], the manifest has the first column of each part, and another cut takes the mean over the columns that it covers:

    parts of 8 and 8 columns   [a, b]   ──►   one of 16   [(a + b) / 2]   ──►   four of 4   [(a + b) / 2] each

Of sums and averages of mean squares that is exact, but for a cut into finer parts: nobody knows what they would have seen.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from emberline.errors import CheckpointError
from emberline.train.checkpoint.chunks import Chunk, Chunks
from emberline.train.checkpoint.shards import (
    TableShard,
    by_table,
    load_steps,
    moment_chunks,
    parts_to_write,
    reset_caches,
    step_tensors,
    weight_chunks,
)
from emberline.train.checkpoint.stored_rows import read_rows
from emberline.train.checkpoint.tensors import Stored, TensorInfo, load_tensors
from emberline.train.zch import FRESH, NewShard

Columns = Mapping[str, Sequence[int]]
"""Of each table that is cut by columns, the first column of each part."""


def table_state(shards: Sequence[TableShard]) -> dict[str, Stored]:
    """The live weights and moments that this rank writes, and the number of updates; all ranks together write everything once."""
    parts = parts_to_write(shards)
    return {**weight_chunks(parts), **moment_chunks(parts), **step_tensors(parts)}


@torch.no_grad()
def restore_tables(
    folder: Path, shards: Sequence[TableShard], stored: Mapping[str, TensorInfo], columns: Columns, moved: Mapping[str, NewShard] | None = None
) -> None:
    """Fill everything that `table_state` names.

    Args:
        folder: of the tensors.
        shards: of this rank.
        stored: what is there.
        columns: how tables were cut when they were saved.
        moved: ZCH tables whose rows lie elsewhere now.

    Raises:
        CheckpointError: something is missing or of another shape; nothing was filled then.
    """
    moved = moved or {}
    direct: dict[str, Stored] = {}
    averaged: list[tuple[str, TableShard]] = []
    for table, own in by_table(shards).items():
        if table in moved:
            continue
        direct |= weight_chunks(own)
        same_cut = tuple(columns.get(table, (0,))) == own[0].starts
        for name, chunks in moment_chunks(own).items():
            if same_cut or own[0].moments[_last(name)].dim() == 2:
                direct[name] = chunks
            else:
                averaged += [(name, shard) for shard in own]
    _check_averaged(averaged, stored, columns)
    load_tensors(folder, direct)
    for name, shard in averaged:
        _load_averaged(folder, name, shard, stored[name], columns.get(shard.table, (0,)))
    for table, new in moved.items():
        for shard in by_table(shards)[table]:
            move_rows(folder, shard, new)
    steps = step_tensors(shards)
    load_tensors(folder, steps)
    load_steps(shards, steps)
    reset_caches(shards)


def _check_averaged(averaged: Sequence[tuple[str, TableShard]], stored: Mapping[str, TensorInfo], columns: Columns) -> None:
    problems = []
    for name, shard in averaged:
        parts = len(columns.get(shard.table, (0,)))
        wanted = (shard.shape[0],) if parts == 1 else (shard.shape[0], parts)
        if name not in stored or stored[name].shape != wanted:
            problems.append(f"{name} is {list(stored[name].shape) if name in stored else 'not'} there, where {list(wanted)} is needed")
    if problems:
        raise CheckpointError("; ".join(dict.fromkeys(problems)))


def _load_averaged(folder: Path, name: str, shard: TableShard, info: TensorInfo, starts: Sequence[int]) -> None:
    """A moment that is kept by row, out of parts that had other columns."""
    first, into = shard.offsets[0], shard.moments[_last(name)]
    before = into.new_empty(len(into), len(starts))
    whole = len(info.shape) == 1
    part = Chunk((first,), before[:, 0].contiguous()) if whole else Chunk((first, 0), before)
    load_tensors(folder, {name: Chunks(info.shape, info.dtype, [part])})
    if whole:
        into.copy_(part.tensor)
        return
    start, end = shard.offsets[1], shard.offsets[1] + shard.weight.shape[1]
    ends = [*starts[1:], shard.shape[1]]
    shared = [max(0, min(end, stop) - max(start, begin)) for begin, stop in zip(starts, ends, strict=True)]
    shares = torch.tensor(shared, dtype=torch.float64) / sum(shared)
    into.copy_(before.double() @ shares)


@torch.no_grad()
def move_rows(folder: Path, shard: TableShard, new: NewShard, source: str = "", *, moments: bool = True) -> None:
    """Fill a shard whose rows come from elsewhere; rows that begin anew stay as they were built.

    Args:
        folder: of the tensors.
        shard: what to fill.
        new: where each row comes from.
        source: the table's name there, where it is another.
        moments: whether to fill them too.
    """
    rows = (new.sources != FRESH).nonzero().flatten()
    made_of = [row for parts in new.fallbacks.values() for row, _ in parts]
    wanted = torch.cat([new.sources[rows], torch.tensor(made_of)])
    for name, into in (("weight", shard.weight), *(shard.moments.items() if moments else ())):
        found = read_rows(folder, f"tables/{source or shard.table}/{name}", wanted)
        into[rows] = found[: len(rows)].to(into.device)
        fallbacks = found[len(rows) :].double()
        for place, parts in new.fallbacks.items():
            shares = torch.tensor([share for _, share in parts], dtype=torch.float64)
            own, fallbacks = fallbacks[: len(parts)], fallbacks[len(parts) :]
            into[place] = (shares @ own.view(len(shares), -1)).view(into[place].shape).to(into)


def _last(name: str) -> str:
    return name.rsplit("/", 1)[1]
