"""Tables that grow, on their way into a checkpoint: out of what a rank holds, or row by row out of anything that can be read by rows.

base            rows 0 1 2 3 ..   ─┐
increment 1     rows 0 1 ..       ─┼─►  keys by rank, ascending; the source and the row of each  ─►  written a piece at a time
increment 2     rows 0 ..         ─┘
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from emberline.routing import MIXED, owner_of
from emberline.train.checkpoint.chunks import ReadChunks, Reading
from emberline.train.checkpoint.stored_dynamic import (
    COUNTED_KEYS,
    COUNTS,
    DEFAULT,
    KEYS,
    LAST_STEPS,
    NUMBERS,
    PREFIX,
    SCORES,
    STEP,
    UNADMITTED,
    UPDATES,
    WEIGHT,
    DynamicNotes,
)
from emberline.train.checkpoint.tensors import Writable
from emberline.train.dynamic.state import DynamicState


@dataclass(frozen=True)
class Column:
    """One part that has a row for each id.

    Args:
        dtype: of its numbers.
        width: what a row of it is shaped like: () for one number.
        read: gives the rows from the first to before the second number, [n, *width].
    """

    dtype: torch.dtype
    width: tuple[int, ...]
    read: Callable[[int, int], Tensor]


class RowSource(Protocol):
    """Something that has rows of a table."""

    def take(self, part: str, rows: Tensor) -> Tensor:
        """Some rows of a part: int64 [n], in any order -> [n, ...]."""


@dataclass(frozen=True)
class Place:
    """Where one rank's rows lie among those of all.

    Args:
        first: the first of them.
        count: how many.
        total: of all ranks.
    """

    first: int
    count: int
    total: int


def columns_of(state: DynamicState) -> dict[str, Column]:
    """The parts of a state that have a row for each id."""
    parts = {KEYS: state.keys, WEIGHT: state.weights, **state.moments, LAST_STEPS: state.last_steps, SCORES: state.scores}
    return {name: _column(tensor) for name, tensor in parts.items()}


def row_tensors(table: str, columns: Mapping[str, Column], place: Place, *, is_copy: bool = False) -> dict[str, Writable]:
    """What a rank writes of parts that have a row for each id.

    Args:
        table: its name.
        columns: by part.
        place: of the rank's rows.
        is_copy: nothing changes what the columns read any more, so that nobody needs to copy it.
    """
    found: dict[str, Writable] = {}
    for part, column in columns.items():
        name = f"{PREFIX}{table}/{part}"
        if not place.total:  # parts without rows are in no file
            found[name] = torch.empty(0, *column.width, dtype=column.dtype)
            continue
        reading = Reading((place.first, *[0] * len(column.width)), (place.count, *column.width), column.read)
        found[name] = ReadChunks((place.total, *column.width), column.dtype, [reading], is_copy=is_copy)
    return found


def counted_columns(keys: Tensor, counts: Tensor) -> dict[str, Column]:
    """The parts that have a row for each id that waits for admission."""
    return {COUNTED_KEYS: _column(keys), COUNTS: _column(counts)}


def common_tensors(table: str, default: Tensor, unadmitted: Tensor, numbers: Tensor) -> dict[str, Writable]:
    """What has no rows: the first rank writes it."""
    parts = {DEFAULT: default, UNADMITTED: unadmitted, NUMBERS: numbers}
    return {f"{PREFIX}{table}/{part}": tensor for part, tensor in parts.items()}


def order_by_owner(keys: Tensor, ranks: int) -> Tensor:
    """The order in which a checkpoint of so many ranks has ids: rank by rank, ascending. int64 [K] -> places [K]."""
    return torch.from_numpy(np.lexsort((keys.numpy(), owner_of(keys, ranks, MIXED).numpy())))


@dataclass(frozen=True, kw_only=True)
class DynamicDraft:
    """A whole table, written by one process.

    Args:
        table: its name.
        ranks: S, that it is laid out for.
        keys: int64 [K], each once, in any order.
        places: int64 [K, 2]: of each key the place of its source among `sources`, and its row there.
        sources: where rows are.
        columns: type and width of each part but the keys.
        counted_keys: int64 [C], each once, in any order.
        counts: int64 [C].
        default: float32 [dim].
        unadmitted: float32 [dim].
        numbers: int64 [S, N].
        notes: for the manifest.
    """

    table: str
    ranks: int
    keys: Tensor
    places: Tensor
    sources: Sequence[RowSource]
    columns: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    counted_keys: Tensor
    counts: Tensor
    default: Tensor
    unadmitted: Tensor
    numbers: Tensor
    notes: DynamicNotes

    def tensors(self) -> dict[str, Writable]:
        """Everything that is written of it."""
        order = order_by_owner(self.keys, self.ranks)
        keys, places = self.keys[order], self.places[order]

        def column(part: str, dtype: torch.dtype, width: tuple[int, ...]) -> Column:
            return Column(dtype, width, lambda first, stop: self._gather(part, dtype, width, places[first:stop]))

        columns = {KEYS: _column(keys)} | {part: column(part, *kind) for part, kind in self.columns.items()}
        counted = order_by_owner(self.counted_keys, self.ranks)
        waiting = counted_columns(self.counted_keys[counted], self.counts[counted])
        return {
            **row_tensors(self.table, columns, Place(0, len(keys), len(keys))),
            **row_tensors(self.table, waiting, Place(0, len(counted), len(counted))),
            **common_tensors(self.table, self.default, self.unadmitted, self.numbers),
        }

    def _gather(self, part: str, dtype: torch.dtype, width: tuple[int, ...], places: Tensor) -> Tensor:
        found = torch.empty(len(places), *width, dtype=dtype)
        for place, source in enumerate(self.sources):
            mine = (places[:, 0] == place).nonzero().flatten()
            if len(mine):
                found[mine] = source.take(part, places[mine, 1])
        return found


def name_numbers(counters: Iterable[str]) -> tuple[str, ...]:
    """The columns of `numbers`."""
    return (STEP, UPDATES, *sorted(counters))


def number_row(state: DynamicState, updates: int) -> Tensor:
    """The row of `numbers` of one rank, int64 [N]."""
    return torch.tensor([state.step, updates, *(state.counters[name] for name in sorted(state.counters))])


def _column(tensor: Tensor) -> Column:
    return Column(tensor.dtype, tuple(tensor.shape[1:]), lambda first, stop: tensor[first:stop])
