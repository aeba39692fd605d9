"""Second tiers of tables that grow, on a CPU: which rows are in memory, which in a file, and how often the faster of both had what was asked for.

HYBRID: each row is in one tier, the first rows that are given in memory. CACHING: the file has all rows, and memory the rows used last.
Numbers are those of a table that is all in memory, bit for bit. What a table's `local_hbm_for_values` pays for is rounded down to whole rows,
weights and moments together; HYBRID has as fast, beyond that, the rest of a page of the system.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emberline.train.dynamic.bank import FIXED_ROWS, KeyedBlock, PlainMemory, RowMemory
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tiers.cache import CachedRows, Plane, RowCache
from emberline.train.dynamic.tiers.memory import KEPT_BYTES, Span, TieredMemory, are_first
from emberline.train.dynamic.tiers.prefetch import Prefetcher, touch
from emberline.train.kernels.optimizers import Moment
from emberline.train.kernels.rows import Rows

_FIXED = "what no id owns"


@dataclass(frozen=True)
class Tiers:
    """How the rows of a kernel's tables are spread.

    Args:
        moments: of the optimiser.
        dtype: of the weights.
        folder: of files; None: the system's temporary folder.
        kept_bytes: about how much of each mapped part may stay in memory of this process.
    """

    moments: tuple[Moment, ...]
    dtype: torch.dtype
    folder: Path | None = None
    kept_bytes: int = KEPT_BYTES

    def row_bytes(self, dim: int) -> int:
        """Of one row's weights and moments."""
        return sum(plane.row_bytes for plane in self.planes(dim))

    def planes(self, dim: int) -> list[Plane]:
        """What is kept of a row."""
        return [Plane((dim,), self.dtype), *(Plane(() if moment.per_row else (dim,), torch.float32) for moment in self.moments)]

    def fast_rows(self, table: DynamicTable) -> int:
        """Rows that the fast tier has room for: all of them, where the plan says nothing."""
        budget = table.options.local_hbm_for_values
        return table.max_rows if budget is None else max(0, min(table.max_rows, budget // self.row_bytes(table.dim)))

    def spans(self, tables: Sequence[DynamicTable]) -> list[Span]:
        """Where tables of one width lie, and after them the rows that no key owns, which are always fast."""
        spans, first = [], 0
        for table in tables:
            spans.append(Span(table.name, first, table.max_rows, self.fast_rows(table)))
            first += table.max_rows
        return [*spans, Span(_FIXED, first, FIXED_ROWS * len(tables), FIXED_ROWS * len(tables))]

    def is_needed(self, table: DynamicTable) -> bool:
        """Whether some row may be in the second tier."""
        return self.fast_rows(table) < table.max_rows

    def block(
        self, grown: Sequence[DynamicTable], reads: Sequence[int], read_tables: Sequence[int], columns: Sequence[int], dtype: torch.dtype
    ) -> KeyedBlock:
        """The tables of one width; arguments as of `KeyedBlock`."""
        if not any(map(self.is_needed, grown)):
            return KeyedBlock(grown, reads, read_tables, columns, dtype, PlainMemory)
        return TieredBlock(grown, reads, read_tables, columns, dtype, self)


@dataclass
class TierCounters:
    """A table's tiers on this rank.

    Args:
        mode: `HYBRID` or `CACHING`, or `` where all rows are in memory.
        fast_rows: rows that the fast tier has room for.
        fast_bytes: of their weights and moments.
        slow_bytes: of the file, or of the host's memory, as far as rows are in use.
        fast_reads: ids that were looked up and whose rows the fast tier had, evaluation included.
        slow_reads: the others.
    """

    mode: str = ""
    fast_rows: int = 0
    fast_bytes: int = 0
    slow_bytes: int = 0
    fast_reads: int = 0
    slow_reads: int = 0

    @property
    def hit_rate(self) -> float:
        """Of all reads, those that the fast tier served; 1 where there were none."""
        reads = self.fast_reads + self.slow_reads
        return self.fast_reads / reads if reads else 1.0


@dataclass
class _Reads:
    """How often each table's rows were asked for, and how often the fast tier had them."""

    ends: np.ndarray[Any, np.dtype[np.int64]]
    all: np.ndarray[Any, np.dtype[np.int64]] = field(init=False)
    fast: np.ndarray[Any, np.dtype[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        self.all, self.fast = (np.zeros(len(self.ends) + 1, dtype=np.int64) for _ in range(2))

    def count(self, rows: np.ndarray[Any, Any], is_fast: np.ndarray[Any, Any]) -> None:
        tables = np.searchsorted(self.ends, rows, side="right")
        self.all += np.bincount(tables, minlength=len(self.all))
        self.fast += np.bincount(tables[is_fast], minlength=len(self.fast))


class TieredBlock(KeyedBlock):
    """Tables of one width, some of whose rows are in a file.

    Args:
        grown: what they are, in order.
        reads: as `Block` has them, like the next three.
        read_tables: of each read, the place of its table.
        columns: of each read.
        dtype: of the weights.
        tiers: how rows are spread.
    """

    def __init__(
        self,
        grown: Sequence[DynamicTable],
        reads: Sequence[int],
        read_tables: Sequence[int],
        columns: Sequence[int],
        dtype: torch.dtype,
        tiers: Tiers,
    ) -> None:
        self._tiers, self._spans = tiers, tiers.spans(grown)
        moves = [table.options.caching and tiers.is_needed(table) for table in grown]
        self._cache = None
        if any(moves):
            self._cache = RowCache(tiers.planes(grown[0].dim), self._spans, [*moves, True], tiers.folder, tiers.kept_bytes)
            self._cache.memory.reserve(len(grown), self._spans[-1].rows)  # nobody gives rows that no key owns, and they are written at once
        self._parts: list[_Part] = []
        self._reads = _Reads(np.cumsum([table.max_rows for table in grown]))
        self._prefetcher = Prefetcher()
        super().__init__(grown, reads, read_tables, columns, dtype, self._part)

    def rows_of(self, memory: Tensor) -> Rows:
        """See `Block.rows_of`."""
        place = next(place for place, part in enumerate(self._parts) if part.tensor is memory)
        return SpreadRows(self._parts[place]) if self._cache is None else CachedRows(self._cache, place)

    def locate(self, ids: np.ndarray[Any, Any], ids_per_read: Sequence[int]) -> Tensor:
        """See `KeyedBlock.locate`; what is found in which tier is counted."""
        rows = super().locate(ids, ids_per_read)
        is_fast = self.are_fast(rows).numpy()
        self._reads.count(ids, is_fast)
        if self._cache is None:
            for part in self._parts:
                part.memory.touched(len(ids) - int(is_fast.sum()))
        return rows

    def are_fast(self, rows: Tensor) -> Tensor:
        """Which rows, int32 or int64 [n], are in the fast tier now: bool [n]."""
        return self._cache.are_fast(rows) if self._cache is not None else are_first(rows, self._spans)

    def source(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `Block.source`: copies of the fast tier, where all rows are there."""
        if self._cache is None:
            return super().source(rows)
        if self._cache.hot[0].dtype == torch.float32 and (slots := self._cache.slots(rows)) is not None:
            return self._cache.hot[0], slots.to(rows.dtype)
        return self.read(rows), torch.arange(len(rows), dtype=rows.dtype)

    def prefetch(self, rows: Tensor) -> None:
        """Have rows, int64 [n], at hand soon.

        Raises:
            Exception: what went wrong the last time.
        """
        slow = rows[~self.are_fast(rows)]
        tensors = [self._cache.whole] if self._cache is not None else [part.tensor for part in self._parts]
        if len(slow):
            self._prefetcher.submit(lambda: touch(slow, tensors))

    def wait(self) -> None:
        """Until what is being fetched is there.

        Raises:
            Exception: what went wrong.
        """
        self._prefetcher.wait()

    def tier_counters(self, table: int) -> TierCounters:
        """Of one of the block's tables."""
        grown, span, reads = self.grown[table], self._spans[table], self._reads
        if span.fast == span.rows:
            return TierCounters(fast_rows=span.rows, fast_reads=int(reads.all[table]))
        memories = [self._cache.memory] if self._cache is not None else [part.memory for part in self._parts]
        return TierCounters(
            mode="CACHING" if grown.options.caching else "HYBRID",
            fast_rows=span.fast,
            fast_bytes=span.fast * self._tiers.row_bytes(grown.dim),
            slow_bytes=sum(memory.reserved_of(table) for memory in memories),
            fast_reads=int(reads.fast[table]),
            slow_reads=int(reads.all[table] - reads.fast[table]),
        )

    def _part(self, grown: Sequence[DynamicTable], width: tuple[int, ...], dtype: torch.dtype) -> RowMemory:
        """The memory of the next plane."""
        if self._cache is not None:
            part = _Part(self._cache.plane(len(self._parts)), self._cache.memory)
        else:
            row_bytes = Plane(width, dtype).row_bytes
            memory = TieredMemory(row_bytes, self._spans, self._tiers.folder, self._tiers.kept_bytes)
            part = _Part(memory.tensor((sum(span.rows for span in self._spans), *width), dtype), memory)
        self._parts.append(part)
        return part


class SpreadRows(Rows):
    """Rows that lie in one range of addresses, some of them in a file.

    Args:
        part: where.
    """

    def __init__(self, part: "_Part") -> None:
        super().__init__(part.tensor)
        self._part = part

    def __reduce__(self) -> Any:
        raise TypeError("rows whose second tier is a file cannot be copied or pickled: dump the table instead")

    def copy(self, rows: Tensor) -> Tensor:
        """See `Rows.copy`: in a file, where it is large."""
        return self._part.memory.copy(self.read, rows, self.tensor)


@dataclass(frozen=True, eq=False)
class _Part:
    """A plane of rows, and the memory that it lies in."""

    tensor: Tensor
    memory: TieredMemory

    def reserve(self, table: int, rows: int) -> None:
        """See `RowMemory.reserve`."""
        self.memory.reserve(table, rows)
