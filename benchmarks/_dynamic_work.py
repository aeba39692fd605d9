"""What `dynamic.py` measures: tables that grow, static tables and fbgemm's, of the same rows, asked for the same ids.

A batch has `NUM_ROWS` rows and `IDS_A_ROW` ids in each: one in each of 26 tables, or 26 in one. Row r of a static table is the key `keys_of(r)` of a
table that grows; the latter gets its keys in the order of the rows, so that both have a row at the same place of memory.
"""

import ctypes
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, OptimType, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor

from emberline.train.dynamic.options import DynamicEmbOptions, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.kernels import FusedTables, RowOptimizer, Table, TableBank
from emberline.train.kernels.optimizers import Adam, RowWiseAdagrad

NUM_ROWS, IDS_A_ROW = 2048, 26
LR, EPS, START = 0.05, 1e-8, 0.01
OPTIMIZERS: dict[str, RowOptimizer] = {"row-wise Adagrad": RowWiseAdagrad(lr=LR, eps=EPS), "Adam": Adam(lr=LR, eps=EPS)}
DYNAMIC, STATIC, FBGEMM = "emberline, grows", "emberline, static", "fbgemm, static"
_FILL = 1 << 16
_SPREAD = 0x9E3779B97F4A7C15
Lookup = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One model's tables.

    Args:
        keys: rows of all tables together that have an owner; a multiple of `tables`.
        tables: 1 or 26.
        dim: of each.
        optimizer: one of `OPTIMIZERS`.
    """

    keys: int
    tables: int
    dim: int
    optimizer: str

    @property
    def rows(self) -> int:
        """Of one table."""
        return self.keys // self.tables

    @property
    def row_bytes(self) -> int:
        """Of a row with its moments."""
        moments = OPTIMIZERS[self.optimizer].moments
        return 4 * (self.dim + sum(1 if moment.per_row else self.dim for moment in moments))

    @property
    def offsets(self) -> Tensor:
        """Where each bag begins, read by read."""
        return torch.arange(0, NUM_ROWS * IDS_A_ROW + 1, IDS_A_ROW // self.tables)

    def __str__(self) -> str:
        return f"{self.keys / 1e6:.3g} million keys, {self.tables} table{'s' * (self.tables > 1)}, dim {self.dim}, {self.optimizer}"


@dataclass(frozen=True)
class Batch:
    """Ids of a batch, table by table, int64 [N].

    Args:
        rows: of static tables.
        keys: the same, as tables that grow have them.
        with_new: the same keys, but one in a hundred was never there.
    """

    rows: Tensor
    keys: Tensor
    with_new: Tensor


@dataclass(frozen=True)
class Form:
    """A way to keep tables.

    Args:
        name: as the report has it.
        look_up: ids and offsets -> [B, D], in evaluation, without gradients.
        learn: ids, offsets and the gradients [B, D] of what is looked up: forward, backward and update.
        grows: whether ids are keys.
    """

    name: str
    look_up: Lookup
    learn: Callable[[Tensor, Tensor, Tensor], None]
    grows: bool = False

    def ids(self, batch: Batch) -> Tensor:
        """Of rows that are all there."""
        return batch.keys if self.grows else batch.rows


def keys_of(rows: Tensor) -> Tensor:
    """int64 -> int64: keys spread over all 64 bits, different ones for different rows."""
    spread: Tensor = torch.from_numpy((rows.numpy().astype(np.uint64) * np.uint64(_SPREAD)).view(np.int64))
    return spread


def make_batches(case: Case, count: int, first_new: int = 0) -> list[Batch]:
    """Batches of Zipf-distributed rows (the r-th most frequent comes 1 / r times as often), scattered over each table.

    Args:
        case: the tables.
        count: how many.
        first_new: new ids in earlier batches; those of these are others.
    """
    source, found = np.random.default_rng(first_new), []
    for number in range(count):
        ranks = np.floor(case.rows ** source.random(NUM_ROWS * IDS_A_ROW)).astype(np.int64) - 1
        rows = torch.from_numpy(ranks * 104_729 % case.rows)
        keys, places = keys_of(rows), torch.arange(number % 100, len(rows), 100)
        begin = case.rows + first_new + number * len(places)
        with_new = keys.clone()
        with_new[places] = keys_of(torch.arange(begin, begin + len(places)))
        found.append(Batch(rows, keys, with_new))
    return found


def new_ids(batches: int) -> int:
    """How many new ids so many batches have at most."""
    return batches * (NUM_ROWS * IDS_A_ROW // 100 + 1)


def make_dynamic(case: Case, room: int = 0, start: float | None = None) -> BatchedDynamicEmbeddingTables:
    """A table that grows, with all keys of the case in it.

    Args:
        case: the tables.
        room: rows of each that stay free.
        start: what each number begins with; None: drawn from -0.01 to 0.01.
    """
    drawn = Initializer(mode=InitializerMode.UNIFORM, lower=-START, upper=START)
    initializer = drawn if start is None else Initializer(mode=InitializerMode.CONSTANT, value=start)
    options = DynamicEmbOptions(max_capacity=case.rows + room, initializer=initializer, score_strategy=ScoreStrategy.STEP)
    described = [DynamicTable(f"t{place}", case.dim, options, case.rows + room) for place in range(case.tables)]
    module = BatchedDynamicEmbeddingTables(described, range(case.tables), OPTIMIZERS[case.optimizer])
    with torch.no_grad():
        for keys, offsets in _all_keys(case):
            module(keys, offsets)
    assert set(module.sizes().values()) == {case.rows}
    return module


def dynamic(case: Case, room: int, start: float | None = None) -> Form:
    """Emberline's tables that grow."""
    module = make_dynamic(case, room, start)

    def look_up(ids: Tensor, offsets: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = module.eval()(ids, offsets)
        return found

    def learn(ids: Tensor, offsets: Tensor, gradients: Tensor) -> None:
        torch.autograd.backward(module.train()(ids, offsets), gradients)

    return Form(DYNAMIC, look_up, learn, grows=True)


def static(case: Case, start: float | None = None) -> Form:
    """Emberline's static tables, which learn inside backward."""
    tables = FusedTables(
        TableBank([Table(f"t{place}", case.rows, case.dim) for place in range(case.tables)], range(case.tables)), OPTIMIZERS[case.optimizer]
    )
    _begin(tables.bank.weights(), start)

    def look_up(ids: Tensor, offsets: Tensor) -> Tensor:
        with torch.no_grad():
            return tables.pooled(ids, offsets, NUM_ROWS)

    def learn(ids: Tensor, offsets: Tensor, gradients: Tensor) -> None:
        torch.autograd.backward(tables.pooled(ids, offsets, NUM_ROWS), gradients)

    return Form(STATIC, look_up, learn)


def fbgemm(case: Case, start: float | None = None) -> Form:
    """The table-batched kernel of fbgemm on the CPU, which has no Adam."""
    specs = [(case.rows, case.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * case.tables
    module: Any = SplitTableBatchedEmbeddingBagsCodegen(
        specs, optimizer=OptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=LR, eps=EPS, pooling_mode=PoolingMode.SUM
    )
    _begin(module.split_embedding_weights(), start)

    def look_up(ids: Tensor, offsets: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = module.eval()(ids, offsets)
        return found

    def learn(ids: Tensor, offsets: Tensor, gradients: Tensor) -> None:
        torch.autograd.backward(module.train()(ids, offsets), gradients)

    return Form(FBGEMM, look_up, learn)


def make_forms(case: Case, room: int, start: float | None = None) -> list[Form]:
    """All that can be had for the case."""
    others = [fbgemm(case, start)] if case.optimizer == "row-wise Adagrad" else []
    return [dynamic(case, room, start), static(case, start), *others]


def resident_bytes(case: Case) -> int:
    """What a table that grows takes of this process's memory, when it is full; run in a process of its own."""
    torch.set_num_threads(1)
    _make_full(Case(_FILL // case.tables * case.tables, case.tables, case.dim, case.optimizer))  # what is loaded, compiled or kept for batches
    before = _own_bytes()
    module = _make_full(case)
    taken = _own_bytes() - before
    assert set(module.sizes().values()) == {case.rows}
    return taken


def _own_bytes() -> int:
    """What this process has for itself; memory that batches needed and gave back is given back to the system first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_full_info().uss)


def _make_full(case: Case) -> BatchedDynamicEmbeddingTables:
    """A table that grows, all rows and moments of which were learned."""
    module = make_dynamic(case)
    for keys, offsets in _all_keys(case):
        found = module(keys, offsets)
        torch.autograd.backward(found, torch.ones_like(found))
    return module


def _all_keys(case: Case) -> Iterator[tuple[Tensor, Tensor]]:
    """All keys of the case, in the order of rows, as batches of one row; and where their bags begin."""
    for rows in torch.split(torch.arange(case.rows), _FILL // case.tables):
        yield keys_of(rows).repeat(case.tables), torch.arange(0, case.tables + 1) * len(rows)


def _begin(weights: Sequence[Tensor], start: float | None) -> None:
    for weight in weights:
        if start is None:
            weight.detach().uniform_(-START, START)
        else:
            weight.detach().fill_(start)
