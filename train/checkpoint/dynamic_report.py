"""The tables of a checkpoint that grow, for a terminal: how full they are, how long ago ids were read, and what other ranks make of them."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from emberline.routing import MIXED, owner_of
from emberline.train.checkpoint.layout import Layout
from emberline.train.checkpoint.ranks import spread_text
from emberline.train.checkpoint.stored_dynamic import BLOCK_ROWS, COUNTED_KEYS, KEYS, LAST_STEPS, WEIGHT, StoredDynamic
from emberline.train.checkpoint.tensors import dtype_name, read_index

TITLES = ("growing table", "ids", "of at most", "load", "dim", "type", "moments", "steps", "score", "waiting", "evicted", "expired", "bytes")
AGES = ("steps since an id was read", "newest", "a tenth at most", "half at most", "nine tenths at most", "oldest")
RESHARDED = ("growing table", "ids", "rows a rank", "ids a rank", "dropped")
_SAMPLE = 1 << 16
"""Ages of so many ids are looked at, evenly spaced."""


def open_tables(folder: Path, layout: Layout) -> list[StoredDynamic]:
    """All of them, by name.

    Args:
        folder: of the tensors.
        layout: of the checkpoint.

    Raises:
        CheckpointError: one is missing or damaged.
    """
    index = read_index(folder) if layout.dynamic else None
    return [StoredDynamic(folder, table, notes, index) for table, notes in sorted(layout.dynamic.items())]


def table_cells(table: StoredDynamic) -> tuple[str, ...]:
    """A row of `TITLES`."""
    rows, notes = table.num_ids, table.notes
    moments = ", ".join(f"{name} by row" if len(table.infos[name].shape) == 1 else name for name in table.moments)
    totals = dict(zip(notes.numbers, table.numbers.sum(0).tolist(), strict=True))
    size = sum(math.prod(table.infos[part].shape) * table.infos[part].dtype.itemsize for part in table.row_parts)
    return (
        table.table,
        f"{rows:,}",
        f"{notes.max_capacity:,}",
        f"{rows / notes.max_capacity:.1%}",
        str(table.dim),
        dtype_name(table.infos[WEIGHT].dtype),
        moments or "-",
        f"{table.step:,}",
        notes.score_strategy,
        f"{table.infos[COUNTED_KEYS].shape[0]:,}",
        *(f"{totals[name]:,}" if name in totals else "-" for name in ("evicted", "expired")),
        f"{size:,}",
    )


def age_cells(table: StoredDynamic) -> tuple[str, ...]:
    """A row of `AGES`; of a large table, a sample's."""
    step = max(1, math.ceil(table.num_ids / _SAMPLE))
    ages, _ = (table.step - table.take(LAST_STEPS, torch.arange(0, table.num_ids, step))).sort()
    if not len(ages):
        return (table.table, *["-"] * 5)
    last = len(ages) - 1
    return (table.table, *(f"{int(ages[round(share * last)]):,}" for share in (0.0, 0.1, 0.5, 0.9, 1.0)))


def reshard_cells(table: StoredDynamic, ranks: int) -> tuple[str, ...]:
    """A row of `RESHARDED`."""
    counts, room = ids_by_rank(table, ranks), -(-table.notes.max_capacity // ranks)
    return table.table, f"{table.num_ids:,}", f"{room:,}", spread_text(counts), f"{sum(max(0, count - room) for count in counts):,}"


def ids_by_rank(table: StoredDynamic, ranks: int) -> list[int]:
    """How many ids each of so many ranks would have."""
    counts = torch.zeros(ranks, dtype=torch.int64)
    for keys in _blocks(table):
        counts += torch.bincount(owner_of(keys, ranks, MIXED), minlength=ranks)
    found: list[int] = counts.tolist()
    return found


def _blocks(table: StoredDynamic) -> Iterator[torch.Tensor]:
    for first in range(0, table.num_ids, BLOCK_ROWS):
        yield table.read(KEYS, first, min(first + BLOCK_ROWS, table.num_ids))


def dynamic_rows(tables: Sequence[StoredDynamic]) -> list[list[tuple[str, ...]]]:
    """The tables of `emberline inspect`, each with its titles; none where nothing grows."""
    if not tables:
        return []
    return [[TITLES, *map(table_cells, tables)], [AGES, *map(age_cells, tables)]]
