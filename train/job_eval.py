"""Evaluation: the metrics of a model over an evaluation set."""

from collections.abc import Generator
from contextlib import closing
from typing import cast

import torch
from torch import nn

from emberline.train.data import Batch, DataPosition, DataReader
from emberline.train.job_log import ProgressBar, Speed
from emberline.train.job_signals import StopRequest
from emberline.train.models import RecModel
from emberline.train.models.tasks import compute_metrics


def evaluate(
    sharded: nn.Module,
    model: RecModel,
    reader: DataReader,
    *,
    num_steps: int | None = None,
    log_steps: int = 10,
    stop: StopRequest | None = None,
) -> dict[str, float] | None:
    """Go once through the rows, from the first on, in eval mode, without gradients; nothing of the model changes.

    Args:
        sharded: what to call with a batch.
        model: the model inside it; its tasks decide the metrics.
        reader: the rows.
        num_steps: most batches; None: all.
        log_steps: batches between two looks at the progress.
        stop: ends the evaluation early.

    Returns:
        the numbers by name, or None where it was stopped.

    Raises:
        DataError: rows that cannot be read, or labels that make no sense.
    """
    metrics = [task.create_metrics() for task in model.tasks]
    total = min((count for count in (reader.num_batches, num_steps) if count is not None), default=None)
    bar, speed = ProgressBar("evaluation", total), Speed()
    was_training = sharded.training
    sharded.eval()
    try:
        reader.seek(DataPosition())  # an evaluation that ended early left it in the middle
        with torch.no_grad(), closing(cast(Generator[Batch, None, None], iter(reader))) as batches:
            for number, batch in enumerate(batches, 1):
                for task in model.tasks:
                    task.check(batch.labels[task.label])
                outputs = sharded(batch)
                for task, found in zip(model.tasks, metrics, strict=True):
                    task.measure(found, outputs, batch.labels[task.label])
                speed.add(batch.num_rows)
                bar.advance()
                if stop:
                    return None
                if number % (log_steps * 10) == 0:
                    bar.tell(rows_per_s=f"{speed.take():,.0f}")
                if number == num_steps:
                    break
    finally:
        sharded.train(was_training)
        bar.close()
    return compute_metrics(model.tasks, metrics)
