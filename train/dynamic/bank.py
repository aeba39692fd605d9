"""Rows of tables that grow, as a bank of tables whose memory is reserved for all rows there may ever be, and only used as they are given.

table a: 3 rows   table b: 2 rows    what no key owns: for a, then for b, what unknown ids read, and what ids read that are not admitted yet
[ a0 a1 a2 ][ b0 b1 ][ unknown a, not admitted a, unknown b, not admitted b ]
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from emberline.errors import CapacityError
from emberline.memory import aligned_memory
from emberline.train.dynamic.state import DynamicTable
from emberline.train.kernels.bank import Block, Table, TableBank
from emberline.train.kernels.optimizers import Moment
from emberline.train.kernels.segments import RowGradients

FIXED_ROWS = 2
"""Of each table: its unknown ids', and that of ids that are not admitted yet. They never learn."""
Numbers = np.ndarray[Any, np.dtype[Any]]


class RowMemory(Protocol):
    """Memory for some number of each row."""

    @property
    def tensor(self) -> Tensor:
        """[the tables' rows, one table after the other, and `FIXED_ROWS` more for each, *width]; a row that is used first is zeros."""

    def reserve(self, table: int, rows: int) -> None:
        """Have room for a table's first so many rows, before they are used.

        Raises:
            CapacityError: there is none; nothing is changed.
        """


Memory = Callable[[Sequence[DynamicTable], tuple[int, ...], torch.dtype], RowMemory]
"""Makes the memory of some tables of one width: for weights, and for each moment. Takes the tables, the shape of a row, and the dtype."""


class PlainMemory:
    """Memory of the process, on huge pages where the system has them.

    Args:
        tables: which, in order.
        width: the shape of a row.
        dtype: of a number.

    Raises:
        CapacityError: there are not so many addresses.
    """

    def __init__(self, tables: Sequence[DynamicTable], width: tuple[int, ...], dtype: torch.dtype) -> None:
        rows = sum(table.max_rows + FIXED_ROWS for table in tables)
        num_bytes = rows * int(np.prod(width, dtype=np.int64)) * dtype.itemsize
        names = ", ".join(repr(table.name) for table in tables)
        self.tensor = torch.frombuffer(lazy_memory(num_bytes, names), dtype=dtype).view(rows, *width)

    def reserve(self, table: int, rows: int) -> None:
        """Nothing: the system gives it when it is used."""


def lazy_memory(num_bytes: int, names: str) -> memoryview:
    """Zeros that take memory once they are touched; there may be more of them than the machine has.

    Args:
        num_bytes: at least 1.
        names: whom it is for.

    Raises:
        CapacityError: there are not so many addresses.
    """
    try:
        return aligned_memory(num_bytes, may_exceed=True)
    except (OSError, OverflowError, ValueError) as error:
        message = f"tables {names}: {num_bytes:,} bytes of addresses cannot be had ({error}); lower max_capacity"
        raise CapacityError(message) from error


class KeyedBlock(Block):
    """Tables that grow, of one width. Ids that come here are rows already.

    Args:
        grown: what they are, in order.
        reads: as `Block` has them, like the next three.
        read_tables: of each read, the place of its table.
        columns: of each read.
        dtype: of the weights.
        memory: makes memory for weights and moments.
    """

    def __init__(
        self,
        grown: Sequence[DynamicTable],
        reads: Sequence[int],
        read_tables: Sequence[int],
        columns: Sequence[int],
        dtype: torch.dtype,
        memory: Memory,
    ) -> None:
        self.grown, self._memory = tuple(grown), memory
        self.memories: list[RowMemory] = []
        super().__init__([Table(table.name, table.max_rows, table.dim) for table in grown], reads, read_tables, columns, dtype)
        self.id_dtype = np.int32 if len(self.weights) < 2**31 else np.int64

    def memory(self, width: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `Block.memory`; with the fixed rows."""
        self.memories.append(self._memory(self.grown, width, dtype))
        return self.memories[-1].tensor

    def moment(self, moment: Moment) -> Tensor:
        """See `Block.moment`; rows get what moments begin with when they are given."""
        return self.memory(() if moment.per_row else (self.dim,), torch.float32)

    @property
    def num_rows(self) -> int:
        """Rows that keys may own; fixed rows follow."""
        return self.first_rows[-1]

    def fixed_row(self, table: int, *, is_unadmitted: bool) -> int:
        """What no key owns of a table."""
        return self.num_rows + FIXED_ROWS * table + int(is_unadmitted)

    def reserve(self, table: int, rows: int) -> None:
        """See `RowMemory.reserve`."""
        for memory in self.memories:
            memory.reserve(table, rows)

    def locate(self, ids: Numbers, ids_per_read: Sequence[int]) -> Tensor:
        """The same: keys were found before, all of a batch at once."""
        return torch.from_numpy(ids)


MakeBlock = Callable[[Sequence[DynamicTable], Sequence[int], Sequence[int], Sequence[int], torch.dtype], KeyedBlock]
"""Makes a block of some tables; arguments as of `KeyedBlock`, but for the memory."""


class Watch:
    """Rows that keys lost while somebody waits for a batch's gradients."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, Numbers]] = []


class KeyedBank(TableBank):
    """The tables that grow of one kernel.

    Args:
        grown: what they are.
        reads: for each read, the place of its table among them.
        dtype: of all weights.
        make_block: makes the block of the tables of one width.
    """

    def __init__(self, grown: Sequence[DynamicTable], reads: Sequence[int], dtype: torch.dtype, make_block: MakeBlock) -> None:
        self._grown, self._make_block = tuple(grown), make_block
        self._watches: WeakSet[Watch] = WeakSet()
        super().__init__([Table(table.name, table.max_rows, table.dim) for table in grown], reads, dtype)

    def block(self, own: Sequence[int], reads: Sequence[int], read_tables: Sequence[int], columns: Sequence[int]) -> KeyedBlock:
        """See `TableBank.block`."""
        return self._make_block([self._grown[place] for place in own], reads, read_tables, columns, self.dtype)

    def keyed(self, table: int) -> tuple[KeyedBlock, int]:
        """The block of a table, and its place in there."""
        block = self.blocks[self.places[table][0]]
        assert isinstance(block, KeyedBlock)
        return block, self.places[table][1]

    def watch(self) -> Watch:
        """See `TableBank.watch`."""
        watch = Watch()
        self._watches.add(watch)
        return watch

    def reserve(self, table: int, rows: int) -> None:
        """See `RowMemory.reserve`."""
        block, within = self.keyed(table)
        block.reserve(within, rows)

    def lose(self, table: int, rows: Numbers) -> None:
        """Take note that keys lost rows of a table, int64 [n]: gradients of what they read are nobody's any more."""
        block, within = self.places[table]
        for watch in self._watches:
            watch.lost.append((block, rows + self.blocks[block].first_rows[within]))

    def learned(self, gradients: Sequence[RowGradients], watch: Watch) -> Sequence[RowGradients]:
        """See `TableBank.learned`: fixed rows never learn, and rows that were given to other keys don't learn from what they were before."""
        kept = []
        for place, (block, part) in enumerate(zip(self.blocks, gradients, strict=True)):
            end = int(np.searchsorted(part.rows.numpy(), block.first_rows[-1]))
            lost = [rows for other, rows in watch.lost if other == place]
            kept.append(_first(part, end) if not lost else _without(part, end, np.concatenate(lost)))
        return kept


def _first(part: RowGradients, end: int) -> RowGradients:
    return RowGradients(part.rows[:end], part.starts[: end + 1], part.places, part.gradients, part.factors)


def _without(part: RowGradients, end: int, lost: Numbers) -> RowGradients:
    kept = torch.from_numpy(~np.isin(part.rows[:end].numpy(), lost))
    every = torch.arange(int(kept.sum()) + 1)
    return RowGradients(part.rows[:end][kept], every, every[:-1], part.sums(0, end)[kept])
