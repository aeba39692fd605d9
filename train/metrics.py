"""Metrics over an evaluation set, exact and in one pass: rows come in batches, and states of several processes merge.

A state is one row of float64 numbers, so that ranks can send it; counts stay exact in it up to 2^53.

Letters used in shapes: B rows of a batch, C classes. Sample weights don't count here: every row counts once.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

_MERGE_AT = 1 << 20
Floats = npt.NDArray[np.float64]


class Metrics(Protocol):
    """What an evaluation gathers: batches in, numbers by name out."""

    def update(self, logits: npt.NDArray[np.float32], labels: npt.NDArray[Any], /) -> None:
        """Take in one batch."""

    def compute(self) -> dict[str, float]:
        """The numbers over all that came in so far; NaN where one isn't defined."""

    def state(self) -> Floats:
        """All that it has gathered, [N]."""

    def merge_state(self, state: Floats, /) -> None:
        """Take in the state of another process's metrics of the same kind."""


class Auc:
    """The area under the ROC curve: the share of (positive, negative) pairs that the scores rank rightly, a tie counting half.

    Exact: it keeps how much positive and negative label each distinct float32 score has, never a histogram. Ties are scores equal as float32.
    """

    def __init__(self) -> None:
        self._scores: list[npt.NDArray[np.float32]] = []
        self._labels: list[tuple[Floats, Floats]] = []
        self._pending = 0

    def update(self, scores: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> None:
        """Take in scores [B] and labels [B] in [0, 1]; a label between counts in part for both classes."""
        positive = labels.astype(np.float64)
        self._append(scores.astype(np.float32), positive, 1.0 - positive)

    def state(self) -> Floats:
        """Scores, and how much positive and negative label each has, [3 * distinct scores]."""
        if not self._scores:
            return np.empty(0)
        self._compact()
        return np.concatenate([self._scores[0].astype(np.float64), *self._labels[0]])

    def merge_state(self, state: Floats) -> None:
        """Take in another process's state."""
        scores, positive, negative = state.reshape(3, -1)
        self._append(scores.astype(np.float32), positive, negative)

    def _append(self, scores: npt.NDArray[np.float32], positive: Floats, negative: Floats) -> None:
        self._scores.append(scores)
        self._labels.append((positive, negative))
        self._pending += len(scores)
        if self._pending > _MERGE_AT:
            self._compact()

    def _compact(self) -> None:
        """One entry for each distinct score, ascending."""
        scores, inverse = np.unique(np.concatenate(self._scores), return_inverse=True)
        positive, negative = (np.bincount(inverse, np.concatenate(side), len(scores)).astype(np.float64) for side in zip(*self._labels, strict=True))
        self._scores, self._labels, self._pending = [scores], [(positive, negative)], 0

    def compute(self) -> float:
        """The area, in [0, 1]; NaN where there are no rows, only one class, or a score is NaN."""
        if not self._scores:
            return math.nan
        self._compact()
        scores, (positive, negative) = self._scores[0], self._labels[0]
        pairs = positive.sum() * negative.sum()
        if not pairs > 0 or np.isnan(scores).any():
            return math.nan
        below = np.cumsum(negative) - negative
        return float((positive * (below + negative / 2)).sum() / pairs)


def _softplus(values: Floats) -> Floats:
    return np.logaddexp(0.0, values)


class BinaryMetrics:
    """AUC, log loss (natural, mean over rows) and the number of rows, from one logit a row."""

    def __init__(self) -> None:
        self._auc = Auc()
        self._loss = 0.0
        self._rows = 0

    def update(self, logits: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> None:
        """Take in logits [B] and labels [B] in [0, 1]."""
        self._auc.update(logits, labels)
        wide, positive = logits.astype(np.float64), labels.astype(np.float64)
        # A loss of infinity times a share of 0 is 0 here, not NaN.
        if_positive = np.where(positive > 0, _softplus(-wide), 0.0) * positive
        if_negative = np.where(positive < 1, _softplus(wide), 0.0) * (1.0 - positive)
        self._loss += float((if_positive + if_negative).sum())
        self._rows += len(labels)

    def state(self) -> Floats:
        """All that it has gathered."""
        return np.concatenate([[self._loss, self._rows], self._auc.state()])

    def merge_state(self, state: Floats) -> None:
        """Take in another process's state."""
        self._loss += float(state[0])
        self._rows += int(state[1])
        self._auc.merge_state(state[2:])

    def compute(self) -> dict[str, float]:
        """`auc`, `log_loss` and `rows`."""
        log_loss = self._loss / self._rows if self._rows else math.nan
        return {"auc": self._auc.compute(), "log_loss": log_loss, "rows": self._rows}


class ClassMetrics:
    """Accuracy, log loss (natural, mean over rows) and the number of rows, from one logit a class."""

    def __init__(self) -> None:
        self._right = 0
        self._loss = 0.0
        self._rows = 0

    def update(self, logits: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> None:
        """Take in logits [B, C] and class numbers [B]; of equal logits the first class wins."""
        wide, classes = logits.astype(np.float64), labels.astype(np.int64)
        largest = wide.max(axis=1, keepdims=True)
        log_total = largest[:, 0] + np.log(np.exp(wide - largest).sum(axis=1))
        self._loss += float((log_total - wide[np.arange(len(classes)), classes]).sum())
        self._right += int((wide.argmax(axis=1) == classes).sum())
        self._rows += len(classes)

    def state(self) -> Floats:
        """All that it has gathered."""
        return np.array([self._loss, self._rows, self._right])

    def merge_state(self, state: Floats) -> None:
        """Take in another process's state."""
        self._loss += float(state[0])
        self._rows += int(state[1])
        self._right += int(state[2])

    def compute(self) -> dict[str, float]:
        """`accuracy`, `log_loss` and `rows`."""
        if not self._rows:
            return {"accuracy": math.nan, "log_loss": math.nan, "rows": 0}
        return {"accuracy": self._right / self._rows, "log_loss": self._loss / self._rows, "rows": self._rows}


class ValueMetrics:
    """Mean squared error and the number of rows, from one value a row."""

    def __init__(self) -> None:
        self._squares = 0.0
        self._rows = 0

    def update(self, logits: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> None:
        """Take in values [B] and labels [B]."""
        self._squares += float(np.square(logits.astype(np.float64) - labels.astype(np.float64)).sum())
        self._rows += len(labels)

    def state(self) -> Floats:
        """All that it has gathered."""
        return np.array([self._squares, self._rows])

    def merge_state(self, state: Floats) -> None:
        """Take in another process's state."""
        self._squares += float(state[0])
        self._rows += int(state[1])

    def compute(self) -> dict[str, float]:
        """`mean_squared_error` and `rows`."""
        return {"mean_squared_error": self._squares / self._rows if self._rows else math.nan, "rows": self._rows}


class RecallMetrics:
    """Recall at each k, log loss (natural, mean over rows) and the number of rows, from the scores of candidates, one of which is right.

    Recall@k is the share of rows whose right candidate is among the k best. Where others score exactly as much, the expected share over
    all orders of them counts: two equal best candidates give half a hit at 1.

    Args:
        top_ks: each k.
    """

    def __init__(self, top_ks: Sequence[int]) -> None:
        self._top_ks = tuple(top_ks)
        self._hits = np.zeros(len(self._top_ks))
        self._loss = 0.0
        self._rows = 0

    def update(self, scores: npt.NDArray[np.float32], places: npt.NDArray[np.int64]) -> None:
        """Take in scores [B, C] and the right candidates' places [B]; C may differ from batch to batch."""
        if not len(places):
            return
        wide = scores.astype(np.float64)
        right = wide[np.arange(len(places)), places]
        better = (wide > right[:, None]).sum(axis=1)
        ties = (wide == right[:, None]).sum(axis=1)
        for index, k in enumerate(self._top_ks):
            hits = np.clip((k - better) / np.maximum(ties, 1), 0.0, 1.0)
            self._hits[index] += np.where(np.isnan(wide).any(axis=1), math.nan, hits).sum()
        largest = wide.max(axis=1)
        self._loss += float((largest + np.log(np.exp(wide - largest[:, None]).sum(axis=1)) - right).sum())
        self._rows += len(places)

    def state(self) -> Floats:
        """All that it has gathered."""
        return np.concatenate([[self._loss, self._rows], self._hits])

    def merge_state(self, state: Floats) -> None:
        """Take in another process's state."""
        self._loss += float(state[0])
        self._rows += int(state[1])
        self._hits = self._hits + state[2:]

    def compute(self) -> dict[str, float]:
        """`recall_at_<k>` of each k, `log_loss` and `rows`."""
        rows = self._rows or math.nan
        recalls = {f"recall_at_{k}": float(hits / rows) for k, hits in zip(self._top_ks, self._hits, strict=True)}
        return {**recalls, "log_loss": self._loss / rows, "rows": self._rows}
