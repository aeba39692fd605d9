"""Many tables in few pieces of memory: tables of one width lie one after the other in one block, so that one call looks up all of them.

Letters: F reads of tables (a read is one feature's bags in one table), B rows of a batch, N ids, n ids in one block, d width of a table.

    #         read 0 (table a)    read 1 (table b)
    # row 0   [7]                 []                 ids 7 5 6 1 2, offsets 0 1 1 3 3 4 5
    # row 1   []                  [1]
    # row 2   [5, 6]              [2]
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from emberline.errors import DataError
from emberline.train.kernels.memory import table_memory
from emberline.train.kernels.optimizers import Moment
from emberline.train.kernels.rows import Rows
from emberline.train.kernels.segments import RowGradients

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Table:
    """One table, or one shard of it.

    Args:
        name: for messages.
        rows: at least 0.
        dim: at least 1.
    """

    name: str
    rows: int
    dim: int


@dataclass(frozen=True)
class BlockIds:
    """The ids that a batch reads from one block.

    Args:
        rows: int32 or int64 [n], rows of the block.
        counts: int64 [reads of the block, B], the ids of each bag.
        weights: float32 [n], what each vector is multiplied by; None: 1.
    """

    rows: Tensor
    counts: Tensor
    weights: Tensor | None


class Block:
    """The tables of one width.

    Args:
        tables: all of that width, in order.
        reads: the place of each read of them among all reads.
        read_tables: for each of these reads, the place of its table among `tables`.
        columns: where each read's vector begins in the concatenation of all reads' vectors.
        dtype: of the weights.
    """

    def __init__(self, tables: Sequence[Table], reads: Sequence[int], read_tables: Sequence[int], columns: Sequence[int], dtype: torch.dtype) -> None:
        self.tables, self.reads, self.dim = tuple(tables), tuple(reads), tables[0].dim
        sizes = [table.rows for table in tables]
        self.first_rows = [0, *itertools.accumulate(sizes)]
        self.weights = self.memory((self.dim,), dtype)
        self.rows = self.rows_of(self.weights)
        self.id_dtype = np.int32 if sum(sizes) < 2**31 else np.int64
        self._read_tables = tuple(read_tables)
        self._firsts = np.array([self.first_rows[table] for table in read_tables], dtype=self.id_dtype)
        self._limits = np.array([sizes[table] for table in read_tables], dtype=np.uint64)
        self.runs = _runs(self.reads, columns, self.dim)

    def memory(self, width: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros with a row for each of the tables', [rows, *width]."""
        return table_memory((self.first_rows[-1], *width), dtype)

    def moment(self, moment: Moment) -> Tensor:
        """One of an optimiser's moments of all rows, float32 [rows, d] or [rows]."""
        values = self.memory(() if moment.per_row else (self.dim,), torch.float32)
        return values.fill_(moment.begins_with) if moment.begins_with else values

    def rows_of(self, memory: Tensor) -> Rows:
        """How rows of what `memory` or `moment` made are read and written."""
        return Rows(memory)

    def source(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Where vectors of rows [n] can be pooled from: float32 [any, d], and the places in there [n], of the same integers."""
        if self.weights.dtype == torch.float32:
            return self.weights, rows
        return self.read(rows), torch.arange(len(rows), dtype=rows.dtype)

    def view(self, tensor: Tensor, table: int) -> Tensor:
        """One table's part of something that has a row for each of the block's."""
        return tensor[self.first_rows[table] : self.first_rows[table + 1]]

    def locate(self, ids: Numbers, ids_per_read: Sequence[int]) -> Tensor:
        """Ids within tables, read by read -> rows of the block.

        Raises:
            DataError: an id that its table does not have.
        """
        limits = np.repeat(self._limits, ids_per_read)
        bad = ids.view(f"u{ids.itemsize}") >= limits  # negative ids are huge ones
        if bad.any():
            place = int(bad.argmax())
            read = int(np.searchsorted(np.cumsum(ids_per_read), place, side="right"))
            table = self.tables[self._read_tables[read]]
            raise DataError(f"table {table.name!r} has rows 0 to {table.rows - 1}, but row {int(ids[place])} is asked for")
        rows = np.repeat(self._firsts, ids_per_read)
        np.add(rows, ids, out=rows, casting="unsafe")
        return torch.from_numpy(rows)

    def pool(self, ids: BlockIds) -> Tensor:
        """[reads of the block, B, d] float32: the (weighted) sum of each bag's vectors, zeros for empty bags."""
        counts = ids.counts.flatten()
        if not len(counts) or not self.weights.numel():  # torch refuses to pool no bags
            return torch.zeros(*ids.counts.shape, self.dim)
        offsets = functional.pad(counts.cumsum(0, dtype=ids.rows.dtype), (1, 0))
        table, places = self.source(ids.rows)
        found = functional.embedding_bag(places, table, offsets, mode="sum", per_sample_weights=ids.weights, include_last_offset=True)
        return found.view(*ids.counts.shape, self.dim)

    def read(self, rows: Tensor) -> Tensor:
        """[n, d] float32: these rows' weights."""
        return self.rows.read(rows).float()


class TableBank:
    """Tables, and how a batch reads them.

    Args:
        tables: of any widths, in order; at least one.
        reads: for each read, the place of its table among `tables`.
        dtype: of all weights: float32, float16 or bfloat16.
    """

    def __init__(self, tables: Sequence[Table], reads: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        self.tables, self.reads, self.dtype = tuple(tables), tuple(reads), dtype
        columns = [0, *itertools.accumulate(tables[table].dim for table in reads)]
        self.total_dim = columns[-1]
        self.blocks: list[Block] = []
        self.places: list[tuple[int, int]] = [(0, 0)] * len(tables)
        for dim in dict.fromkeys(table.dim for table in tables):
            own = [place for place, table in enumerate(tables) if table.dim == dim]
            within = {table: place for place, table in enumerate(own)}
            self.places = [(len(self.blocks), within[place]) if place in within else known for place, known in enumerate(self.places)]
            block_reads = [place for place, table in enumerate(reads) if table in within]
            read_tables = [within[reads[place]] for place in block_reads]
            self.blocks.append(self.block(own, block_reads, read_tables, [columns[place] for place in block_reads]))

    def block(self, own: Sequence[int], reads: Sequence[int], read_tables: Sequence[int], columns: Sequence[int]) -> Block:
        """The tables of one width, given by their places; the rest as `Block` has it."""
        return Block([self.tables[place] for place in own], reads, read_tables, columns, self.dtype)

    def watch(self) -> Any:
        """Something for `learned`, from before a batch is looked up until its gradients come."""
        return None

    def learned(self, gradients: Sequence[RowGradients], watch: Any) -> Sequence[RowGradients]:
        """Of the gradients of a batch, one for each block, those that change anything."""
        return gradients

    def weights(self) -> list[Tensor]:
        """Each table's weights [rows, dim], as views."""
        return [self.blocks[block].view(self.blocks[block].weights, table) for block, table in self.places]

    def locate(self, ids: Tensor, offsets: Tensor, num_rows: int, weights: Tensor | None = None, *, mean: bool = False) -> list[BlockIds]:
        """Split a batch by block.

        Args:
            ids: int32 or int64 [N], read by read, each row by row.
            offsets: int32 or int64 [F * B + 1], where each bag begins, and the end.
            num_rows: B.
            weights: [N] of any float type.
            mean: divide each vector by the number of ids in its bag.

        Raises:
            DataError: an id that its table does not have.
        """
        counts = offsets.diff().to(torch.int64).view(len(self.reads), num_rows)
        ends = [0, *itertools.accumulate(counts.sum(1).tolist())]
        factors = weights.detach().float() if weights is not None else None
        if mean:
            shares = torch.from_numpy(np.repeat((1.0 / counts.flatten().clamp(min=1)).numpy(), counts.flatten().numpy()))
            factors = shares if factors is None else factors * shares
        return [self._locate(block, ids.contiguous(), counts, ends, factors) for block in self.blocks]

    def join(self, parts: Sequence[Tensor], num_rows: int) -> Tensor:
        """What each block found, [reads of the block, B, d] -> the reads' vectors side by side, [B, sum of all d] float32."""
        joined = torch.empty(num_rows, self.total_dim)
        for block, part in zip(self.blocks, parts, strict=True):
            for run in block.runs:
                target = joined[:, run.column : run.column + run.reads * block.dim]
                target.view(num_rows, run.reads, block.dim).copy_(part[run.first : run.first + run.reads].transpose(0, 1))
        return joined

    def split(self, joined: Tensor, block: Block) -> Tensor:
        """The columns of one block's reads, row by row: [B, sum of all d] -> [B * reads of the block, d]."""
        parts = [joined[:, run.column : run.column + run.reads * block.dim] for run in block.runs]
        joined = parts[0] if len(parts) == 1 else torch.cat([joined[:, :0], *parts], dim=1)
        return joined.reshape(-1, block.dim)

    def _locate(self, block: Block, ids: Tensor, counts: Tensor, ends: Sequence[int], weights: Tensor | None) -> BlockIds:
        per_read = [ends[read + 1] - ends[read] for read in block.reads]
        if len(block.reads) < len(self.reads):
            slices = [slice(ends[read], ends[read + 1]) for read in block.reads]
            ids = torch.cat([ids[own] for own in slices]) if slices else ids[:0]
            weights = torch.cat([weights[own] for own in slices]) if slices and weights is not None else weights
            counts = counts[list(block.reads)]
        return BlockIds(block.locate(ids.numpy(), per_read), counts, weights)


@dataclass(frozen=True)
class _Run:
    """Reads of one block that are neighbours in the joined vectors."""

    first: int
    reads: int
    column: int


def _runs(reads: Sequence[int], columns: Sequence[int], dim: int) -> list[_Run]:
    runs: list[_Run] = []
    for place, column in enumerate(columns):
        if runs and column == runs[-1].column + runs[-1].reads * dim:
            runs[-1] = _Run(runs[-1].first, runs[-1].reads + 1, runs[-1].column)
        else:
            runs.append(_Run(place, 1, column))
    return runs
