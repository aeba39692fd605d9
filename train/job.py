"""The training job: from a config and an empty folder, or a checkpoint, to a trained model.

    build ─► restore? ─► epoch: batch ─► loss ─► backward (tables learn here) ─► dense step ─► log? save? ─► evaluate ─► result

One process, or several that share each step's rows and the tables. A run that was killed at any moment and goes on from its newest checkpoint, on as
many ranks, ends with the same bits as one that was not.
"""

import json
import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import cast

import numpy as np
import torch

from emberline.errors import DataError, TrainingError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.keeping import CheckpointKeeper
from emberline.train.checkpoint.run_state import Progress, RunTensors, content_of, restore_run
from emberline.train.checkpoint.saver import CheckpointSaver
from emberline.train.checkpoint.start import Beginning, Start, prepare
from emberline.train.config import PipelineConfig
from emberline.train.data import Batch, DataPosition
from emberline.train.job_build import best_by, build_parts, check_complete, open_data
from emberline.train.job_eval import evaluate
from emberline.train.job_folder import METRICS_NAME, RESULT_NAME, TENSORBOARD_NAME, claim_folder, newest_checkpoint, plan_of_checkpoint
from emberline.train.job_log import MetricsLog, ProgressBar, Speed, finite
from emberline.train.job_signals import SharedStop, StopRequest
from emberline.train.models.tasks import total_loss
from emberline.train.sharding import Ranks, process_group
from emberline.train.sharding.shared_fate import shared_fate
from emberline.train.zch import zch_modules


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a run ended.

    Args:
        step: batches trained.
        epoch: passes over the data that are complete.
        loss: of the last batch; NaN where nothing was trained.
        metrics: of the evaluation set; empty where there is none.
        checkpoint: the newest one; None where nothing was trained.
        stopped: whether a signal ended it early; the run is not done then.
        signal: which one, on whichever rank.
        rank: of the process that says so; all say the same.
    """

    step: int
    epoch: int
    loss: float
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: Path | None = None
    stopped: bool = False
    signal: Signals | None = None
    rank: int = 0


def run_training(
    config: PipelineConfig,
    output: Path,
    *,
    resume: bool = False,
    stop: StopRequest | None = None,
    plan: Path | None = None,
    device: str = "cpu",
    begin: Beginning | None = None,
) -> TrainResult:
    """Train what a config describes, with checkpoints in `output`; torch's generator is seeded and used.

    Where torchrun has started several processes, all of them call this, and train together.

    Args:
        config: a whole pipeline: data, features, groups, model, training.
        output: a new or empty folder, or with `resume` one that a run has written to; the same for all processes.
        resume: go on from the newest intact checkpoint; without one, begin. So does a run that torchrun has restarted.
        stop: asks for an end after the step under way, with a checkpoint.
        plan: the file of the plan to shard by; None: the planner makes one, or a checkpoint has one for as many ranks.
        device: `cpu` or `cuda`.
        begin: what a run that begins takes over; one that goes on has it already.

    Raises:
        ConfigError: the config does not describe a run that this release can do, or the folder is in use or not empty.
        DataError: rows that cannot be read or trained on; names file and column.
        CheckpointError: with `resume`: the config has changed, or every checkpoint is damaged.
        TrainingError: the loss became NaN or infinite, or another rank failed.
    """
    check_complete(config)
    start = prepare(begin or Beginning(), config) if not store.list_steps(output) else Start()
    with process_group(device) as ranks, shared_fate(ranks), claim_folder(output, resume=resume, ranks=ranks) as goes_on:
        checkpoint = newest_checkpoint(output, config, ranks) if goes_on else None
        if plan is None and checkpoint is not None:
            plan = plan_of_checkpoint(checkpoint, config, ranks)
        run = _Run(config, output, SharedStop(StopRequest() if stop is None else stop, ranks), plan, ranks)
        if checkpoint is not None:
            run.restore(checkpoint)
        else:
            run.begin(start)
        return run.train()


class _Run:
    """One run: its parts, its folder, and how far it is."""

    def __init__(self, config: PipelineConfig, folder: Path, stop: SharedStop, plan: Path | None, ranks: Ranks) -> None:
        self.config, self.folder, self.stop, self.ranks = config, folder, stop, ranks
        self.settings = config.need_train()
        self.parts = build_parts(config, plan, ranks)
        self.reader, self.eval_reader = open_data(config, self.parts.features, ranks)
        self.tensors = RunTensors(self.parts.sharded, self.parts.model, self.parts.step.optimizer, self.parts.step.tensors(), ranks.group)
        self.best_by = best_by(config, self.parts.model)
        self.keeper = CheckpointKeeper(folder, self.settings.keep_checkpoint_max, self.best_by)
        self.saver = CheckpointSaver(folder, asynchronous=self.settings.save_checkpoints_async, after=lambda _: self.keeper.tidy())
        self.step, self.epoch, self.rows = 0, 0, 0
        self.saved_step = 0
        # This rank's parts of losses, which add up over the ranks.
        self.last_loss = torch.full((), math.nan)
        self.window_loss, self.window_steps = torch.zeros((), dtype=torch.float64), 0

    def begin(self, start: Start) -> None:
        """Take over what the run is to begin with."""
        lines, notes = start.apply(self.tensors)
        for line in [*(lines if self.ranks.is_first else ()), *notes]:
            print(line)

    def restore(self, checkpoint: Path) -> None:
        """Take up a checkpoint."""
        progress, notes = restore_run(checkpoint, self.tensors)
        for note in notes:
            print(note)
        self.step, self.epoch, self.rows, self.saved_step = progress.step, progress.epoch, progress.rows, progress.step
        self.parts.step.steps = progress.updates
        loss = math.nan if progress.loss is None else progress.loss
        self.last_loss.fill_(loss if self.ranks.is_first else 0.0)
        self.window_loss.fill_(progress.window_loss if self.ranks.is_first else 0.0)
        self.window_steps = progress.window_steps
        self.reader.seek(DataPosition(self.epoch, self.rows))
        if self.ranks.is_first:
            print(f"going on from {checkpoint}: {self.step} steps done, in epoch {self.epoch} after {self.rows} rows")

    def train(self) -> TrainResult:
        """Train to the end, or until a stop is asked for."""
        events = self.folder / TENSORBOARD_NAME if self.settings.use_tensorboard else None
        self.log = MetricsLog(self.folder / METRICS_NAME if self.ranks.is_first else None, events, self.step)
        self.bar, self.speed = ProgressBar("training", self._total_steps(), self.step, quiet=not self.ranks.is_first), Speed()
        try:
            with self.saver:
                self.parts.sharded.train()
                (is_evaluated,) = self.ranks.of_first([self.log.has("eval", self.step)])
                if self.epoch and self.rows == 0 and not self._is_done() and not is_evaluated:
                    self._evaluate()  # it was due when the run ended
                while not self._is_done() and not self._may_stop():
                    self._train_epoch()
                self.parts.step.finish()
                if self.step > self.saved_step:
                    self._save()
                self.bar.close()
                return self._finish()
        finally:
            self.bar.close()
            self.log.close()

    def _train_epoch(self) -> None:
        """The rest of one epoch, or less where the run ends within it."""
        # A generator, so that leaving early ends the reader's thread at once.
        with closing(cast(Generator[Batch, None, None], iter(self.reader))) as batches:
            for batch in batches:
                totals = self._look(batch)
                if totals is not None and self._may_stop():
                    return
                self._train_step(self.parts.model.embedding_group.on_device(batch, self.ranks.device), totals)
                self._after_step(self.reader.position.rows - self.rows)
                if self._may_stop() or self._is_done():
                    return
        if self.rows == 0:
            raise DataError(f"{self.config.train_input_path}: no batch in the training data; with drop_remainder, it needs batch_size rows at least")
        self.parts.step.finish()  # no step has batches of two epochs
        self.epoch, self.rows = self.epoch + 1, 0
        every = self.settings.save_checkpoints_epochs
        if every and self.epoch % every == 0 and self.step > self.saved_step:
            self._save()
        if not self._is_done():
            self._evaluate()

    def _look(self, batch: Batch) -> list[float] | None:
        """Check a batch, and with several ranks hear of the others': whether one was asked to stop, and for each task what its loss is divided by."""
        tasks = self.parts.model.tasks
        for task in tasks:
            task.check(batch.labels[task.label], batch.sample_weights)
        if self.ranks.world_size == 1:
            return None
        return self.stop.look([task.total(batch.labels[task.label], batch.sample_weights) for task in tasks])

    def _train_step(self, batch: Batch, totals: list[float] | None) -> None:
        tasks, parts = self.parts.model.tasks, self.ranks.world_size

        def loss_of() -> torch.Tensor:
            outputs = {name: output.float() for name, output in self.parts.sharded(batch).items()}
            # Gradients are averaged over the ranks, but the ranks' losses are to be added up.
            return total_loss(tasks, outputs, batch.labels, batch.sample_weights, totals) * parts

        self.last_loss = self.parts.step.run(loss_of, self.epoch) / parts

    def _after_step(self, rows: int) -> None:
        self.step, self.rows = self.step + 1, self.rows + rows
        self.window_loss += self.last_loss
        self.window_steps += 1
        self.speed.add(rows)
        self.bar.advance()
        if self.step % self.settings.log_step_count_steps == 0:
            self._tell()
        every = self.settings.save_checkpoints_steps
        if every and self.step // every > self.saved_step // every and not self.parts.step.pending:
            self._save()

    def _may_stop(self) -> bool:
        """Whether a stop is asked for, and no batch waits for others of its step: what those have learnt is in no checkpoint."""
        return not self.parts.step.pending and bool(self.stop)

    def _tell(self) -> None:
        """The loss since the last time, on the screen and in the logs."""
        loss, rows_per_s = self._losses()[1] / self.window_steps, self.speed.take()
        self.window_loss, self.window_steps = torch.zeros((), dtype=torch.float64), 0
        zch = self._zch_numbers()
        news = {"loss": f"{loss:.5f}", "rows/s": f"{rows_per_s:,.0f}"}
        if zch:
            totals = [sum(number for name, number in zch.items() if name.endswith(part)) for part in ("/rows_in_use", "/admitted", "/evicted")]
            news["zch rows in use, admitted, evicted"] = " ".join(f"{total:,}" for total in totals)
        self.bar.tell(**news)
        self.log.write("train", self.step, {"loss": loss, "rows_per_s": rows_per_s, **self._learning_rates(), **zch}, self._hidden())

    def _learning_rates(self) -> dict[str, float]:
        """The rates of the last step."""
        return {f"learning_rate/{label}": rate for label, rate in self.parts.step.rates.items()}

    def _hidden(self) -> tuple[str, ...]:
        """Numbers that TensorBoard is not to have."""
        return tuple(name for name in ("loss", "learning_rate") if name not in self.settings.tensorboard_summaries)

    def _zch_numbers(self) -> dict[str, int]:
        numbers = {}
        for table, module in zch_modules(self.parts.model).items():
            counters = module.counters
            numbers[f"zch/{table}/rows_in_use"] = module.rows_in_use
            numbers[f"zch/{table}/admitted"] = counters.admitted
            numbers[f"zch/{table}/evicted"] = counters.evicted
            numbers[f"zch/{table}/dropped"] = counters.dropped
        return dict(zip(numbers, map(int, self.ranks.sum(list(numbers.values()))), strict=True)) if numbers else {}

    def _losses(self) -> tuple[float, float]:
        """The loss of the last batch, and the sum of those since the last line of the log, over all ranks.

        Raises:
            TrainingError: one of them is not finite.
        """
        found = self.ranks.gather([float(self.last_loss), float(self.window_loss)])
        last, window = found.sum(axis=0).tolist()
        if math.isfinite(last) and math.isfinite(window):
            return last, window
        bad = [str(rank) for rank, finite in enumerate(np.isfinite(found).all(axis=1)) if not finite]
        where = f", on rank{'s' * (len(bad) > 1)} {', '.join(bad)}" if self.ranks.world_size > 1 else ""
        hint = "try a smaller lr, or look for huge values in the data"
        newest = f"; the newest checkpoint is {store.step_path(self.folder, self.saved_step)}" if self.saved_step else ""
        raise TrainingError(f"the loss is not finite at step {self.step} (last: {last}{where}): {hint}{newest}")

    def _save(self) -> None:
        last, window = self._losses()
        progress = Progress(
            step=self.step,
            epoch=self.epoch,
            rows=self.rows,
            updates=self.parts.step.steps,
            loss=last,
            window_loss=window,
            window_steps=self.window_steps,
            config_folder=str(Path(self.config.source).resolve().parent) if self.config.source else str(Path.cwd()),
        )
        self.saver.save(content_of(self.tensors, self.config, progress))
        self.saved_step = self.step

    def _evaluate(self) -> dict[str, float]:
        """The evaluation set's numbers; none where there is no such set, or a stop was asked for."""
        if self.eval_reader is None or self.stop:
            return {}
        if self.best_by is not None and self.step > self.saved_step:
            self._save()  # each evaluation is of a checkpoint, as it may be the best
        settings, parts = self.config.eval, self.parts
        with parts.step.averaged(self.config.uses_dense_ema):
            numbers = evaluate(
                parts.sharded,
                parts.model,
                self.eval_reader,
                num_steps=settings.num_steps,
                log_steps=settings.log_step_count_steps,
                stop=self.stop,
                ranks=self.ranks,
            )
        if numbers is None:
            return {}
        if self.ranks.is_first:
            self.keeper.note(self.step, numbers)
        if not self.log.has("eval", self.step):
            self.log.write("eval", self.step, numbers)
        self.bar.note(f"evaluation at step {self.step}: {', '.join(f'{name} {number:.6g}' for name, number in numbers.items())}")
        return numbers

    def _finish(self) -> TrainResult:
        """Evaluate and write down how it ended; a run that was stopped only says where it is."""
        metrics = self._evaluate()
        self.saver.wait()
        checkpoint = store.step_path(self.folder, self.saved_step) if self.saved_step else None
        (loss,) = self.ranks.sum([float(self.last_loss)])
        result = TrainResult(
            step=self.step,
            epoch=self.epoch,
            loss=loss,
            metrics=metrics,
            checkpoint=checkpoint,
            stopped=bool(self.stop),
            signal=self.stop.signal,
            rank=self.ranks.rank,
        )
        if not self.stop and self.ranks.is_first:
            numbers = {"step": self.step, "epoch": self.epoch, **finite({"loss": result.loss, **metrics})}
            store.write_text(self.folder / RESULT_NAME, json.dumps(numbers, indent=1) + "\n")
        return result

    def _length(self) -> tuple[int | None, int | None]:
        """The steps and epochs that end the run, whichever come first; one epoch where the config says neither."""
        steps, epochs = self.settings.num_steps, self.settings.num_epochs
        return steps, 1 if steps is None and epochs is None else epochs

    def _is_done(self) -> bool:
        steps, epochs = self._length()
        return (steps is not None and self.step >= steps) or (epochs is not None and self.epoch >= epochs)

    def _total_steps(self) -> int | None:
        """The step at which the run will end, where that can be told."""
        steps, epochs = self._length()
        an_epoch = self.reader.num_batches
        by_epochs = epochs * an_epoch if epochs is not None and an_epoch is not None else None
        return min((count for count in (steps, by_epochs) if count is not None), default=None)
