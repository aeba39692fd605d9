"""The training job: from a config and an empty folder, or a checkpoint, to a trained model.

    build ─► restore? ─► epoch: batch ─► loss ─► backward (tables learn here) ─► dense step ─► log? save? ─► evaluate ─► result

One process. A run that was killed at any moment and goes on from its newest checkpoint ends with the same bits as one that was not.
"""

import json
import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch

from emberline.errors import DataError, TrainingError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.run_state import Progress, RunTensors, restore_run, save_run
from emberline.train.config import PipelineConfig
from emberline.train.data import Batch, DataPosition
from emberline.train.job_build import build_parts, check_complete, open_evaluation_data, open_training_data
from emberline.train.job_eval import evaluate
from emberline.train.job_folder import METRICS_NAME, RESULT_NAME, TENSORBOARD_NAME, check_same_config, claim_folder
from emberline.train.job_log import MetricsLog, ProgressBar, Speed, finite
from emberline.train.job_signals import StopRequest
from emberline.train.models.tasks import total_loss
from emberline.train.sharding import process_group
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
    """

    step: int
    epoch: int
    loss: float
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: Path | None = None
    stopped: bool = False


def run_training(
    config: PipelineConfig, output: Path, *, resume: bool = False, stop: StopRequest | None = None, plan: Path | None = None
) -> TrainResult:
    """Train what a config describes, with checkpoints in `output`; torch's generator is seeded and used.

    Args:
        config: a whole pipeline: data, features, groups, model, training.
        output: a new or empty folder, or with `resume` one that a run has written to.
        resume: go on from the newest intact checkpoint; without one, begin.
        stop: asks for an end after the step under way, with a checkpoint.
        plan: the file of the plan to shard by; None: the planner makes one.

    Raises:
        ConfigError: the config does not describe a run that this release can do, or the folder is in use or not empty.
        DataError: rows that cannot be read or trained on; names file and column.
        CheckpointError: with `resume`: the config has changed, or every checkpoint is damaged.
        TrainingError: the loss became NaN or infinite.
    """
    check_complete(config)
    with claim_folder(output, resume=resume), process_group():
        run = _Run(config, output, StopRequest() if stop is None else stop, plan)
        if resume:
            run.restore()
        return run.train()


class _Run:
    """One run: its parts, its folder, and how far it is."""

    def __init__(self, config: PipelineConfig, folder: Path, stop: StopRequest, plan: Path | None) -> None:
        self.config, self.folder, self.stop = config, folder, stop
        self.settings = config.need_train()
        self.parts = build_parts(config, plan)
        self.reader = open_training_data(config, self.parts.features)
        self.eval_reader = open_evaluation_data(config, self.parts.features)
        self.tensors = RunTensors(self.parts.sharded, self.parts.model, self.parts.step.optimizer, self.parts.step.tensors())
        self.step, self.epoch, self.rows = 0, 0, 0
        self.saved_step = 0
        self.last_loss = torch.full((), math.nan)
        self.window_loss, self.window_steps = torch.zeros((), dtype=torch.float64), 0

    def restore(self) -> None:
        """Take up the newest intact checkpoint, if there is one."""
        found, problems = store.find_intact(self.folder)
        for problem in problems:
            print(f"left out: {problem}")
        if found is None:
            print(f"nothing to resume in {self.folder}: beginning at step 0")
            return
        check_same_config(self.config, found.path)
        progress, notes = restore_run(found.path, self.tensors)
        for note in notes:
            print(note)
        self.step, self.epoch, self.rows, self.saved_step = progress.step, progress.epoch, progress.rows, progress.step
        self.parts.step.steps = progress.updates
        self.last_loss.fill_(math.nan if progress.loss is None else progress.loss)
        self.window_loss.fill_(progress.window_loss)
        self.window_steps = progress.window_steps
        self.reader = open_training_data(self.config, self.parts.features, DataPosition(self.epoch, self.rows))
        print(f"going on from {found.path}: {self.step} steps done, in epoch {self.epoch} after {self.rows} rows")

    def train(self) -> TrainResult:
        """Train to the end, or until a stop is asked for."""
        self.log = MetricsLog(self.folder / METRICS_NAME, self.folder / TENSORBOARD_NAME if self.settings.use_tensorboard else None, self.step)
        self.bar, self.speed = ProgressBar("training", self._total_steps(), self.step), Speed()
        try:
            self.parts.sharded.train()
            if self.epoch and self.rows == 0 and not self._is_done() and not self.log.has("eval", self.step):
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
                self._train_step(batch)
                self._after_step(batch.num_rows)
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

    def _train_step(self, batch: Batch) -> None:
        tasks = self.parts.model.tasks
        for task in tasks:
            task.check(batch.labels[task.label], batch.sample_weights)

        def loss_of() -> torch.Tensor:
            outputs = {name: output.float() for name, output in self.parts.sharded(batch).items()}
            return total_loss(tasks, outputs, batch.labels, batch.sample_weights)

        self.last_loss = self.parts.step.run(loss_of, self.epoch)

    def _after_step(self, rows: int) -> None:
        self.step, self.rows = self.step + 1, self.reader.position.rows
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
        self._check_loss()
        loss, rows_per_s = float(self.window_loss) / self.window_steps, self.speed.take()
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
        return numbers

    def _check_loss(self) -> None:
        loss = float(self.last_loss)
        if math.isfinite(loss) and math.isfinite(float(self.window_loss)):
            return
        hint = "try a smaller lr, or look for huge values in the data"
        newest = f"; the newest checkpoint is {store.step_path(self.folder, self.saved_step)}" if self.saved_step else ""
        raise TrainingError(f"the loss is not finite at step {self.step} (last: {loss}): {hint}{newest}")

    def _save(self) -> None:
        self._check_loss()
        progress = Progress(
            step=self.step,
            epoch=self.epoch,
            rows=self.rows,
            updates=self.parts.step.steps,
            loss=float(self.last_loss),
            window_loss=float(self.window_loss),
            window_steps=self.window_steps,
            config_folder=str(Path(self.config.source).resolve().parent) if self.config.source else str(Path.cwd()),
        )
        save_run(self.folder, self.tensors, self.config, progress)
        self.saved_step = self.step
        store.prune_checkpoints(self.folder, self.settings.keep_checkpoint_max)

    def _evaluate(self) -> dict[str, float]:
        """The evaluation set's numbers; none where there is no such set, or a stop was asked for."""
        if self.eval_reader is None or self.stop:
            return {}
        settings, parts = self.config.eval, self.parts
        with parts.step.averaged(self.config.uses_dense_ema):
            numbers = evaluate(
                parts.sharded,
                parts.model,
                self.eval_reader,
                num_steps=settings.num_steps,
                log_steps=settings.log_step_count_steps,
                stop=self.stop,
            )
        if numbers is None:
            return {}
        if not self.log.has("eval", self.step):
            self.log.write("eval", self.step, numbers)
        self.bar.note(f"evaluation at step {self.step}: {', '.join(f'{name} {number:.6g}' for name, number in numbers.items())}")
        return numbers

    def _finish(self) -> TrainResult:
        """Evaluate and write down how it ended; a run that was stopped only says where it is."""
        metrics = self._evaluate()
        checkpoint = store.step_path(self.folder, self.saved_step) if self.saved_step else None
        result = TrainResult(
            step=self.step, epoch=self.epoch, loss=float(self.last_loss), metrics=metrics, checkpoint=checkpoint, stopped=bool(self.stop)
        )
        if not self.stop:
            numbers = {"step": self.step, "epoch": self.epoch, **finite({"loss": result.loss, **metrics})}
            store.write_text(self.folder / RESULT_NAME, json.dumps(numbers, indent=1) + "\n")
        return result

    def _is_done(self) -> bool:
        steps, epochs = self.settings.num_steps, self.settings.num_epochs
        if steps is None and epochs is None:
            epochs = 1
        return (steps is not None and self.step >= steps) or (epochs is not None and self.epoch >= epochs)

    def _total_steps(self) -> int | None:
        """The step at which the run will end, where that can be told."""
        steps, epochs = self.settings.num_steps, self.settings.num_epochs
        if steps is None and epochs is None:
            epochs = 1
        an_epoch = self.reader.num_batches
        by_epochs = epochs * an_epoch if epochs is not None and an_epoch is not None else None
        return min((count for count in (steps, by_epochs) if count is not None), default=None)
