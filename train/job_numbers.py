"""The numbers of a run under way: losses, speed, rates, id maps and tables that grow, told now and then; and how long it is to be."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from emberline.errors import TrainingError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.run_state import Progress
from emberline.train.config.train_config import TrainConfig
from emberline.train.job_build import Parts
from emberline.train.job_folder import METRICS_NAME, TENSORBOARD_NAME
from emberline.train.job_log import MetricsLog, ProgressBar, Speed
from emberline.train.job_loop import Trained
from emberline.train.sharding import Ranks
from emberline.train.sharding.dynamic_numbers import dynamic_lines, dynamic_numbers, dynamic_totals
from emberline.train.zch import zch_numbers


class RunNumbers:
    """What a run counts and tells. On the screen and in the logs, rank 0 speaks for all.

    Args:
        parts: of the run.
        settings: what to write, and where not to.
        folder: the run's.
        ranks: all of them; where numbers are of all, all ask together.
    """

    def __init__(self, parts: Parts, settings: TrainConfig, folder: Path, ranks: Ranks) -> None:
        self._parts, self._settings, self._folder, self._ranks = parts, settings, folder, ranks
        # This rank's parts of losses, which add up over the ranks.
        self._last_loss = torch.full((), math.nan)
        self._window_loss, self.window_steps = torch.zeros((), dtype=torch.float64), 0
        self._speed = Speed()

    def restore(self, progress: Progress) -> None:
        """Go on from a checkpoint's numbers."""
        loss = math.nan if progress.loss is None else progress.loss
        self._last_loss = torch.tensor(loss if self._ranks.is_first else 0.0)
        self._window_loss = torch.tensor(progress.window_loss if self._ranks.is_first else 0.0, dtype=torch.float64)
        self.window_steps = progress.window_steps

    def open(self, step: int, total: int | None) -> None:
        """Begin to tell, at a step of so many in all."""
        events = self._folder / TENSORBOARD_NAME if self._settings.use_tensorboard else None
        self.log = MetricsLog(self._folder / METRICS_NAME if self._ranks.is_first else None, events, step)
        self.bar = ProgressBar("training", total, step, quiet=not self._ranks.is_first)
        self._speed = Speed()

    def close(self) -> None:
        """End the bar, and write out the logs."""
        self.bar.close()
        self.log.close()

    def count(self, trained: Trained) -> None:
        """One batch more."""
        self._last_loss = trained.loss
        self._window_loss += trained.loss
        self.window_steps += 1
        self._speed.add(trained.rows)
        self.bar.advance()

    def tell(self, step: int, saved_step: int) -> None:
        """The loss since the last time, on the screen and in the logs.

        Raises:
            TrainingError: as `losses`.
        """
        loss, rows_per_s = self.losses(step, saved_step)[1] / self.window_steps, self._speed.take()
        self._window_loss, self.window_steps = torch.zeros((), dtype=torch.float64), 0
        zch = zch_numbers(self._parts.model, self._ranks.sum)
        growing = dynamic_numbers(self._parts.sharded, self._ranks.sum)
        news = {"loss": f"{loss:.5f}", "rows/s": f"{rows_per_s:,.0f}"}
        if zch:
            parts = ("rows_in_use", "admitted", "evicted", "dropped")
            totals = [sum(int(number) for name, number in zch.items() if name.endswith(f"/{part}")) for part in parts]
            news["zch rows in use, admitted, evicted, dropped"] = " ".join(f"{total:,}" for total in totals)
        if growing:
            news["dynamic rows, admitted, evicted"] = dynamic_totals(growing)
        self.bar.tell(**news)
        rates = {f"learning_rate/{label}": rate for label, rate in self._parts.step.rates.items()}
        hidden = tuple(name for name in ("loss", "learning_rate") if name not in self._settings.tensorboard_summaries)
        self.log.write("train", step, {"loss": loss, "rows_per_s": rows_per_s, **rates, **zch, **growing}, hidden)

    def tell_tables(self) -> None:
        """What became of the tables that grow, where there are some. All ranks ask together."""
        for line in dynamic_lines(dynamic_numbers(self._parts.sharded, self._ranks.sum)):
            self.bar.note(line)

    def tell_evaluation(self, step: int, numbers: Mapping[str, float]) -> None:
        """The numbers of an evaluation, on the screen, and in the logs where they are not there yet."""
        if not self.log.has("eval", step):
            self.log.write("eval", step, numbers)
        self.bar.note(f"evaluation at step {step}: {', '.join(f'{name} {number:.6g}' for name, number in numbers.items())}")

    def last_loss(self) -> float:
        """The loss of the last batch, over all ranks; NaN where nothing was trained."""
        (loss,) = self._ranks.sum([float(self._last_loss)])
        return loss

    def losses(self, step: int, saved_step: int) -> tuple[float, float]:
        """The loss of the last batch, and the sum of those since the last line of the log, over all ranks.

        Args:
            step: for the message.
            saved_step: of the newest checkpoint, 0 for none, likewise.

        Raises:
            TrainingError: one of them is not finite.
        """
        found = self._ranks.gather([float(self._last_loss), float(self._window_loss)])
        last, window = found.sum(axis=0).tolist()
        if math.isfinite(last) and math.isfinite(window):
            return last, window
        bad = [str(rank) for rank, finite in enumerate(np.isfinite(found).all(axis=1)) if not finite]
        where = f", on rank{'s' * (len(bad) > 1)} {', '.join(bad)}" if self._ranks.world_size > 1 else ""
        hint = "try a smaller lr, or look for huge values in the data"
        newest = f"; the newest checkpoint is {store.step_path(self._folder, saved_step)}" if saved_step else ""
        raise TrainingError(f"the loss is not finite at step {step} (last: {last}{where}): {hint}{newest}")


@dataclass(frozen=True)
class Length:
    """The steps and epochs that end a run, whichever come first.

    Args:
        steps: None: no matter how many.
        epochs: likewise.
    """

    steps: int | None
    epochs: int | None

    @classmethod
    def of(cls, settings: TrainConfig) -> "Length":
        """As a config says; one epoch where it says neither."""
        steps, epochs = settings.num_steps, settings.num_epochs
        return cls(steps, 1 if steps is None and epochs is None else epochs)

    def is_over(self, step: int, epoch: int) -> bool:
        """Whether a run that is so far is done."""
        return (self.steps is not None and step >= self.steps) or (self.epochs is not None and epoch >= self.epochs)

    def left(self, step: int) -> int | None:
        """Most batches that are to come; None: no matter how many."""
        return None if self.steps is None else self.steps - step

    def total(self, num_batches: int | None) -> int | None:
        """The step at which the run will end, where that can be told from the batches of an epoch."""
        by_epochs = self.epochs * num_batches if self.epochs is not None and num_batches is not None else None
        return min((count for count in (self.steps, by_epochs) if count is not None), default=None)
