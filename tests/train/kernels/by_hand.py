"""What the kernels must do, in float64 and one number at a time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emberline.train.kernels import (
    AdaDelta,
    Adagrad,
    Adam,
    Lamb,
    LarsSgd,
    PartialRowWiseAdam,
    PartialRowWiseLamb,
    RmsProp,
    RowOptimizer,
    RowWiseAdagrad,
    Sgd,
    WeightDecay,
)

Matrix = NDArray[np.float64]

OPTIMIZERS: list[RowOptimizer] = [
    Sgd(lr=0.3),
    Adagrad(lr=0.3, eps=0.01),
    Adagrad(lr=0.3, initial_accumulator_value=0.5),
    RowWiseAdagrad(lr=0.3),
    RowWiseAdagrad(lr=0.3, weight_decay=0.2, weight_decay_mode=WeightDecay.L2, initial_accumulator_value=0.1),
    RowWiseAdagrad(lr=0.3, weight_decay=0.2, weight_decay_mode=WeightDecay.DECOUPLE),
    Adam(lr=0.1),
    Adam(lr=0.1, beta1=0.7, beta2=0.8, eps=0.01, weight_decay=0.2),
    PartialRowWiseAdam(lr=0.1, weight_decay=0.2),
    Lamb(lr=0.1, weight_decay=0.2),
    PartialRowWiseLamb(lr=0.1, beta2=0.9),
    LarsSgd(lr=2.0, eta=0.1, momentum=0.8, weight_decay=0.2),
    AdaDelta(lr=2.0, rho=0.8, eps=0.01, weight_decay=0.2),
    RmsProp(lr=0.1),
    RmsProp(lr=0.1, alpha=0.7, eps=0.01, weight_decay=0.2),
]


@dataclass
class RowByHand:
    """One row and its moments."""

    weights: list[float]
    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)

    def moments(self) -> list[list[float]]:
        """Those that there are, in order."""
        return [moment for moment in (self.total, self.first, self.second) if moment]


def norm(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def begin(optimizer: RowOptimizer, weights: Sequence[float]) -> RowByHand:
    row, dim = RowByHand(list(weights)), len(weights)
    match optimizer:
        case Adagrad():
            row.total = [optimizer.initial_accumulator_value] * dim
        case RowWiseAdagrad():
            row.total = [optimizer.initial_accumulator_value]
        case Adam() | Lamb():
            row.first, row.second = [0.0] * dim, [0.0] * dim
        case PartialRowWiseAdam() | PartialRowWiseLamb():
            row.first, row.second = [0.0] * dim, [0.0]
        case LarsSgd() | RmsProp():
            row.first = [0.0] * dim
        case AdaDelta():
            row.first, row.second = [0.0] * dim, [0.0] * dim
    return row


def update(optimizer: RowOptimizer, row: RowByHand, gradient: Sequence[float], lr: float, step: int) -> None:
    dim = len(gradient)
    match optimizer:
        case Sgd():
            row.weights = [w - lr * g for w, g in zip(row.weights, gradient, strict=True)]
        case Adagrad():
            for i, g in enumerate(gradient):
                row.total[i] += g * g
                row.weights[i] -= lr * g / (math.sqrt(row.total[i]) + optimizer.eps)
        case RowWiseAdagrad():
            decay, mode = optimizer.weight_decay, optimizer.weight_decay_mode
            seen = [g + decay * w if mode is WeightDecay.L2 else g for g, w in zip(gradient, row.weights, strict=True)]
            row.total[0] += sum(g * g for g in seen) / dim
            rate = lr / (math.sqrt(row.total[0]) + optimizer.eps)
            keep = {WeightDecay.L2: 1 - rate * decay, WeightDecay.DECOUPLE: 1 - lr * decay, WeightDecay.NONE: 1.0}[mode]
            row.weights = [keep * w - rate * g for w, g in zip(row.weights, gradient, strict=True)]
        case LarsSgd():
            size = norm(row.weights)
            below = norm(gradient) + optimizer.weight_decay * size
            rate = lr * optimizer.eta * size / below if below else 0.0
            for i, g in enumerate(gradient):
                row.first[i] = optimizer.momentum * row.first[i] + rate * (g + optimizer.weight_decay * row.weights[i])
            row.weights = [w - m for w, m in zip(row.weights, row.first, strict=True)]
        case RmsProp():
            for i, g in enumerate(gradient):
                seen_here = g + optimizer.weight_decay * row.weights[i]
                row.first[i] = optimizer.alpha * row.first[i] + (1 - optimizer.alpha) * seen_here**2
                row.weights[i] -= lr * seen_here / (math.sqrt(row.first[i]) + optimizer.eps)
        case AdaDelta():
            for i, g in enumerate(gradient):
                seen_here = g + optimizer.weight_decay * row.weights[i]
                row.first[i] = optimizer.rho * row.first[i] + (1 - optimizer.rho) * seen_here**2
                change = math.sqrt((row.second[i] + optimizer.eps) / (row.first[i] + optimizer.eps)) * seen_here
                row.second[i] = optimizer.rho * row.second[i] + (1 - optimizer.rho) * change**2
                row.weights[i] -= lr * change
        case Adam() | PartialRowWiseAdam() | Lamb() | PartialRowWiseLamb():
            _update_with_betas(optimizer, row, gradient, lr, step)


def _update_with_betas(
    optimizer: Adam | PartialRowWiseAdam | Lamb | PartialRowWiseLamb, row: RowByHand, gradient: Sequence[float], lr: float, step: int
) -> None:
    one, two = optimizer.beta1, optimizer.beta2
    squares = [g * g for g in gradient]
    if len(row.second) < len(gradient) or isinstance(optimizer, PartialRowWiseAdam | PartialRowWiseLamb):
        squares = [sum(squares) / len(squares)]
    row.first = [one * m + (1 - one) * g for m, g in zip(row.first, gradient, strict=True)]
    row.second = [two * v + (1 - two) * s for v, s in zip(row.second, squares, strict=True)]
    roots = [math.sqrt(v / (1 - two**step)) + optimizer.eps for v in row.second]
    roots = roots * (len(gradient) // len(roots))
    change = [m / (1 - one**step) / root + optimizer.weight_decay * w for m, root, w in zip(row.first, roots, row.weights, strict=True)]
    trust = 1.0
    if isinstance(optimizer, Lamb | PartialRowWiseLamb):
        trust = norm(row.weights) / norm(change) if norm(change) else 0.0
    row.weights = [w - lr * trust * c for w, c in zip(row.weights, change, strict=True)]


@dataclass
class Batch:
    """Bags of ids: `bags[read][row]` is a list of (id, weight)."""

    bags: list[list[list[tuple[int, float]]]]

    @property
    def num_rows(self) -> int:
        return len(self.bags[0]) if self.bags else 0

    def ids(self) -> list[int]:
        return [identity for read in self.bags for bag in read for identity, _ in bag]

    def weights(self) -> list[float]:
        return [weight for read in self.bags for bag in read for _, weight in bag]

    def offsets(self) -> list[int]:
        return [0, *np.cumsum([len(bag) for read in self.bags for bag in read]).tolist()]


class TablesByHand:
    """Tables that learn by loops.

    Args:
        weights: of each table, [rows, dim].
        reads: the table of each read.
        optimizer: of all.
        mean: pool by the mean.
    """

    def __init__(self, weights: Sequence[Matrix], reads: Sequence[int], optimizer: RowOptimizer, mean: bool = False) -> None:
        self.rows = [[begin(optimizer, row.tolist()) for row in table] for table in weights]
        self.reads, self.optimizer, self.mean, self.step = list(reads), optimizer, mean, 0
        self.held: dict[tuple[int, int], list[float]] = {}

    def pooled(self, batch: Batch) -> Matrix:
        lines = []
        for place in range(batch.num_rows):
            line: list[float] = []
            for read, table in enumerate(self.reads):
                bag = batch.bags[read][place]
                share = 1 / len(bag) if self.mean and bag else 1.0
                dim = len(self.rows[table][0].weights)
                line += [sum(weight * share * self.rows[table][identity].weights[i] for identity, weight in bag) for i in range(dim)]
            lines.append(line)
        return np.array(lines).reshape(batch.num_rows, sum(len(self.rows[table][0].weights) for table in self.reads))

    def hold(self, batch: Batch, gradient: Matrix) -> None:
        """Add a batch's gradients to those that wait."""
        column = 0
        for read, table in enumerate(self.reads):
            dim = len(self.rows[table][0].weights)
            for place, bag in enumerate(batch.bags[read]):
                share = 1 / len(bag) if self.mean and bag else 1.0
                for identity, weight in bag:
                    total = self.held.setdefault((table, identity), [0.0] * dim)
                    for i in range(dim):
                        total[i] += weight * share * gradient[place, column + i]
            column += dim

    def apply(self, lr: float | None = None) -> None:
        """One update by all gradients that wait."""
        self.step += 1
        for (table, identity), total in self.held.items():
            update(self.optimizer, self.rows[table][identity], total, self.optimizer.lr if lr is None else lr, self.step)
        self.held = {}

    def weights(self, table: int) -> Matrix:
        return np.array([row.weights for row in self.rows[table]])

    def moments(self, table: int) -> list[Matrix]:
        each = [row.moments() for row in self.rows[table]]
        found = [np.array(part) for part in zip(*each, strict=True)]
        return [part[:, 0] if moment.per_row else part for part, moment in zip(found, self.optimizer.moments, strict=True)]
