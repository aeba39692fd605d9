"""Evaluation: the metrics of a model over an evaluation set."""

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import cast

import torch
from torch import nn

from emberline.train.data import Batch, DataPosition, DataReader
from emberline.train.job_log import ProgressBar, Speed
from emberline.train.job_signals import SharedStop
from emberline.train.metrics import Metrics
from emberline.train.models import RecModel
from emberline.train.models.tasks import Task, compute_metrics
from emberline.train.sharding.process_group import ALONE, Ranks


def evaluate(
    sharded: nn.Module,
    model: RecModel,
    reader: DataReader,
    *,
    num_steps: int | None = None,
    log_steps: int = 10,
    stop: SharedStop | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float] | None:
    """Go once through the rows, from the first on, in eval mode, without gradients; nothing of the model changes.

    Args:
        sharded: what to call with a batch.
        model: the model inside it; its tasks decide the metrics.
        reader: the rows.
        num_steps: most batches on each rank; None: all.
        log_steps: batches between two looks at the progress.
        stop: ends the evaluation early, on all ranks.
        ranks: which have parts of the rows each.

    Returns:
        the numbers by name, the same on all ranks, or None where it was stopped.

    Raises:
        DataError: rows that cannot be read, or labels that make no sense.
    """
    metrics = [task.create_metrics() for task in model.tasks]
    total = min((count for count in (reader.num_batches, num_steps) if count is not None), default=None)
    bar, speed = ProgressBar("evaluation", total, quiet=not ranks.is_first), Speed()
    was_training, rows = sharded.training, 0
    sharded.eval()
    try:
        reader.seek(DataPosition())  # an evaluation that ended early left it in the middle
        with torch.no_grad(), closing(cast(Generator[Batch, None, None], iter(reader))) as batches:
            for number, batch in enumerate(batches, 1):
                for task in model.tasks:
                    task.check(batch.labels[task.label])
                outputs = sharded(model.embedding_group.on_device(batch, ranks.device))
                for task, found in zip(model.tasks, metrics, strict=True):
                    task.measure(found, outputs, batch.labels[task.label])
                speed.add(reader.position.rows - rows)
                rows = reader.position.rows
                bar.advance()
                if stop is not None:
                    stop.look()
                    if stop:
                        return None
                if number % (log_steps * 10) == 0:
                    bar.tell(rows_per_s=f"{speed.take():,.0f}")
                if number == num_steps:
                    break
    finally:
        sharded.train(was_training)
        bar.close()
    return _of_all_ranks(model.tasks, metrics, ranks)


def _of_all_ranks(tasks: Sequence[Task], metrics: Sequence[Metrics], ranks: Ranks) -> dict[str, float]:
    """The numbers over all ranks' rows: rank 0 computes them, the others hear of them."""
    if ranks.world_size == 1:
        return compute_metrics(tasks, metrics)
    for found in metrics:
        for state in ranks.to_first(found.state()):
            found.merge_state(state)
    numbers = compute_metrics(tasks, metrics)
    values = ranks.of_first(list(numbers.values()))
    return {name: type(own)(value) for (name, own), value in zip(numbers.items(), values, strict=True)}
