"""One table that grows, as a checkpoint has it: a row for each id that has one, whatever rank held it.

dynamic/<table>/keys            the ids, int64 [K]: those of one rank together, ascending
dynamic/<table>/weight          their vectors, [K, dim]
dynamic/<table>/<moment>        the sparse optimiser's moments, under PyTorch's names: [K, dim], or [K] where one is kept for each row
dynamic/<table>/last_steps      the training step that read each last, int64 [K]
dynamic/<table>/scores          by which ids give way, int64 [K]
dynamic/<table>/counted_keys    ids that wait for admission, int64 [C], likewise; and how often each was read: counts
dynamic/<table>/default         what unknown ids read in evaluation, float32 [dim]
dynamic/<table>/unadmitted      what training reads of ids that were not admitted yet, float32 [dim]
dynamic/<table>/numbers         the step and the counters of each rank, int64 [S, N]: the manifest names the N
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata

from emberline.errors import CheckpointError
from emberline.routing import MIXED, owner_of
from emberline.train.checkpoint.stored_rows import StoredRows
from emberline.train.checkpoint.tensors import TensorInfo, described, read_index, read_tensors
from emberline.train.dynamic.state import DynamicState
from emberline.train.dynamic.tiers.memory import Span, TieredMemory

PREFIX = "dynamic/"
KEYS, WEIGHT, LAST_STEPS, SCORES = "keys", "weight", "last_steps", "scores"
COUNTED_KEYS, COUNTS, DEFAULT, UNADMITTED, NUMBERS = "counted_keys", "counts", "default", "unadmitted", "numbers"
STEP, UPDATES = "step", "updates"
"""The first of the numbers: training steps, and those that the optimiser has made of them."""
FIXED_PARTS = (KEYS, WEIGHT, LAST_STEPS, SCORES, COUNTED_KEYS, COUNTS, DEFAULT, UNADMITTED, NUMBERS)
ASIDE_BYTES = 256 << 20
"""A part of a table with a second tier that is larger than this is read into a file."""
BLOCK_ROWS = 1 << 20
"""Keys are looked through so many at a time."""


@dataclass(frozen=True, kw_only=True)
class DynamicNotes:
    """What the manifest says of a table that grows.

    Args:
        max_capacity: most rows, all ranks together.
        score_strategy: by which ids give way.
        numbers: what the columns of `numbers` are.
    """

    max_capacity: int
    score_strategy: str
    numbers: tuple[str, ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Out of a manifest."""
        numbers = tuple(map(str, data["numbers"]))
        return cls(max_capacity=int(data["max_capacity"]), score_strategy=str(data["score_strategy"]), numbers=numbers)


def stored_tables(names: Mapping[str, TensorInfo]) -> list[str]:
    """The tables that grow, of a checkpoint's tensors; ascending."""
    return sorted(name.removeprefix(PREFIX).rsplit("/", 1)[0] for name in names if name.startswith(PREFIX) and name.endswith(f"/{KEYS}"))


class StoredDynamic:
    """Reads one table; nothing of the size of its rows is in memory until it is asked for.

    Args:
        folder: of the tensors.
        table: its name.
        notes: what the manifest says of it.
        index: the folder's, where it was read already.

    Raises:
        CheckpointError: a part is missing, or does not fit the others; names it.
    """

    def __init__(self, folder: Path, table: str, notes: DynamicNotes, index: Metadata | None = None) -> None:
        self.folder, self.table, self.notes = folder, table, notes
        self._index = read_index(folder) if index is None else index
        prefix = f"{PREFIX}{table}/"
        self.infos = {name.removeprefix(prefix): info for name, info in described(self._index).items() if name.startswith(prefix)}
        self._columns: dict[str, StoredRows] = {}
        missing = [prefix + part for part in FIXED_PARTS if part not in self.infos]
        if missing:
            raise CheckpointError(f"{folder} does not fit the model: {', '.join(missing)} missing")
        self.moments = tuple(sorted(self.infos.keys() - set(FIXED_PARTS)))
        self._check_shapes()

    @property
    def num_ids(self) -> int:
        """K."""
        return self.infos[KEYS].shape[0]

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return self.infos[WEIGHT].shape[1]

    @property
    def row_parts(self) -> tuple[str, ...]:
        """The parts that have a row for each id."""
        return (KEYS, WEIGHT, *self.moments, LAST_STEPS, SCORES)

    @cached_property
    def numbers(self) -> Tensor:
        """int64 [S, N]."""
        return self.whole(NUMBERS)

    def whole(self, part: str) -> Tensor:
        """All of a part."""
        name = f"{PREFIX}{self.table}/{part}"
        return read_tensors(self.folder, name, exact=True)[name]

    def take(self, part: str, rows: Tensor) -> Tensor:
        """Some rows of a part: int64 [n], in any order -> [n, ...].

        Raises:
            CheckpointError: a file cannot be read.
        """
        if not len(rows):
            info = self.infos[part]
            return torch.empty(0, *info.shape[1:], dtype=info.dtype)
        return self._column(part).take(rows)

    def read(self, part: str, first: int, stop: int) -> Tensor:
        """The rows of a part from `first` to before `stop`, [stop - first, ...]."""
        return self._column(part).read(first, stop)

    def own_rows(self, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
        """The ids that belong to one of so many ranks, ascending, and the row of each: int64 [n] both.

        Raises:
            CheckpointError: an id is there twice.
        """
        return self._owned(KEYS, rank, ranks)

    def own_counted(self, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
        """The ids of a rank that wait for admission, ascending, and how often each was read.

        Raises:
            CheckpointError: an id is there twice.
        """
        keys, rows = self._owned(COUNTED_KEYS, rank, ranks)
        return keys, self.take(COUNTS, rows)

    def _take_aside(self, part: str, rows: Tensor, folder: Path) -> Tensor:
        """Some rows, in a file without a name, which may be larger than memory, where they are many."""
        info = self.infos[part]
        row_bytes = info.dtype.itemsize * math.prod(info.shape[1:])
        if len(rows) * row_bytes <= ASIDE_BYTES:
            return self.take(part, rows)
        memory = TieredMemory(row_bytes, [Span(f"{PREFIX}{self.table}/{part}", 0, len(rows), 0)], folder)
        memory.reserve(0, len(rows))
        found = memory.tensor((len(rows), *info.shape[1:]), info.dtype)
        for first in range(0, len(rows), BLOCK_ROWS):
            own = rows[first : first + BLOCK_ROWS]
            found[first : first + BLOCK_ROWS] = self.take(part, own)
            memory.touched(len(own))
        return found

    def state(self, rank: int, ranks: int, *, moments: bool = True, aside: Path | None = None) -> DynamicState:
        """What one of so many ranks has; only its own rows are read, and moments only where they are wanted.

        Args:
            rank: which.
            ranks: of how many.
            moments: whether they are wanted.
            aside: a folder for files with what is too large for memory; None: all is in memory.

        Raises:
            CheckpointError: an id is there twice, or a file cannot be read.
        """
        keys, rows = self.own_rows(rank, ranks)
        counted_keys, counts = self.own_counted(rank, ranks)

        def take(part: str) -> Tensor:
            return self.take(part, rows) if aside is None else self._take_aside(part, rows, aside)

        return DynamicState(
            keys=keys,
            weights=take(WEIGHT),
            moments={name: take(name) for name in self.moments} if moments else {},
            last_steps=self.take(LAST_STEPS, rows),
            scores=self.take(SCORES, rows),
            counted_keys=counted_keys,
            counts=counts,
            default=self.whole(DEFAULT),
            unadmitted=self.whole(UNADMITTED),
            counters=self.counters(rank, ranks),
            step=self.step,
        )

    @property
    def step(self) -> int:
        """Training steps."""
        return int(self.numbers[:, 0].max())

    @property
    def updates(self) -> int:
        """Steps of the optimiser."""
        return int(self.numbers[:, 1].max())

    def counters(self, rank: int, ranks: int) -> dict[str, int]:
        """The counters that a rank goes on from: its own, on as many ranks; else the first has the sums."""
        numbers = self.numbers
        own = numbers[rank] if len(numbers) == ranks else numbers.sum(0) * (rank == 0)
        return {name: int(own[place]) for place, name in enumerate(self.notes.numbers) if name not in (STEP, UPDATES)}

    def _owned(self, part: str, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
        (count,) = self.infos[part].shape
        found = [(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))]
        for first in range(0, count, BLOCK_ROWS):
            keys = self.read(part, first, min(first + BLOCK_ROWS, count))
            own = (owner_of(keys, ranks, MIXED) == rank).nonzero().flatten()
            found.append((keys[own], own + first))
        keys, rows = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = torch.argsort(keys, stable=True)
        keys, rows = keys[order], rows[order]
        again = (keys[1:] == keys[:-1]).nonzero().flatten()
        if len(again):
            raise CheckpointError(f"{self.folder}: {PREFIX}{self.table}/{part} has the id {int(keys[again[0]])} twice")
        return keys, rows

    def _column(self, part: str) -> StoredRows:
        if part not in self._columns:
            self._columns[part] = StoredRows(self.folder, f"{PREFIX}{self.table}/{part}", self._index)
        return self._columns[part]

    def _check_shapes(self) -> None:
        weight = self.infos[WEIGHT].shape
        if len(weight) != 2:
            raise CheckpointError(f"{self.folder}: {PREFIX}{self.table}/{WEIGHT} is {list(weight)}, where rows of vectors are needed")
        (rows, dim), counted = weight, self.infos[COUNTED_KEYS].shape
        wanted: dict[str, TensorInfo] = dict.fromkeys((KEYS, LAST_STEPS, SCORES), TensorInfo((rows,), torch.int64))
        wanted |= dict.fromkeys((DEFAULT, UNADMITTED), TensorInfo((dim,), torch.float32))
        wanted |= dict.fromkeys((COUNTED_KEYS, COUNTS), TensorInfo(counted[:1] or (0,), torch.int64))
        problems = [
            f"{PREFIX}{self.table}/{part} is {self.infos[part]}, where {fit} is needed" for part, fit in wanted.items() if self.infos[part] != fit
        ]
        for part in self.moments:
            if self.infos[part].shape not in ((rows,), (rows, dim)):
                problems.append(f"{PREFIX}{self.table}/{part} is {self.infos[part]}, where {rows} rows are needed")
        numbers, named = self.infos[NUMBERS], self.notes.numbers
        fits = numbers.dtype == torch.int64 and len(numbers.shape) == 2 and numbers.shape[0] > 0 and numbers.shape[1] == len(named)
        if not fits or named[:2] != (STEP, UPDATES):
            problems.append(f"{PREFIX}{self.table}/{NUMBERS} is {numbers}, and the manifest names {', '.join(named) or 'none'}")
        if problems:
            raise CheckpointError(f"{self.folder}: {'; '.join(problems)}")
