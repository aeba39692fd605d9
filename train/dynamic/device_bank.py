"""Rows of tables that grow, on any device, and how a batch reads and teaches them: what `kernels.bank` and `kernels.fused` do on the CPU, to the bit.

Letters: F reads of tables, N ids of a batch, n of one table, G bags of one table, d its width, D the sum of all reads' widths.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from emberline.train.kernels.fused import FusedTables
from emberline.train.kernels.optimizers import RowOptimizer
from emberline.train.kernels.segments import RowGradients

CONSTANTS = 2
"""The first rows of each table, which do not learn: what unknown ids read in evaluation, and what ids read that are not admitted yet."""


class DeviceRows:
    """A tensor with a row for each of a table's, which grows by doubling.

    Args:
        shape: of one row: (d,), or () for one number.
        dtype: of a number.
        device: where.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.tensor = torch.zeros(CONSTANTS, *shape, dtype=dtype, device=device)

    def grow(self, rows: int) -> None:
        """Have so many rows, the new ones zeros."""
        grown = self.tensor.new_zeros(rows, *self.tensor.shape[1:])
        grown[: len(self.tensor)] = self.tensor
        self.tensor = grown

    def read(self, rows: Tensor) -> Tensor:
        """Copy rows, int64 [n]."""
        return self.tensor.index_select(0, rows)

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Overwrite rows, int64 [n], all distinct."""
        self.tensor.index_copy_(0, rows, values)


class DeviceBlock:
    """One table's weights.

    Args:
        dim: d.
        reads: the place of each read of the table among all reads.
        dtype: of the weights.
        device: where.
    """

    def __init__(self, dim: int, reads: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.dim, self.reads = dim, tuple(reads)
        self.rows = DeviceRows((dim,), dtype, device)

    @property
    def weights(self) -> Tensor:
        """[rows, d]."""
        return self.rows.tensor

    def read(self, rows: Tensor) -> Tensor:
        """[n, d] float32: these rows' weights."""
        return self.rows.read(rows).float()

    def pool(self, ids: "DeviceIds") -> Tensor:
        """[G, d] float32: the (weighted) sum of each bag's vectors, zeros for empty bags."""
        if not len(ids.counts):
            return torch.zeros(0, self.dim, device=ids.rows.device)
        offsets = functional.pad(ids.counts.cumsum(0), (1, 0))
        table, places = self.weights, ids.rows
        if table.dtype != torch.float32:
            table = self.read(ids.rows)
            places = torch.arange(len(table), device=table.device)
        return functional.embedding_bag(places, table, offsets, mode="sum", per_sample_weights=ids.weights, include_last_offset=True)


@dataclass(frozen=True)
class DeviceIds:
    """What a batch reads of one table, read by read.

    Args:
        rows: int64 [n].
        counts: int64 [G], the ids of each bag.
        weights: float32 [n], what each vector is multiplied by; None: 1.
    """

    rows: Tensor
    counts: Tensor
    weights: Tensor | None


class DeviceBank:
    """The tables.

    Args:
        dims: the width of each.
        reads: for each read, the place of its table.
        dtype: of all weights.
        device: where.
    """

    def __init__(self, dims: Sequence[int], reads: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device, self.reads = dtype, device, tuple(reads)
        own = [[read for read, table in enumerate(reads) if table == place] for place in range(len(dims))]
        self.blocks = [DeviceBlock(dim, block_reads, dtype, device) for dim, block_reads in zip(dims, own, strict=True)]
        self.columns = [0, *itertools.accumulate(dims[table] for table in reads)]

    def of_reads(self, values: Tensor, ends: Sequence[int], block: DeviceBlock) -> Tensor:
        """The parts that belong to one table's reads, of something that goes read by read; `ends`: where each begins, and the end."""
        if len(block.reads) == len(self.reads):
            return values
        parts = [values[ends[read] : ends[read + 1]] for read in block.reads]
        return torch.cat(parts) if parts else values[:0]

    def by_read(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """What each table has for its reads, one after the other -> what each read has; `sizes`: rows of each read."""
        found: list[Tensor] = [torch.empty(0)] * len(self.reads)
        for block, part in zip(self.blocks, parts, strict=True):
            for read, own in zip(block.reads, torch.split(part, [sizes[read] for read in block.reads]), strict=True):
                found[read] = own
        return found


@dataclass(frozen=True)
class DeviceForm:
    """How the vectors of a batch are laid out, and its gradients read.

    Args:
        batch_sizes: [F], rows of each read, if bags are pooled; else its ids.
        is_pooled: whether bags become one vector each.
        is_flat: whether pooled vectors lie in one line, read by read; else side by side.
    """

    batch_sizes: tuple[int, ...]
    is_pooled: bool
    is_flat: bool = False

    def vectors(self, bank: DeviceBank, located: Sequence[DeviceIds]) -> Tensor:
        """[B, D], or [sum of B times d] in one line, or [N, d] of ids that are not pooled; float32."""
        pairs = zip(bank.blocks, located, strict=True)
        parts = bank.by_read([block.pool(ids) if self.is_pooled else block.read(ids.rows) for block, ids in pairs], self.batch_sizes)
        if self.is_flat:
            return torch.cat([part.flatten() for part in parts])
        return torch.cat(parts, dim=1 if self.is_pooled else 0)

    def gradients(self, bank: DeviceBank, located: Sequence[DeviceIds], gradient: Tensor) -> list[RowGradients]:
        """Of each table."""
        parts = self._parts(bank, gradient)
        found = []
        for block, ids in zip(bank.blocks, located, strict=True):
            own = torch.cat([parts[read] for read in block.reads]) if block.reads else gradient.new_zeros(0, block.dim)
            sources = None
            if self.is_pooled:
                bags = torch.arange(len(ids.counts), device=bank.device)
                sources = bags.repeat_interleave(ids.counts, output_size=len(ids.rows))
            found.append(gradients_by_row(ids.rows, own, sources, ids.weights))
        return found

    def _parts(self, bank: DeviceBank, gradient: Tensor) -> Sequence[Tensor]:
        """The gradients of each read's vectors, [rows, d]."""
        if not self.is_pooled:
            return torch.split(gradient, list(self.batch_sizes))
        dims = [end - start for start, end in itertools.pairwise(bank.columns)]
        if self.is_flat:
            sizes = [rows * dim for rows, dim in zip(self.batch_sizes, dims, strict=True)]
            return [part.view(-1, dim) for part, dim in zip(torch.split(gradient, sizes), dims, strict=True)]
        return torch.split(gradient, dims, dim=1)


def gradients_by_row(rows: Tensor, gradients: Tensor, sources: Tensor | None, factors: Tensor | None) -> RowGradients:
    """What `kernels.segments.by_row` makes, on any device, without the constant rows. The host waits for the device three times.

    Args:
        rows: int64 [n].
        gradients: float32 [M, d].
        sources: int64 [n], which gradient each position gets; None: each its own.
        factors: float32 [n], what a position's gradient is multiplied by; None: 1.
    """
    ordered, order = torch.sort(rows, stable=True)
    distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
    learns = distinct >= CONSTANTS
    return RowGradients(
        rows=distinct[learns],
        starts=torch.cat([functional.pad(counts.cumsum(0), (1, 0))[:-1][learns], counts.sum(0, keepdim=True)]),
        places=order if sources is None else sources[order],
        gradients=gradients.contiguous(),
        factors=None if factors is None else factors[order],
    )


class DeviceFused(FusedTables):
    """`FusedTables` over tensors of any device that grow.

    Args:
        bank: the tables.
        optimizer: of all of them.
        max_gradient: as of `FusedTables`.
        stochastic_rounding: likewise.
        frozen_in_graph: likewise.
    """

    bank: Any
    _moment_rows: Any

    def __init__(
        self,
        bank: DeviceBank,
        optimizer: RowOptimizer,
        *,
        max_gradient: float | None = None,
        stochastic_rounding: bool = False,
        frozen_in_graph: bool = False,
    ) -> None:
        nothing: Any = DeviceBank((), (), bank.dtype, bank.device)
        super().__init__(nothing, optimizer, max_gradient=max_gradient, stochastic_rounding=stochastic_rounding, frozen_in_graph=frozen_in_graph)
        self.bank = bank
        shapes = [[() if moment.per_row else (block.dim,) for moment in optimizer.moments] for block in bank.blocks]
        self._moment_rows = [[DeviceRows(shape, torch.float32, bank.device) for shape in own] for own in shapes]
        self.drop_held()

    def moment_rows(self, table: int) -> list[DeviceRows]:
        """A table's moments, in the optimiser's order."""
        return list(self._moment_rows[table])

    def look_up(self, located: Sequence[DeviceIds], form: DeviceForm) -> Tensor:
        """Vectors that teach their tables, float32."""
        look_up: Any = self._look_up
        found: Tensor = look_up(located, form)
        return found

    def learn(self, gradients: Sequence[RowGradients]) -> None:
        """Take the gradients of one backward, one for each table."""
        if not self.gate.hold:
            self._update_all(gradients)
            return
        for parts, gradient in zip(self._held, gradients, strict=True):
            parts.append(_summed(gradient))

    def sum_held(self) -> Sequence[RowGradients] | None:
        """The sum of all gradients kept by the gate, one for each table, each row once; None where no backward came."""
        if not any(self._held):
            return None
        for parts in self._held:
            if len(parts) > 1:
                rows, sums = torch.cat([part.rows for part in parts]), torch.cat([part.gradients for part in parts])
                parts[:] = [_summed(gradients_by_row(rows, sums, None, None))]
        return [part for (part,) in self._held]

    def _update_all(self, gradients: Sequence[RowGradients]) -> None:
        """All rows at once: chunks are for caches of a CPU."""
        if self.bank.device.type == "cpu":
            super()._update_all(gradients)
            return
        self.step += 1
        with torch.no_grad():
            for block, rows, gradient in zip(self.bank.blocks, self._moment_rows, gradients, strict=True):
                if len(gradient.rows):
                    self._update(block, rows, gradient.rows, gradient.sums(0, len(gradient.rows)))


def _summed(gradient: RowGradients) -> RowGradients:
    """Only the sums: what came in may be large, or be written over."""
    every = torch.arange(len(gradient.rows) + 1, device=gradient.rows.device)
    return RowGradients(gradient.rows, every, every[:-1], gradient.sums(0, len(gradient.rows)))
