"""What a model is trained for: which outputs come of the head's numbers, how wrong they are, and how that is measured.

Letters used in shapes: B rows, C classes or candidates, D width of a tower's vector, K negatives of a row, S negatives that all rows share.
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from emberline.errors import DataError
from emberline.schema import OutputSpec
from emberline.train.config.model_config import BinaryCrossEntropyConfig, L2LossConfig, LossConfig
from emberline.train.metrics import BinaryMetrics, ClassMetrics, Metrics, RecallMetrics, ValueMetrics
from emberline.train.models.loss import check_labels, compute_loss, weighted_mean

LOGITS = "logits"
PROBS = "probs"
VALUE = "y"
USER_EMBEDDING = "user_tower_emb"
ITEM_EMBEDDING = "item_tower_emb"


@dataclass(frozen=True, kw_only=True)
class LogitTask:
    """A label that is told from one logit a row, or from one a class.

    The head gives `logits`; outputs are `logits` and `probs` for labels of yes or no ([B]) or of C classes ([B, C]), and `y` ([B]) for
    squared error. Names of one task of several end with `_` and the task's name.

    Args:
        losses: added up; they decide the outputs and the metrics.
        label: the column.
        num_class: 1, or C.
        name: empty where a model has one task.
        weight: factor of the loss.
    """

    losses: tuple[LossConfig, ...]
    label: str = ""
    num_class: int = 1
    name: str = ""
    weight: float = 1.0

    @property
    def head_widths(self) -> dict[str, int]:
        """What the head must give: names, and widths as in `OutputSpec`."""
        return {self._called(LOGITS): self._width}

    @property
    def output_specs(self) -> tuple[OutputSpec, ...]:
        """Names and widths of what `outputs` returns, in its order."""
        names = (VALUE,) if self._is_value else (LOGITS, PROBS)
        return tuple(OutputSpec(name=self._called(name), width=self._width) for name in names)

    def outputs(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name, from what the head gave."""
        logits = found[self._called(LOGITS)]
        if self._is_value:
            return {self._called(VALUE): logits}
        probs = torch.sigmoid(logits) if self.num_class == 1 else torch.softmax(logits, dim=1)
        return {self._called(LOGITS): logits, self._called(PROBS): probs}

    def check(self, labels: Tensor, weights: Tensor | None = None) -> None:
        """Refuse labels [B] and sample weights [B] that make no sense.

        Raises:
            DataError: names the label and a value.
        """
        check_labels(self.losses, labels, self.num_class, self.label, weights)

    def total(self, labels: Tensor, weights: Tensor | None) -> float:
        """What the loss of these rows is divided by: their number, or the sum of their weights."""
        return float(len(labels)) if weights is None else float(weights.sum())

    def loss(self, outputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor | None, total: float | None = None) -> Tensor:
        """The losses' sum, a mean over rows; without the factor `weight`. `total` is that of a whole batch, where the rows are a part of it."""
        return compute_loss(self.losses, self._raw(outputs), labels, weights, total)

    def create_metrics(self) -> Metrics:
        """What fits the outputs: squared error, accuracy or AUC, the last two with log loss."""
        if self._is_value:
            return ValueMetrics()
        return BinaryMetrics() if self.num_class == 1 else ClassMetrics()

    def measure(self, metrics: Metrics, outputs: Mapping[str, Tensor], labels: Tensor) -> None:
        """Put one batch into `metrics`."""
        metrics.update(self._raw(outputs).float().cpu().numpy(), labels.cpu().numpy())

    @property
    def _is_value(self) -> bool:
        return all(isinstance(loss, L2LossConfig) for loss in self.losses)

    @property
    def _width(self) -> int:
        return 0 if self.num_class == 1 else self.num_class

    def _called(self, name: str) -> str:
        return f"{name}_{self.name}" if self.name else name

    def _raw(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs[self._called(VALUE if self._is_value else LOGITS)]


@dataclass(frozen=True, kw_only=True)
class MatchTask:
    """Rows of label 1 must find their own item among candidates: a softmax over similarities.

    Candidates of row b, with in-batch negatives: the items of all rows, its own at place b; without: its own. Behind them stand the K
    negatives that came with the row, or the S negatives that all rows share, where the batch has some:

        item vectors [B + B * K, D]     items of rows 0 to B - 1 | negatives of row 0 | negatives of row 1 | ...
        item vectors [B + S, D]         items of rows 0 to B - 1 | negatives of all rows

    Rows of other labels have no loss and no recall; their items are candidates of other rows all the same.

    Args:
        label: the column: 1 or 0.
        temperature: divides the similarity.
        in_batch: whether other rows' items are candidates.
        shared: whether negatives are those of all rows.
        label_smoothing: the share of the target that is spread over all candidates, in [0, 1).
        top_ks: each k of recall@k.
        weight: factor of the loss.
    """

    label: str = ""
    temperature: float = 1.0
    in_batch: bool = True
    shared: bool = False
    label_smoothing: float = 0.0
    top_ks: tuple[int, ...] = (1,)
    name: str = ""
    weight: float = 1.0

    @property
    def head_widths(self) -> dict[str, int]:
        """What the head must give beside the towers' vectors."""
        return {LOGITS: 0}

    @property
    def output_specs(self) -> tuple[OutputSpec, ...]:
        """`logits` [B]: each row's similarity to its own item."""
        return (OutputSpec(name=LOGITS),)

    def outputs(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name, from what the head gave."""
        return {LOGITS: found[LOGITS]}

    def check(self, labels: Tensor, weights: Tensor | None = None) -> None:
        """Refuse labels [B] and sample weights [B] that make no sense.

        Raises:
            DataError: names the label and a value.
        """
        right = (labels == 0) | (labels == 1)
        if not bool(right.all()):
            raise DataError(f"label {self.label!r} must be 0 or 1, found {labels[~right][0].item()}")
        check_labels((BinaryCrossEntropyConfig(),), labels, 1, self.label, weights)

    def scores(self, outputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Similarities to the candidates, [B, C], and the place of each row's own item, int64 [B].

        Raises:
            DataError: there is nothing to compare with, or the item side has another number of rows than B and B * K, or B and S.
        """
        users, items = outputs[USER_EMBEDDING], outputs[ITEM_EMBEDDING]
        rows = users.shape[0]
        if items.shape[0] < rows or (not self.shared and (items.shape[0] - rows) % max(rows, 1)):
            raise DataError(f"{items.shape[0]} items do not belong to {rows} rows: each row has one item, and all have as many negatives")
        own, sampled = items[:rows], items[rows:]
        if not self.in_batch and rows and not len(sampled):
            raise DataError(
                "the batch has no sampled negatives, and the model has no others: set in_batch_negative: true, negative_columns or negative_sampler"
            )
        parts = [users @ own.T if self.in_batch else (users * own).sum(dim=1, keepdim=True)]
        if len(sampled) and self.shared:
            parts.append(users @ sampled.T)
        elif len(sampled):
            parts.append(torch.bmm(sampled.view(rows, -1, sampled.shape[1]), users.unsqueeze(2)).squeeze(2))
        places = torch.arange(rows, device=users.device) if self.in_batch else torch.zeros(rows, dtype=torch.int64, device=users.device)
        return torch.cat(parts, dim=1) / self.temperature, places

    def total(self, labels: Tensor, weights: Tensor | None) -> float:
        """What the loss of these rows is divided by: the number of those of label 1, or the sum of their weights."""
        return float(_counted(labels, weights).sum())

    def loss(self, outputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor | None, total: float | None = None) -> Tensor:
        """Cross entropy, a mean over the rows of label 1, by sample weights where there are some; 0 where there are no such rows.

        `total` is that of a whole batch, where the rows are a part of it; candidates are those of the part.
        """
        scores, places = self.scores(outputs)
        per_row = functional.cross_entropy(scores, places, reduction="none", label_smoothing=self.label_smoothing)
        return weighted_mean(per_row, _counted(labels, weights).to(per_row.dtype), total)

    def create_metrics(self) -> Metrics:
        """Recall at each k, and log loss."""
        return RecallMetrics(self.top_ks)

    def measure(self, metrics: Metrics, outputs: Mapping[str, Tensor], labels: Tensor) -> None:
        """Put one batch's rows of label 1 into `metrics`."""
        scores, places = self.scores(outputs)
        counted = labels == 1
        metrics.update(scores[counted].float().cpu().numpy(), places[counted].cpu().numpy())


def _counted(labels: Tensor, weights: Tensor | None) -> Tensor:
    """How much each row counts, float32 [B]."""
    counted = (labels == 1).to(torch.float32)
    return counted if weights is None else counted * weights


Task = LogitTask | MatchTask


def total_loss(
    tasks: Sequence[Task],
    outputs: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
    weights: Tensor | None,
    totals: Sequence[float] | None = None,
) -> Tensor:
    """The tasks' losses, each times its weight, added up.

    Args:
        tasks: at least one.
        outputs: of the model.
        labels: column -> [B], checked by each task.
        weights: sample weights [B], or None.
        totals: of each task what a whole batch's loss is divided by, where the rows are a part of it: the parts' losses then add up to the
            whole's. None: they are all.

    Raises:
        DataError: as `MatchTask.scores`.
    """
    parts = [None] * len(tasks) if totals is None else totals
    losses = [task.weight * task.loss(outputs, labels[task.label], weights, total) for task, total in zip(tasks, parts, strict=True)]
    return functools.reduce(operator.add, losses)


def compute_metrics(tasks: Sequence[Task], metrics: Sequence[Metrics]) -> dict[str, float]:
    """The numbers of all tasks; names of one task of several end with `_` and the task's name."""
    return {
        f"{name}_{task.name}" if task.name else name: number
        for task, found in zip(tasks, metrics, strict=True)
        for name, number in found.compute().items()
    }
