"""The model's own metrics on data, of the trained model and of the artifact: the same rows, encoded once, go to both."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from emberline.encoding import EncodedColumns
from emberline.errors import DataError, ExportError
from emberline.export.quality import Evaluation, is_auc, no_evaluation
from emberline.train.checkpoint import Trained
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.data.encoded_rows import EncodedRows
from emberline.train.data.open_source import open_source, suffixes_of
from emberline.train.data.paths import find_files
from emberline.train.data.raw_rows import RowEncoder, read_rows
from emberline.train.metrics import Metrics
from emberline.train.models.tasks import MatchTask, Task, compute_metrics

DEFAULT_ROWS = 100_000
"""Rows that metrics are taken on, at most."""
Answer = Callable[[EncodedColumns], Mapping[str, Tensor]]
"""From encoded rows to the model's outputs by name."""
Answers = Callable[[EncodedColumns], Iterable[Mapping[str, Tensor]]]
"""The same of several models."""


@dataclass(frozen=True)
class EvaluationPlan:
    """Which rows metrics are taken on, and how much an AUC may fall.

    Args:
        data: files, as the config describes them.
        most_rows: how many rows at most.
        missing: why there are no metrics; empty where there are.
        max_auc_drop: None for any.
    """

    data: str = ""
    most_rows: int = DEFAULT_ROWS
    missing: str = ""
    max_auc_drop: float | None = None

    @classmethod
    def of(cls, trained: Trained, given: str | None, most_rows: int = DEFAULT_ROWS, max_auc_drop: float | None = None) -> Self:
        """The plan of an export: rows of `given`, else of the config's evaluation data.

        Raises:
            ExportError: a number makes no sense, or there is a limit for an AUC, but there will be none.
        """
        if most_rows < 0:
            raise ExportError(f"--quality-rows must be 0 or more, not {most_rows}")
        if max_auc_drop is not None and not 0 <= max_auc_drop <= 1:
            raise ExportError(f"--max-auc-drop must be a number from 0 to 1, not {max_auc_drop}")
        data, missing = _find_rows(trained.config, given)
        missing = missing or _no_metrics(trained, data, most_rows)
        metrics = compute_metrics(trained.model.tasks, [task.create_metrics() for task in trained.model.tasks])
        if max_auc_drop is not None and missing:
            raise ExportError(f"--max-auc-drop needs an AUC, and there is none: {missing}")
        if max_auc_drop is not None and not any(map(is_auc, metrics)):
            raise ExportError(f"--max-auc-drop needs an AUC, and the model's task has none: its metrics are {', '.join(metrics)}")
        return cls(data, most_rows, missing, max_auc_drop)

    def evaluate(self, trained: Trained, as_trained: Answer, as_stored: Answer) -> Evaluation:
        """Take the metrics of both.

        Args:
            trained: whose config tells how data are read, and whose model has tasks.
            as_trained: the trained model's answers.
            as_stored: the artifact's.

        Raises:
            DataError: a file or a row cannot be read.
        """
        if self.missing:
            return no_evaluation(self.missing)
        rows, both = self.measure(trained, lambda encoded: (as_trained(encoded), as_stored(encoded)))
        if not rows:
            return no_evaluation(f"{self.data} has no rows")
        before, after = both
        matching = any(isinstance(task, MatchTask) for task in trained.model.tasks)
        note = f"Candidates of a row are the items of its batch, {_batch_rows(trained.config)} rows at most." if matching else ""
        return Evaluation(data=self.data, rows=rows, trained=before, artifact=after, note=note)

    def measure(self, trained: Trained, answer: Answers, most_rows: int | None = None) -> tuple[int, list[dict[str, float]]]:
        """The metrics of several models in one go, on the same rows.

        Args:
            trained: as for `evaluate`.
            answer: gives the outputs of each model, the same models in the same order each time.
            most_rows: no more than that, where it is less.

        Returns:
            How many rows were looked at, and the metrics of each model; none where there were no rows.

        Raises:
            DataError: a file or a row cannot be read.
        """
        tasks, rows, all_metrics = [_without_sampled(task) for task in trained.model.tasks], 0, list[list[Metrics]]()
        for batch in self._batches(trained, most_rows):
            rows += batch.num_rows
            labels = {name: torch.from_numpy(values) for name, values in batch.labels.items()}
            for task in tasks:
                task.check(labels[task.label])
            for place, outputs in enumerate(answer(batch.columns)):
                if place == len(all_metrics):
                    all_metrics.append([task.create_metrics() for task in tasks])
                for task, found in zip(tasks, all_metrics[place], strict=True):
                    task.measure(found, outputs, labels[task.label])
        return rows, [_numbers(tasks, metrics) for metrics in all_metrics]

    def _batches(self, trained: Trained, most_rows: int | None = None) -> Iterator[EncodedRows]:
        """The first rows of the data, encoded, in file order."""
        encoder, left = _encoder(trained), self.most_rows if most_rows is None else min(most_rows, self.most_rows)
        source = open_source(trained.config.data, self.data, encoder.columns)
        for fragment in source.fragments:
            for rows in read_rows(source, fragment, _batch_rows(trained.config)):
                for start in range(0, min(rows.num_rows, left), _batch_rows(trained.config)):
                    yield encoder.encode_all(rows.cut(start, min(start + _batch_rows(trained.config), rows.num_rows, left)))
                left -= min(rows.num_rows, left)
                if not left:
                    return


def _find_rows(config: PipelineConfig, given: str | None) -> tuple[str, str]:
    """The files, or why there are none."""
    paths = given or config.eval_input_path
    if not paths:
        return "", "the config names no evaluation data; name some with --parity-rows"
    try:
        find_files(paths, suffixes_of(config.data))
    except DataError as error:
        return "", f"there is no evaluation data: {error}"
    return paths, ""


def _no_metrics(trained: Trained, data: str, most_rows: int) -> str:
    """Why a model's metrics cannot be taken on data; empty where they can."""
    if most_rows == 0:
        return "--quality-rows is 0"
    if not trained.model.tasks:
        return "the model has no task, as a tower by itself has none"
    try:
        open_source(trained.config.data, data, _encoder(trained).columns)
    except DataError as error:
        return str(error)
    return ""


def _encoder(trained: Trained) -> RowEncoder:
    return RowEncoder([feature.spec for feature in trained.features], sorted({task.label for task in trained.model.tasks}))


def _batch_rows(config: PipelineConfig) -> int:
    return config.data.eval_batch_size or config.data.batch_size


def _without_sampled(task: Task) -> Task:
    """The task as it is measured without sampled negatives, which no artifact is asked for."""
    return replace(task, in_batch=True, shared=False) if isinstance(task, MatchTask) else task


def _numbers(tasks: Sequence[Task], metrics: Sequence[Metrics]) -> dict[str, float]:
    """All but the number of rows, which is told once."""
    found = compute_metrics(tasks, metrics)
    return {name: number for name, number in found.items() if name != "rows" and not name.startswith("rows_")}
