"""One run of the training job: its parts, its folder, and how far it is."""

import itertools
import json
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import cast

from emberline.errors import DataError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.keeping import CheckpointKeeper
from emberline.train.checkpoint.live_dynamic import live_tables
from emberline.train.checkpoint.run_growth import RunGrowth
from emberline.train.checkpoint.run_state import Progress, RunTensors, content_of, read_progress, require_one_step, restore_run
from emberline.train.checkpoint.saver import CheckpointSaver
from emberline.train.checkpoint.start import Start
from emberline.train.config import PipelineConfig
from emberline.train.data import Batch, DataPosition
from emberline.train.dynamic.options import DynamicRuntime, KernelKind
from emberline.train.job_build import best_by, build_parts, open_data
from emberline.train.job_data import ROWS, DataChanges, check_same_data, files_of_run
from emberline.train.job_eval import evaluate
from emberline.train.job_folder import RESULT_NAME
from emberline.train.job_log import finite
from emberline.train.job_loop import Trained, Work, create_loop
from emberline.train.job_numbers import Length, RunNumbers
from emberline.train.job_signals import SharedStop
from emberline.train.sharding import Ranks
from emberline.train.sharding.summary import plan_lines


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


class TrainingRun:
    """A run, from its parts to its result. It begins, or takes up a checkpoint, and then trains.

    Args:
        config: a whole pipeline.
        folder: the run's own.
        stop: shared by all ranks.
        plan: the file of the plan to shard by; None: the planner makes one.
        ranks: all of them.
        pipelined: see `create_loop`.
        dynamic_kernel: which kernel holds tables that grow.
    """

    def __init__(
        self,
        config: PipelineConfig,
        folder: Path,
        stop: SharedStop,
        plan: Path | None,
        ranks: Ranks,
        *,
        pipelined: bool | None = None,
        dynamic_kernel: KernelKind = KernelKind.AUTO,
    ) -> None:
        self.config, self.folder, self.stop, self.ranks = config, folder, stop, ranks
        self.settings = config.need_train()
        self.parts = build_parts(config, plan, ranks, measured=True, dynamic=DynamicRuntime(spill_folder=folder, kernel=dynamic_kernel))
        self.reader, self.eval_reader = open_data(config, self.parts.features, ranks, self.parts.items)
        self.files = files_of_run(config, self.reader)
        self.tensors = RunTensors(self.parts.sharded, self.parts.model, self.parts.step.optimizer, self.parts.step.tensors(), ranks.group)
        self.best_by = best_by(config, self.parts.model)
        self.keeper = CheckpointKeeper(folder, self.settings.keep_checkpoint_max, self.best_by)
        self.saver = CheckpointSaver(folder, asynchronous=self.settings.save_checkpoints_async, after=lambda _: self.keeper.tidy())
        self.growth = RunGrowth(folder, live_tables(self.parts.sharded), self.settings.save_increments_steps)
        self.loop = create_loop(self.parts, ranks, pipelined=pipelined)
        self.length = Length.of(self.settings)
        self.numbers = RunNumbers(self.parts, self.settings, folder, ranks)
        self.step, self.epoch, self.rows = 0, 0, 0
        self.saved_step = 0
        self.is_evaluation_due = False

    def begin(self, start: Start, *, accept_data_changes: bool = False) -> None:
        """Take over what the run is to begin with.

        Raises:
            CheckpointError: the run is to go on where another was, and the data changed, which is not accepted; or as `Start.apply`.
        """
        progress, source = start.progress, start.chosen.path if start.chosen is not None else None
        changes: DataChanges = {}
        if progress is not None and source is not None:
            changes = check_same_data(source, progress, self.config, self.files, accept=accept_data_changes)
        lines, notes = start.apply(self.tensors)
        for line in [*(lines if self.ranks.is_first else ()), *notes]:
            print(line)
        self.growth.begin()
        if progress is not None:
            self.growth.restore(progress, same_run=False)
            self._take_up(progress, changes, f"from {source}")

    def restore(self, checkpoint: Path, *, accept_data_changes: bool = False) -> None:
        """Take up a checkpoint.

        Raises:
            CheckpointError: it does not fit the model, or the data changed and that is not accepted.
        """
        require_one_step(store.read_checkpoint(checkpoint))
        changes = check_same_data(checkpoint, read_progress(checkpoint), self.config, self.files, accept=accept_data_changes)
        progress, notes = restore_run(checkpoint, self.tensors)
        for note in notes:
            print(note)
        self.growth.restore(progress)
        self.saved_step = progress.step
        self._take_up(progress, changes, f"from {checkpoint}")

    def _take_up(self, progress: Progress, changes: DataChanges, origin: str) -> None:
        """Go on where a run was; where its data changed, at the beginning of the pass."""
        self.step, self.epoch = progress.step, progress.epoch
        self.rows = 0 if ROWS in changes else progress.rows
        self.is_evaluation_due = progress.epoch > 0 and progress.rows == 0
        self.parts.step.steps = progress.updates
        self.numbers.restore(progress)
        self.reader.seek(DataPosition(self.epoch, self.rows))
        if self.ranks.is_first:
            print(f"going on {origin}: {self.step} steps done, in epoch {self.epoch} after {self.rows} rows")
            for field, texts in changes.items():
                print(*(f"  accepted: {field}: {text}" for text in texts), sep="\n")
            if self.rows < progress.rows:
                print(f"  epoch {self.epoch} begins anew, after {progress.rows} rows of the data before")

    def train(self) -> TrainResult:
        """Train to the end, or until a stop is asked for."""
        if self.ranks.is_first:
            print(*self.parts.planned_for, *plan_lines(self.parts.sharded.plan, self.parts.model.embedding_group.tables), sep="\n", flush=True)
        self.numbers.open(self.step, self.length.total(self.reader.num_batches))
        try:
            with self.saver, self.growth:
                self.parts.sharded.train()
                (is_evaluated,) = self.ranks.of_first([self.numbers.log.has("eval", self.step)])
                if self.is_evaluation_due and not self._is_done() and not is_evaluated:
                    self._evaluate()  # it was due when the run ended
                while not self._is_done() and not self._may_stop():
                    self._train_epoch()
                self.parts.step.finish()
                if self.step > self.saved_step:
                    self._save()
                self.numbers.tell_tables()
                self.numbers.bar.close()
                return self._finish()
        finally:
            self.numbers.close()

    def _train_epoch(self) -> None:
        """The rest of one epoch, or less where the run ends within it."""
        # Generators, so that leaving early ends the reader's thread at once.
        with closing(self._works()) as works, closing(self.loop.steps(works, self.epoch)) as steps:
            for trained in steps:
                self._after_step(trained)
                if self._may_stop() or self._is_done():
                    self.loop.leave()
                    return
        if self._may_stop():
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

    def _works(self) -> Generator[Work, None, None]:
        """The batches of the rest of the epoch, as far as the run goes, looked at."""
        rows = self.rows
        with closing(cast(Generator[Batch, None, None], iter(self.reader))) as batches:
            for batch in itertools.islice(batches, self.length.left(self.step)):
                totals = self._look(batch)
                if totals is not None and not self.loop.reads_ahead and self._may_stop():
                    return
                yield Work(batch, self.reader.position.rows - rows, totals)
                rows = self.reader.position.rows

    def _look(self, batch: Batch) -> list[float] | None:
        """Check a batch, and with several ranks hear of the others': whether one was asked to stop, and for each task what its loss is divided by."""
        tasks = self.parts.model.tasks
        for task in tasks:
            task.check(batch.labels[task.label], batch.sample_weights)
        if self.ranks.world_size == 1:
            return None
        return self.stop.look([task.total(batch.labels[task.label], batch.sample_weights) for task in tasks])

    def _after_step(self, trained: Trained) -> None:
        self.step, self.rows = self.step + 1, self.rows + trained.rows
        self.numbers.count(trained)
        if self.step % self.settings.log_step_count_steps == 0:
            self.numbers.tell(self.step, self.saved_step)
        self.growth.after_step(self.step, pending=bool(self.parts.step.pending))
        every = self.settings.save_checkpoints_steps
        if every and self.step // every > self.saved_step // every and not self.parts.step.pending:
            self._save()

    def _is_done(self) -> bool:
        return self.length.is_over(self.step, self.epoch)

    def _may_stop(self) -> bool:
        """Whether a stop is asked for, and no batch waits for others of its step: what those have learnt is in no checkpoint."""
        return not self.parts.step.pending and bool(self.stop)

    def _save(self) -> None:
        last, window = self.numbers.losses(self.step, self.saved_step)
        growth = self.growth.at_save(self.step)
        progress = Progress(
            step=self.step,
            epoch=self.epoch,
            rows=self.rows,
            updates=self.parts.step.steps,
            loss=last,
            window_loss=window,
            window_steps=self.numbers.window_steps,
            config_folder=str(Path(self.config.source).resolve().parent) if self.config.source else str(Path.cwd()),
            files=self.files,
            run=growth.run,
            mark=growth.mark,
            times=growth.times,
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
        self.numbers.tell_evaluation(self.step, numbers)
        return numbers

    def _finish(self) -> TrainResult:
        """Evaluate and write down how it ended; a run that was stopped only says where it is."""
        metrics = self._evaluate()
        self.saver.wait()
        checkpoint = store.step_path(self.folder, self.saved_step) if self.saved_step else None
        result = TrainResult(
            step=self.step,
            epoch=self.epoch,
            loss=self.numbers.last_loss(),
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
