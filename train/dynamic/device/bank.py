"""Rows of tables that grow, on any device, and how a batch reads and teaches them: what `kernels.bank` and `kernels.fused` do on the CPU.

Letters: F reads of tables, N ids of a batch, n of one table, G bags of one table, d its width, D the sum of all reads' widths.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from emberline.errors import CapacityError
from emberline.train.dynamic.device.rows import CONSTANTS, DeviceRows, Numbers
from emberline.train.dynamic.device.tiers import TwoTiers
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tiers.blocks import TierCounters, Tiers
from emberline.train.kernels.fused import FusedTables
from emberline.train.kernels.optimizers import Moment
from emberline.train.kernels.segments import RowGradients


class DeviceBlock:
    """One table.

    Args:
        grown: what it is.
        reads: the place of each read of the table among all reads.
        dtype: of the weights.
        device: where.
    """

    def __init__(self, grown: DynamicTable, reads: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.grown, self.dim, self.reads, self.device = grown, grown.dim, tuple(reads), device
        self.first_rows = (CONSTANTS,)
        self._rows_at_first = CONSTANTS + min(grown.options.init_capacity_per_rank or 0, grown.max_rows)
        self.memories: list[DeviceRows] = []
        self.rows = self.rows_of(self.memory((grown.dim,), dtype))
        self.losses = 0
        """How often keys lost rows of it."""
        self._lost_at = DeviceRows((), torch.int64, device, self._rows_at_first)

    def memory(self, width: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `Block.memory`; it grows."""
        self.memories.append(DeviceRows(width, dtype, self.device, self._rows_at_first))
        return self.memories[-1].tensor

    def moment(self, moment: Moment) -> Tensor:
        """See `Block.moment`; rows get what moments begin with when they are given."""
        return self.memory(() if moment.per_row else (self.dim,), torch.float32)

    def rows_of(self, memory: Tensor) -> DeviceRows:
        """What holds memory that was made just now."""
        return next(held for held in self.memories if held.tensor is memory)

    def reserve(self, rows: int) -> None:
        """Have room for the first so many rows that keys may own, before they are used.

        Raises:
            CapacityError: the device has none; nothing is changed but rows that nobody uses.
        """
        try:
            for held in (*self.memories, self._lost_at):
                held.reserve(CONSTANTS + rows, CONSTANTS + self.grown.max_rows)
        except torch.OutOfMemoryError as error:
            reason = f"table {self.grown.name!r}: there is no memory on {self.device} for {rows:,} rows of {self.dim} numbers"
            raise CapacityError(f"{reason}; lower max_capacity, or use more ranks") from error

    @property
    def capacity(self) -> int:
        """Rows that keys may own now: where memory is short, weights and moments may have grown by other numbers."""
        return min(len(held.tensor) for held in (*self.memories, self._lost_at)) - CONSTANTS

    def fixed_row(self, table: int, *, is_unadmitted: bool) -> int:
        """What no key owns."""
        return int(is_unadmitted)

    def lose(self, rows: Tensor) -> None:
        """Take note that keys lost rows, int64 [n]."""
        self.losses += 1
        self._lost_at.write(rows, torch.full_like(rows, self.losses))

    def still_owned(self, rows: Tensor, losses: int) -> Tensor:
        """Of rows, int64 [n]: which no key lost since then, bool [n]."""
        return self._lost_at.read(rows) <= losses

    @property
    def weights(self) -> Tensor:
        """[rows, d]."""
        return self.rows.tensor

    def read(self, rows: Tensor) -> Tensor:
        """[n, d] float32: these rows' weights."""
        return self.rows.read(rows).float()

    def source(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A float32 tensor that has rows, int64 [n], and where each is in it."""
        if self.weights.dtype == torch.float32:
            return self.weights, rows
        return self.read(rows), torch.arange(len(rows), device=rows.device)

    def look_up(self, ids: "DeviceIds", *, is_pooled: bool) -> Tensor:
        """What a batch gets: the vectors of its bags, [G, d] float32, or else of its ids, [n, d]."""
        return self.pool(ids) if is_pooled else self.read(ids.rows)

    def pool(self, ids: "DeviceIds") -> Tensor:
        """[G, d] float32: the (weighted) sum of each bag's vectors, zeros for empty bags."""
        if not len(ids.counts):
            return torch.zeros(0, self.dim, device=ids.rows.device)
        offsets = functional.pad(ids.counts.cumsum(0), (1, 0))
        table, places = self.source(ids.rows)
        return functional.embedding_bag(places, table, offsets, mode="sum", per_sample_weights=ids.weights, include_last_offset=True)

    def tier_counters(self) -> TierCounters:
        """Where the rows are."""
        return TierCounters(fast_rows=self.grown.max_rows)


class TieredDeviceBlock(DeviceBlock):
    """One table, some of whose rows are on the host.

    Args:
        grown: what it is.
        reads: as `DeviceBlock` has them, like the next two.
        dtype: of the weights.
        device: where the other rows are.
        tiers: how rows are spread.

    Raises:
        CapacityError: see `TwoTiers`.
    """

    def __init__(self, grown: DynamicTable, reads: Sequence[int], dtype: torch.dtype, device: torch.device, tiers: Tiers) -> None:
        self.both = TwoTiers(grown, tiers, device)
        super().__init__(grown, reads, dtype, device)

    def memory(self, width: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `DeviceBlock.memory`: that of the next plane."""
        self.memories.append(self.both.rows[len(self.memories)])
        return self.memories[-1].tensor

    @property
    def capacity(self) -> int:
        """Rows that keys may own now, in both tiers."""
        return self.both.room(len(self._lost_at.tensor) - CONSTANTS)

    def source(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `DeviceBlock.source`."""
        found = self.both.source(rows) if self.weights.dtype == torch.float32 else None
        return (self.read(rows), torch.arange(len(rows), device=rows.device)) if found is None else found

    def look_up(self, ids: "DeviceIds", *, is_pooled: bool) -> Tensor:
        """See `DeviceBlock.look_up`; what is found in which tier is counted."""
        self.both.count(ids.rows)
        return super().look_up(ids, is_pooled=is_pooled)

    def tier_counters(self) -> TierCounters:
        """See `DeviceBlock.tier_counters`."""
        return self.both.counters(self.capacity)


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
    """The tables, with the methods of `KeyedBank`: each is a block of its own, since each grows by itself.

    Args:
        grown: what they are.
        reads: for each read, the place of its table.
        dtype: of all weights.
        device: where.
        tiers: how rows are spread.

    Raises:
        CapacityError: see `TwoTiers`.
    """

    def __init__(self, grown: Sequence[DynamicTable], reads: Sequence[int], dtype: torch.dtype, device: torch.device, tiers: Tiers) -> None:
        self.dtype, self.device, self.reads = dtype, device, tuple(reads)
        own = [[read for read, table in enumerate(reads) if table == place] for place in range(len(grown))]
        self.blocks = [
            TieredDeviceBlock(table, block_reads, dtype, device, tiers) if tiers.is_needed(table) else DeviceBlock(table, block_reads, dtype, device)
            for table, block_reads in zip(grown, own, strict=True)
        ]
        self.places = [(place, 0) for place in range(len(grown))]
        self.columns = [0, *itertools.accumulate(grown[table].dim for table in reads)]

    def keyed(self, table: int) -> tuple[DeviceBlock, int]:
        """The block of a table, and its place in there."""
        return self.blocks[table], 0

    def reserve(self, table: int, rows: int) -> None:
        """See `DeviceBlock.reserve`."""
        self.blocks[table].reserve(rows)

    def lose(self, table: int, rows: Tensor | Numbers) -> None:
        """Take note that keys lost rows of a table, int64 [n]: gradients of what they read are nobody's any more."""
        if len(rows):
            lost = rows if isinstance(rows, Tensor) else torch.from_numpy(rows)
            self.blocks[table].lose(lost.to(self.device) + CONSTANTS)

    def watch(self) -> list[int]:
        """See `TableBank.watch`."""
        return [block.losses for block in self.blocks]

    def learned(self, gradients: Sequence[RowGradients], watch: Sequence[int]) -> Sequence[RowGradients]:
        """See `TableBank.learned`: rows that were given to other keys don't learn from what they were before; constant rows are left out already."""
        kept = []
        for block, part, losses in zip(self.blocks, gradients, watch, strict=True):
            kept.append(part if block.losses == losses else _some(part, block.still_owned(part.rows, losses)))
        return kept

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
        parts = bank.by_read([block.look_up(ids, is_pooled=self.is_pooled) for block, ids in pairs], self.batch_sizes)
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

    Args: those of `FusedTables`; the bank is a `DeviceBank`.
    """

    bank: Any

    def moments(self) -> list[list[Tensor]]:
        """For each table its moments, in the optimiser's order, of all rows that there is room for, constant ones too; until it grows."""
        held: Any = self._moment_rows
        return [[rows.tensor for rows in moments] for moments in held]

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


def _some(gradient: RowGradients, chosen: Tensor) -> RowGradients:
    """Those of some of the rows, bool [U]."""
    summed = _summed(gradient)
    every = torch.arange(int(chosen.sum()) + 1, device=chosen.device)
    return RowGradients(summed.rows[chosen], every, every[:-1], summed.gradients[chosen])
