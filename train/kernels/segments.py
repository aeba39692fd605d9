"""Gradients by position -> gradients by row: a row that was looked up several times gets the sum.

Letters: N positions, U distinct rows among them, M rows of incoming gradients, d width.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class RowGradients:
    """Which rows to update, and by what; sums are taken when they are asked for.

    Args:
        rows: int64 [U], ascending, each once.
        starts: int64 [U + 1], where each row's part of `places` begins, and the end.
        places: int64 [N], which of `gradients` go into the sums.
        gradients: float32 [M, d].
        factors: float32 [N], what each of them is multiplied by; None: 1.
    """

    rows: Tensor
    starts: Tensor
    places: Tensor
    gradients: Tensor
    factors: Tensor | None = None

    def sums(self, start: int, stop: int) -> Tensor:
        """Each row's gradient, float32 [n, d], of some of the rows; never anybody else's memory."""
        if start == stop:
            return self.gradients.new_empty(0, self.gradients.shape[1])
        first, end = int(self.starts[start]), int(self.starts[stop])
        factors = None if self.factors is None else self.factors[first:end]
        return functional.embedding_bag(
            self.places[first:end], self.gradients, self.starts[start:stop] - first, mode="sum", per_sample_weights=factors
        )


def by_row(ids: Tensor, gradients: Tensor, sources: Tensor | None = None, factors: Tensor | None = None) -> RowGradients:
    """Order positions by row. A sum is taken in the order of positions: the same input gives the same bits, whatever the number of threads.

    Args:
        ids: the row of each position, int32 or int64 [N], not negative.
        gradients: float32 [M, d].
        sources: int64 [N], which gradient each position gets; None: each its own.
        factors: float32 [N], what a position's gradient is multiplied by; None: 1.
    """
    ordered, order = torch.sort(ids, stable=True)
    row_of = ordered.numpy()
    is_first = np.ones(len(row_of), dtype=bool)
    np.not_equal(row_of[1:], row_of[:-1], out=is_first[1:])
    starts = np.append(np.flatnonzero(is_first), len(row_of))
    return RowGradients(
        rows=torch.from_numpy(row_of[starts[:-1]].astype(np.int64, copy=False)),
        starts=torch.from_numpy(starts),
        places=order if sources is None else _taken(sources, order),
        gradients=gradients,
        factors=None if factors is None else _taken(factors, order),
    )


def _taken(values: Tensor, order: Tensor) -> Tensor:
    return torch.from_numpy(values.numpy().take(order.numpy()))
