"""Tables that learn inside backward: only rows of the batch are read and written, and no gradient of a table's size exists.

Weights of any dtype are updated in float32, and moments are float32. What goes back into a float16 or bfloat16 table is rounded once a step: to the
nearest, ties to even, or by chance.

Letters: F reads, B rows of a batch, N ids, d width of a table, D the sum of all reads' widths.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from emberline.train.kernels.bank import Block, BlockIds, TableBank
from emberline.train.kernels.copies import Copies
from emberline.train.kernels.gate import UpdateGate
from emberline.train.kernels.optimizers import RowOptimizer, Sgd
from emberline.train.kernels.rounding import round_by_chance
from emberline.train.kernels.rows import Rows
from emberline.train.kernels.segments import RowGradients, by_row

CHUNK_NUMBERS = 1 << 17
"""How many numbers are updated at a time: few enough to stay near the core, enough to make calls few."""


class FusedTables:
    """The tables of a bank, and the optimiser that they share.

    Args:
        bank: the tables.
        optimizer: of all of them.
        max_gradient: numbers of the gradients of looked-up vectors are kept within +-this, before those of a row are added up; None: they are not.
        gate: what to do with gradients; None: use them at once.
        stochastic_rounding: round weights of float16 and bfloat16 by chance, with torch's generator, of copies with that of the first rank.
        frozen_in_graph: let frozen tables take part in autograd's graph, though nothing comes of it: collectives in backward may need it.
        copies: the ranks that hold the same tables, and learn from each other's gradients; None: there are no others.
    """

    def __init__(
        self,
        bank: TableBank,
        optimizer: RowOptimizer,
        *,
        max_gradient: float | None = None,
        gate: UpdateGate | None = None,
        stochastic_rounding: bool = False,
        frozen_in_graph: bool = False,
        copies: Copies | None = None,
    ) -> None:
        self.bank, self.optimizer, self.lr = bank, optimizer, optimizer.lr
        self.max_gradient, self.gate, self.frozen_in_graph = max_gradient, gate or UpdateGate(), frozen_in_graph
        self.stochastic_rounding = stochastic_rounding and bank.dtype != torch.float32
        self.copies, self._generator = copies, torch.Generator() if copies is not None else None
        self.step = 0
        self._moments = [[block.moment(moment) for moment in optimizer.moments] for block in bank.blocks]
        pairs = zip(bank.blocks, self._moments, strict=True)
        self._moment_rows = [[block.rows_of(moment) for moment in moments] for block, moments in pairs]
        self._held: list[list[RowGradients]] = [[] for _ in bank.blocks]
        self._is_shared = False
        self._anchor = torch.zeros(0, requires_grad=True)

    @property
    def is_frozen(self) -> bool:
        """Whether no gradient can change anything: SGD with a rate of 0."""
        return isinstance(self.optimizer, Sgd) and self.lr == 0

    def pooled(self, ids: Tensor, offsets: Tensor, num_rows: int, weights: Tensor | None = None, *, mean: bool = False) -> Tensor:
        """Bags of all reads -> their vectors side by side, [B, D] float32; zeros for empty bags.

        Args:
            ids: int32 or int64 [N], read by read, each row by row.
            offsets: int32 or int64 [F * B + 1], where each bag begins, and the end.
            num_rows: B.
            weights: [N] of any float type, what each vector is multiplied by; they get no gradient.
            mean: divide each bag's (weighted) sum by the number of its ids.

        Raises:
            DataError: an id that its table does not have.
        """
        located = self.bank.locate(ids, offsets, num_rows, weights, mean=mean)
        return self._look_up(located, _Pooled)

    def per_position(self, ids: Tensor, ids_per_read: Sequence[int]) -> Tensor:
        """The vector of each id, [N, d] float32; all tables have one width.

        Args:
            ids: int32 or int64 [N], read by read.
            ids_per_read: [F].

        Raises:
            DataError: an id that its table does not have.
        """
        (block,) = self.bank.blocks
        rows = block.locate(ids.contiguous().numpy(), ids_per_read)
        return self._look_up([BlockIds(rows, torch.tensor(ids_per_read).unsqueeze(1), None)], _PerPosition)

    def moments(self) -> list[list[Tensor]]:
        """For each table its moments, in the optimiser's order, as views: [rows, dim], or [rows] where one is kept for each row."""
        blocks = self.bank.blocks
        return [[blocks[block].view(moment, table) for moment in self._moments[block]] for block, table in self.bank.places]

    def begin_rows(self, block: int, rows: Tensor, weights: Tensor) -> None:
        """Give rows of a block, int64 [n] and distinct, weights of the tables' dtype [n, d], and moments what they begin with."""
        begin = [moment.begins_with for moment in self.optimizer.moments]
        moments = [
            held.tensor.new_full((len(rows), *held.tensor.shape[1:]), value) for held, value in zip(self._moment_rows[block], begin, strict=True)
        ]
        self.write_rows(block, rows, weights, moments)

    def write_rows(self, block: int, rows: Tensor, weights: Tensor, moments: Sequence[Tensor]) -> None:
        """Overwrite rows of a block, int64 [n] and distinct, with contiguous weights of the tables' dtype and moments of float32."""
        self.bank.blocks[block].rows.write(rows, weights)
        for held, values in zip(self._moment_rows[block], moments, strict=True):
            held.write(rows, values)

    def read_moments(self, block: int, rows: Tensor) -> list[Tensor]:
        """Copies of the moments of rows of a block, int64 [n]."""
        return [held.copy(rows) for held in self._moment_rows[block]]

    def apply_held(self) -> None:
        """One update with the sum of all gradients kept by the gate; none, where no backward came. Ranks that hold copies must call it together."""
        gradients = self.sum_held()
        if gradients is not None:
            self._update_all(gradients)
        self.drop_held()

    def sum_held(self) -> Sequence[RowGradients] | None:
        """The sum of all gradients kept by the gate, one for each block, each row once; None where no backward came.

        Of copies it is that of all ranks, which must call it together. It is taken once: later calls, and `apply_held`, have the same.
        """
        if not self._is_shared:
            own = [_merged(parts) for parts in self._held] if any(self._held) else None
            shared = own if self.copies is None or self.is_frozen else self._of_all_copies(self.copies, own)
            self._held = [[] for _ in self.bank.blocks] if shared is None else [[part] for part in shared]
            self._is_shared = True
        return [part for (part,) in self._held] if any(self._held) else None

    def drop_held(self) -> None:
        """Forget the gradients kept by the gate."""
        self._held = [[] for _ in self.bank.blocks]
        self._is_shared = False

    def learn(self, gradients: Sequence[RowGradients]) -> None:
        """Take the gradients of one backward, one for each block."""
        if not self.gate.hold:
            self._apply(gradients)
            return
        for parts, gradient in zip(self._held, gradients, strict=True):
            # only the sums: what came in may be large, or be written over
            every = torch.arange(len(gradient.rows) + 1)
            parts.append(RowGradients(gradient.rows, every, every[:-1], gradient.sums(0, len(gradient.rows))))

    def clipped(self, gradient: Tensor) -> Tensor:
        """The gradient of looked-up vectors, float32, within the bounds."""
        gradient = gradient.float()
        if self.max_gradient is None:
            return gradient
        bound = self.max_gradient * self.gate.scale
        return gradient.clamp(-bound, bound)

    def _look_up(self, located: list[BlockIds], form: "_Form") -> Tensor:
        if self.is_frozen and not self.frozen_in_graph:
            return form.vectors(self.bank, located)
        return _LookUp.apply(self._anchor, self, located, form)  # type: ignore[no-any-return, no-untyped-call]

    def _apply(self, gradients: Sequence[RowGradients]) -> None:
        """One update, of copies with the gradients of all ranks."""
        shared = gradients if self.copies is None else self._of_all_copies(self.copies, gradients)
        if shared is not None:
            self._update_all(shared)

    def _update_all(self, gradients: Sequence[RowGradients]) -> None:
        self.step += 1
        with torch.no_grad(), _one_thread():
            for block, rows, gradient in zip(self.bank.blocks, self._moment_rows, gradients, strict=True):
                size, end = max(1, CHUNK_NUMBERS // block.dim), len(gradient.rows)
                for start in range(0, end, size):
                    stop = min(start + size, end)
                    self._update(block, rows, gradient.rows[start:stop], gradient.sums(start, stop))

    def _of_all_copies(self, copies: Copies, gradients: Sequence[RowGradients] | None) -> Sequence[RowGradients] | None:
        """The gradients of all ranks, and random numbers that are the same on all of them."""
        seed = int(torch.randint(1 << 62, ())) if self.stochastic_rounding else 0
        own = gradients if gradients is not None else [_no_gradients(block) for block in self.bank.blocks]
        shared = copies.gather(own, gradients is not None, seed)
        if shared is None:
            return None
        if self._generator is not None:
            self._generator.manual_seed(shared.seed)
        return shared.gradients

    def _rounded(self, weights: Tensor) -> Tensor:
        dtype = self.bank.dtype
        return round_by_chance(weights, dtype, self._generator) if self.stochastic_rounding else weights.to(dtype)

    def _update(self, block: Block, moment_rows: Sequence[Rows], rows: Tensor, gradients: Tensor) -> None:
        if self.gate.scale != 1:
            gradients /= self.gate.scale
        weights = block.read(rows)
        moments = [moment.read(rows) for moment in moment_rows]
        self.optimizer.update(weights, gradients, moments, self.lr, self.step)
        block.rows.write(rows, self._rounded(weights))
        for moment, values in zip(moment_rows, moments, strict=True):
            moment.write(rows, values)


class _LookUp(torch.autograd.Function):
    """Vectors that teach their tables; the anchor makes autograd call backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tables: FusedTables, located: list[BlockIds], form: "_Form") -> Tensor:
        ctx.tables, ctx.located, ctx.form, ctx.watch = tables, located, form, tables.bank.watch()
        return form.vectors(tables.bank, located)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        tables: FusedTables = ctx.tables
        if not tables.is_frozen:
            tables.learn(tables.bank.learned(ctx.form.gradients(tables.bank, ctx.located, tables.clipped(gradient)), ctx.watch))
        return None, None, None, None


class _Pooled:
    """Pooled reads."""

    @staticmethod
    def vectors(bank: TableBank, located: list[BlockIds]) -> Tensor:
        parts = [block.pool(ids) for block, ids in zip(bank.blocks, located, strict=True)]
        return bank.join(parts, located[0].counts.shape[1])

    @staticmethod
    def gradients(bank: TableBank, located: list[BlockIds], gradient: Tensor) -> list[RowGradients]:
        pairs = zip(bank.blocks, located, strict=True)
        return [by_row(ids.rows, bank.split(gradient, block), _sources(ids.counts), ids.weights) for block, ids in pairs]


class _PerPosition:
    """A vector for each id."""

    @staticmethod
    def vectors(bank: TableBank, located: list[BlockIds]) -> Tensor:
        return bank.blocks[0].read(located[0].rows)

    @staticmethod
    def gradients(bank: TableBank, located: list[BlockIds], gradient: Tensor) -> list[RowGradients]:
        return [by_row(located[0].rows, gradient.contiguous())]


_Form = type[_Pooled] | type[_PerPosition]


def _sources(counts: Tensor) -> Tensor:
    """Ids of each bag [reads, B] -> for each id, which row of the joined gradients [B * reads, d] is its bag's."""
    return torch.from_numpy(np.repeat(_joined_rows(*counts.shape), counts.flatten().numpy()))


@lru_cache(maxsize=16)  # batches of a run have one size
def _joined_rows(reads: int, num_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """For each bag, read by read, its row of the joined gradients."""
    return np.arange(num_rows * reads).reshape(num_rows, reads).T.ravel()


def _merged(parts: Sequence[RowGradients]) -> RowGradients:
    if len(parts) == 1:
        return parts[0]
    return by_row(torch.cat([part.rows for part in parts]), torch.cat([part.gradients for part in parts]))


def _no_gradients(block: Block) -> RowGradients:
    return by_row(torch.empty(0, dtype=torch.int64), torch.empty(0, block.dim))


@contextmanager
def _one_thread() -> Iterator[None]:
    """A chunk is too small to share: threads that wait for each other cost more than they give, and much more on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
