"""Tables that grow, as a kernel of TorchRec's sharded modules on the CPU.

Letters: F reads of tables, B rows of a batch, N ids, n of one table, K keys, d width of a table, D the sum of all reads' widths.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor, nn
from torch.nn import functional

from emberline.errors import CheckpointError, ConfigError, DataError
from emberline.train.dynamic.bank import FIXED_ROWS, KeyedBank
from emberline.train.dynamic.initial_values import first_vectors, fixed_vectors, stream
from emberline.train.dynamic.keyed import NO_ROW, KeyedRows
from emberline.train.dynamic.options import DynamicRuntime
from emberline.train.dynamic.pooled import pooled_reads
from emberline.train.dynamic.state import DynamicCounters, DynamicState, DynamicTable
from emberline.train.dynamic.tiers.blocks import TierCounters, TieredBlock, Tiers
from emberline.train.kernels.fused import FusedTables
from emberline.train.kernels.optimizers import Adagrad, Adam, RowOptimizer, RowWiseAdagrad, Sgd

Numbers = np.ndarray[Any, np.dtype[Any]]
OPTIMIZERS = (Sgd, Adagrad, RowWiseAdagrad, Adam)
MOST_STEPS = 2**32 - 2
"""Steps are counted in 32 bits beside each key."""
LOADED_ROWS = 1 << 16
"""So many rows of a state are written at a time."""
_NOT_SUMMED = ("size", "capacity", "counted")


class BatchedDynamicEmbeddingTables(nn.Module):
    """Tables whose ids are any 64 bits: in training an id gets a row when it is first read, or when it is admitted.

    A full table lets go of the ids of the lowest scores, or raises. In evaluation nothing changes, and unknown ids read one vector.

    Args:
        tables: at least one; their names differ.
        reads: for each read, the place of its table among `tables`.
        optimizer: of all of them: SGD, Adagrad, row-wise Adagrad or Adam.
        dtype: of all weights: float32, float16 or bfloat16.
        runtime: what the job knows.
        pooling: how bags become vectors; NONE: each id is a vector.
        max_gradient: see `FusedTables`, as for the next two.
        stochastic_rounding: round weights by chance.
        frozen_in_graph: let frozen tables take part in autograd's graph.
        output_dtype: of what a lookup gives.
        device: the CPU.
        clock: microseconds since 1970.

    Raises:
        ConfigError: the optimiser, the pooling or the device is another one; two tables have one name; a table has no rows.
        CapacityError: there are not so many addresses for the rows.
    """

    def __init__(
        self,
        tables: Sequence[DynamicTable],
        reads: Sequence[int],
        optimizer: RowOptimizer,
        dtype: torch.dtype = torch.float32,
        *,
        runtime: DynamicRuntime | None = None,
        pooling: PoolingMode = PoolingMode.SUM,
        max_gradient: float | None = None,
        stochastic_rounding: bool = False,
        frozen_in_graph: bool = False,
        output_dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        super().__init__()
        self.device = device or torch.device("cpu")
        _refuse(tables, optimizer, pooling)
        self.described, self.dtype, self.pooling = tuple(tables), dtype, pooling
        self.bank: Any = self._new_bank(reads, optimizer, (runtime or DynamicRuntime()).spill_folder)
        self.tables = self._new_fused(optimizer, max_gradient=max_gradient, stochastic_rounding=stochastic_rounding, frozen_in_graph=frozen_in_graph)
        self._is_frozen_for_good = self.tables.is_frozen
        self._seed, self._output_dtype, self._clock, self._step = (runtime or DynamicRuntime()).seed, output_dtype, clock, 0
        self._keyed = [self._new_keyed(table) for table in tables]
        self._places = {table.name: place for place, table in enumerate(tables)}
        self._runs_of = [_runs(reads, place) for place in range(len(tables))]
        self._reads_of = [[read for read, own in enumerate(reads) if own == place] for place in range(len(tables))]
        self._fixed = [torch.from_numpy(fixed_vectors(self._seed, table.name, table.dim, table.options)) for table in tables]
        for place, vectors in enumerate(self._fixed):
            self._write_fixed(place, vectors)
        self._pooled_reads = pooled_reads(self.bank, self._keyed) if pooling is PoolingMode.SUM else None

    @property
    def step(self) -> int:
        """Training forwards so far."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        if not 0 <= step <= MOST_STEPS:
            raise CheckpointError(f"step {step} is not within 0 and {MOST_STEPS}, which tables that grow count in")
        self._step = step

    def forward(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None, batch_sizes: Sequence[int] | None = None) -> Tensor:
        """Look bags up; in training, give rows to new ids.

        Args:
            indices: ids, integers [N], of all reads one after the other.
            offsets: integers [F * B + 1].
            per_sample_weights: [N], what each vector is multiplied by; None: 1. They get no gradient, and count for nothing else.
            batch_sizes: [F], each read's B, where they differ.

        Returns:
            [B, D] of pooled bags; [sum of B * d] read by read, where `batch_sizes` is given; [N, d] where ids are not pooled.

        Raises:
            CapacityError: new ids find no room; nothing is changed.
            DataError: offsets and ids don't fit each other.
        """
        counts = self._counts(offsets, batch_sizes, len(indices), per_sample_weights)
        is_plain = batch_sizes is None and per_sample_weights is None and not (self.training or torch.is_grad_enabled())
        if self._pooled_reads is not None and is_plain:
            ids, bags = (values.detach().to("cpu", torch.int64) for values in (indices, offsets))
            return self._pooled_reads.pooled(ids, bags, counts.shape[1]).to(self._output_dtype)
        ends = [0, *itertools.accumulate(counts.sum(1).tolist())]
        rows = self._rows(_numbers(indices), ends)
        if self.pooling is PoolingMode.NONE:
            found = self.tables.per_position(rows, [stop - start for start, stop in itertools.pairwise(ends)])
            return found.to(self._output_dtype)
        bags = offsets.detach() if batch_sizes is None else functional.pad(counts.flatten().cumsum(0), (1, 0))
        found = self.tables.pooled(rows, bags, counts.shape[1], per_sample_weights, mean=self.pooling is PoolingMode.MEAN)
        if batch_sizes is not None:
            dims = [self.described[table].dim for table in self.bank.reads]
            parts = zip(torch.split(found, dims, dim=1), batch_sizes, strict=True)
            found = torch.cat([part[:size].flatten() for part, size in parts])
        return found.to(self._output_dtype)

    def prefetch(self, indices: Tensor, offsets: Tensor, batch_sizes: Sequence[int] | None = None) -> None:
        """Let a thread bring the rows of a batch to come from the file of a second tier, where there is one; no number changes.

        Args: those of `forward`.

        Raises:
            Exception: what went wrong the last time.
        """
        if not any(isinstance(block, TieredBlock) for block in self.bank.blocks):
            return
        keys, ends = _numbers(indices), _numbers(offsets)[self._bag_ends(len(offsets) - 1, batch_sizes)]
        wanted: dict[TieredBlock, list[Numbers]] = {}
        for place, own in enumerate(self._reads_of):
            block, within = self.bank.keyed(place)
            if isinstance(block, TieredBlock) and own:
                asked = np.concatenate([keys[ends[read] : ends[read + 1]] for read in own])
                found = self._keyed[place].index.find(asked)
                wanted.setdefault(block, []).append(found[found >= 0] + block.first_rows[within])
        for block, rows in wanted.items():  # of all its tables at once: what waits gives way to what is asked for later
            block.prefetch(torch.from_numpy(np.concatenate(rows)))

    def _bag_ends(self, num_bags: int, batch_sizes: Sequence[int] | None) -> list[int]:
        """Where the bags of each read begin, and the end."""
        reads = len(self.bank.reads)
        return [0, *itertools.accumulate([num_bags // max(reads, 1)] * reads if batch_sizes is None else batch_sizes)]

    def tiers(self, table: str) -> TierCounters:
        """Where a table's rows are, and how often the faster tier had what was asked for."""
        block, within = self.bank.keyed(self._places[table])
        if isinstance(block, TieredBlock):
            return block.tier_counters(within)
        return TierCounters(fast_rows=self.described[self._places[table]].max_rows)

    def sizes(self) -> dict[str, int]:
        """Of each table, how many ids have a row."""
        return {table.name: len(keyed.index) for table, keyed in zip(self.described, self._keyed, strict=True)}

    def counters(self, table: str) -> DynamicCounters:
        """What happened to a table so far."""
        return self._keyed[self._places[table]].counters()

    def dump(self, table: str) -> DynamicState:
        """A copy of all that is known of a table."""
        return self._state(self._places[table], 0)

    def load(self, table: str, state: DynamicState) -> int:
        """Replace a table's rows; ids of the lowest scores, of equal ones the smallest, are dropped where there are more than rows.

        The step becomes that of the state, if that is later. Which ids were removed is tracked from then on, and those dropped are among them.

        Returns:
            how many ids were dropped.

        Raises:
            CheckpointError: the state is no such table's; nothing is changed.
        """
        place = self._places[table]
        problem = self._misfit(place, state)
        if problem:
            raise CheckpointError(f"table {table!r}: {problem}")
        keyed, names = self._keyed[place], [moment.name for moment in self.tables.optimizer.moments]
        order = np.lexsort((state.keys.numpy(), state.scores.numpy()))
        dropped = max(0, len(order) - keyed.table.max_rows)
        kept = torch.from_numpy(np.sort(order[dropped:]))
        keys, steps, scores = (values[kept].numpy() for values in (state.keys, state.last_steps, state.scores))
        self.bank.lose(place, keyed.index.items()[1])
        self.bank.reserve(place, len(keys))
        rows = self._to_block(place, keyed.replace(keys, steps, scores))
        for own, given in zip(torch.split(kept, LOADED_ROWS), torch.split(rows, LOADED_ROWS), strict=True):  # never all of it twice
            self.tables.write_rows(self.bank.places[place][0], given, state.weights[own], [state.moments[name][own] for name in names])
        if keyed.admission is not None:
            keyed.admission.replace(state.counted_keys.numpy(), state.counts.numpy())
        for name, value in state.counters.items():
            if name not in _NOT_SUMMED and hasattr(keyed.totals, name):
                setattr(keyed.totals, name, int(value))
        keyed.totals.dropped += dropped
        self._fixed[place] = torch.stack([state.default, state.unadmitted]).float().clone()
        self._write_fixed(place, self._fixed[place])
        self.step = max(self.step, state.step)
        keyed.note_removed(state.keys.numpy()[order[:dropped]], self.step + 1)
        return dropped

    def find(self, table: str, keys: Tensor) -> tuple[Tensor, Tensor]:
        """What evaluation reads of ids, int64 [n]: vectors, float32 [n, d], and whether each is known, bool [n]."""
        place = self._places[table]
        found = torch.from_numpy(self._keyed[place].index.find(_numbers(keys)))
        vectors = self._fixed[place][0].to(self.dtype).float().repeat(len(found), 1)
        known = found >= 0
        block, within = self.bank.keyed(place)
        vectors[known] = block.read(found[known] + block.first_rows[within])
        return vectors, known

    def remove(self, table: str, keys: Tensor) -> int:
        """Take ids, int64 [n], out of a table, and out of its counter of admission; returns how many had a row."""
        place = self._places[table]
        keyed, asked = self._keyed[place], np.unique(_numbers(keys))
        known = asked[keyed.index.find(asked) >= 0]
        self._take_out(place, known)
        if keyed.admission is not None:
            keyed.admission.drop(asked)
        keyed.totals.removed += len(known)
        return len(known)

    def expire(self, table: str, before_step: int) -> int:
        """Take out ids that training read last before this step; returns how many."""
        place = self._places[table]
        keys, _, steps, _ = self._keyed[place].items()
        old = keys[steps < before_step]
        self._take_out(place, old)
        self._keyed[place].totals.expired += len(old)
        return len(old)

    def set_scores(self, table: str, keys: Tensor, scores: Tensor) -> None:
        """Let ids that have a row have these scores, int64 [n].

        Raises:
            TrainingError: the table's score_strategy is not CUSTOMIZED.
        """
        self._keyed[self._places[table]].set_scores(_numbers(keys), _numbers(scores))

    def track_removals(self, is_on: bool) -> None:
        """Begin, or cease, to keep note of ids that lose their rows."""
        for keyed in self._keyed:
            keyed.track_removals(is_on, self.step + 1 if self.step else 0)

    def forget_removals(self, before_step: int) -> None:
        """Keep no note any more of what was removed before this step."""
        for keyed in self._keyed:
            keyed.forget_removals(before_step)

    def changes_since(self, table: str, step: int) -> tuple[DynamicState, Tensor]:
        """Ids that training read in this step or later, and those that lost their rows since then and have none now, int64 ascending.

        What is removed between two steps belongs to the later one.

        Raises:
            TrainingError: `track_removals` was not called before that step.
        """
        place = self._places[table]
        removed = self._keyed[place].removed_since(step)
        return self._state(place, step), torch.from_numpy(removed)

    def _new_bank(self, reads: Sequence[int], optimizer: RowOptimizer, folder: Path | None) -> KeyedBank:
        if self.device.type != "cpu":
            raise ConfigError(f"these tables lie on the CPU, not on {self.device}")
        return KeyedBank(self.described, reads, self.dtype, Tiers(optimizer.moments, self.dtype, folder).block)

    def _new_fused(self, optimizer: RowOptimizer, **options: Any) -> FusedTables:
        return FusedTables(self.bank, optimizer, **options)

    def _new_keyed(self, table: DynamicTable) -> KeyedRows:
        return KeyedRows(table)

    def _counts(self, offsets: Tensor, batch_sizes: Sequence[int] | None, num_ids: int, weights: Tensor | None) -> Tensor:
        """Ids of each bag, int64 [F, most rows of a read]; 0 for rows that a read doesn't have."""
        reads, bags = len(self.bank.reads), len(offsets) - 1
        counts = offsets.detach().to(torch.int64).diff()
        if bags < 0 or int(offsets[0]) != 0 or int(offsets[-1]) != num_ids or (bags and int(counts.min()) < 0):
            raise DataError(f"offsets {offsets[:3].tolist()} ... {offsets[-3:].tolist()} of {num_ids} ids: they go from 0 to these, and never fall")
        if weights is not None and len(weights) != num_ids:
            raise DataError(f"{len(weights)} weights of {num_ids} ids")
        if batch_sizes is None:
            if bags % max(reads, 1):
                raise DataError(f"{bags} bags are not shared out evenly among {reads} reads")
            return counts.view(reads, bags // max(reads, 1))
        if len(batch_sizes) != reads or sum(batch_sizes) != bags:
            raise DataError(f"{bags} bags of {reads} reads, which have {list(batch_sizes)} rows")
        most = max(batch_sizes)
        return torch.stack([functional.pad(own, (0, most - len(own))) for own in torch.split(counts, list(batch_sizes))])

    def _rows(self, keys: Numbers, ends: Sequence[int]) -> Tensor:
        """Ids of a batch, read by read -> rows of their blocks."""
        spans = [[slice(ends[first], ends[stop]) for first, stop in runs] for runs in self._runs_of]
        own = [keys[table[0]] if len(table) == 1 else np.concatenate([keys[:0], *(keys[span] for span in table)]) for table in spans]
        rows = np.empty(len(keys), dtype=np.result_type(*(block.id_dtype for block in self.bank.blocks)))
        learns = self.training and not (self._is_frozen_for_good and self.tables.is_frozen)
        found = self._train(own) if learns else [self._known(place, asked) for place, asked in enumerate(own)]
        for table, in_block in zip(spans, found, strict=True):
            start = 0
            for span in table:
                size = span.stop - span.start
                rows[span] = in_block[start : start + size]
                start += size
        return torch.from_numpy(rows)

    def _known(self, place: int, keys: Numbers) -> Numbers:
        """Rows of the block that evaluation reads."""
        block, within = self.bank.keyed(place)
        return self._keyed[place].index.find(keys, block.first_rows[within], block.fixed_row(within, is_unadmitted=False))

    def _train(self, keys: Sequence[Numbers]) -> list[Numbers]:
        """Rows of the block, for each table, of the ids that training reads of it."""
        for place, (keyed, own) in enumerate(zip(self._keyed, keys, strict=True)):
            keyed.check(own)
            self.bank.reserve(place, min(keyed.table.max_rows, len(keyed.index) + len(own)))
        self.step += 1
        now, found = self._clock(), []
        for place, (keyed, own) in enumerate(zip(self._keyed, keys, strict=True)):
            given = keyed.read(own, self.step, now)
            if len(given.lost):
                self.bank.lose(place, given.lost)
            if len(given.new_keys):
                self._begin(place, given.new_keys, given.new_rows)
            block, within = self.bank.keyed(place)
            rows = given.rows + block.first_rows[within]
            if keyed.admission is not None:
                rows[given.rows == NO_ROW] = block.fixed_row(within, is_unadmitted=True)
            found.append(rows)
        return found

    def _begin(self, place: int, keys: Numbers, rows: Numbers) -> None:
        """First vectors of new keys."""
        table = self.described[place]
        vectors = first_vectors(table.options.initializer, stream(self._seed, table.name, "rows"), keys, table.dim)
        self.tables.begin_rows(self.bank.places[place][0], self._to_block(place, rows), torch.from_numpy(vectors).to(self.dtype))

    def _take_out(self, place: int, keys: Numbers) -> None:
        self.bank.lose(place, self._keyed[place].take_out(keys, self.step + 1))

    def _to_block(self, place: int, rows: Numbers) -> Tensor:
        block, within = self.bank.keyed(place)
        return torch.from_numpy(rows + block.first_rows[within])

    def _write_fixed(self, place: int, vectors: Tensor) -> None:
        block, within = self.bank.keyed(place)
        first = block.fixed_row(within, is_unadmitted=False)
        block.rows.write(torch.arange(first, first + FIXED_ROWS), vectors.to(self.dtype).contiguous())

    def _state(self, place: int, since: int) -> DynamicState:
        keyed, block = self._keyed[place], self.bank.keyed(place)[0]
        keys, rows, steps, scores = (values[...] for values in keyed.items())
        if since:
            changed = steps >= since
            keys, rows, steps, scores = keys[changed], rows[changed], steps[changed], scores[changed]
        in_block = self._to_block(place, rows)
        counted, counts = (np.empty(0, dtype=np.int64),) * 2 if keyed.admission is None else keyed.admission.items()
        return DynamicState(
            keys=torch.from_numpy(keys),
            weights=block.rows.copy(in_block),
            moments=dict(
                zip(
                    (moment.name for moment in self.tables.optimizer.moments),
                    self.tables.read_moments(self.bank.places[place][0], in_block),
                    strict=True,
                )
            ),
            last_steps=torch.from_numpy(steps.copy()),
            scores=torch.from_numpy(scores.copy()),
            counted_keys=torch.from_numpy(counted.copy()),
            counts=torch.from_numpy(counts.copy()),
            default=self._fixed[place][0].clone(),
            unadmitted=self._fixed[place][1].clone(),
            counters={name: value for name, value in asdict(keyed.counters()).items() if name not in _NOT_SUMMED},
            step=self.step,
        )

    def _misfit(self, place: int, state: DynamicState) -> str:
        """What of a state is not as this table has it; empty where all is."""
        table, number = self.described[place], len(state.keys)
        wanted: dict[str, tuple[tuple[int, ...], torch.dtype, Tensor]] = {"weights": ((number, table.dim), self.dtype, state.weights)}
        for moment in self.tables.optimizer.moments:
            if moment.name not in state.moments:
                return f"the state has no {moment.name!r}, which the optimiser keeps"
            wanted[moment.name] = ((number,) if moment.per_row else (number, table.dim), torch.float32, state.moments[moment.name])
        for name in ("keys", "last_steps", "scores"):
            wanted[name] = ((number,), torch.int64, getattr(state, name))
        for name, (shape, dtype, values) in wanted.items():
            if tuple(values.shape) != shape or values.dtype != dtype:
                return f"{name} {tuple(values.shape)} of {values.dtype}, and {shape} of {dtype} is needed"
        if number and (
            len(np.unique(state.keys.numpy())) < number or not 0 <= int(state.last_steps.min()) <= int(state.last_steps.max()) <= MOST_STEPS
        ):
            return "ids come twice, or last_steps are no steps"
        return ""


def _refuse(tables: Sequence[DynamicTable], optimizer: RowOptimizer, pooling: PoolingMode) -> None:
    if not isinstance(optimizer, OPTIMIZERS):
        known = ", ".join(one.__name__ for one in OPTIMIZERS)
        raise ConfigError(f"tables that grow learn by {known}, not by {type(optimizer).__name__}")
    if pooling not in (PoolingMode.SUM, PoolingMode.MEAN, PoolingMode.NONE):
        raise ConfigError(f"tables that grow pool by SUM, MEAN or NONE, not by {pooling}")
    names = [table.name for table in tables]
    if len(set(names)) < len(names) or not names:
        raise ConfigError(f"tables that grow need different names, and at least one; found {names}")


def _runs(reads: Sequence[int], table: int) -> list[tuple[int, int]]:
    """Reads of a table that follow each other: the first of each run, and its end."""
    runs: list[tuple[int, int]] = []
    for read, own in enumerate(reads):
        if own == table and runs and runs[-1][1] == read:
            runs[-1] = (runs[-1][0], read + 1)
        elif own == table:
            runs.append((read, read + 1))
    return runs


def _numbers(values: Tensor) -> Numbers:
    numbers: Numbers = values.detach().to("cpu", torch.int64).contiguous().numpy()
    return numbers
