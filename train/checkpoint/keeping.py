"""Which checkpoints of a run stay: the newest, and the best by a metric.

`RUN/best` is a link to the best one, so that `--checkpoint RUN/best` means it everywhere; `RUN/best.json` has the numbers that decided.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import store

BEST_NAME = "best"
BEST_NUMBERS_NAME = "best.json"


@dataclass(frozen=True, kw_only=True)
class BestBy:
    """What makes a checkpoint the best; a number that is not finite never does.

    Args:
        metric: of the evaluation set.
        larger: whether larger numbers are better.
    """

    metric: str
    larger: bool = True


class CheckpointKeeper:
    """Removes a run's checkpoints, but never the newest, nor the best.

    Threads may share it.

    Args:
        run: the run's folder.
        keep: how many of the newest stay; 0: all.
        best_by: None: no checkpoint is the best.
    """

    def __init__(self, run: Path, keep: int, best_by: BestBy | None = None) -> None:
        self._run, self._keep, self._best_by = run, keep, best_by
        self._lock = Lock()
        self._numbers = {} if best_by is None else _read_numbers(run, best_by)

    def note(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take down what an evaluation found at a step, and tidy up.

        Raises:
            ConfigError: the metric is not among them.
        """
        if self._best_by is None:
            return
        if self._best_by.metric not in metrics:
            raise ConfigError(
                f"export_config: best_exporter_metric: the evaluation has no {self._best_by.metric!r}, only {', '.join(metrics)}; choose one of them"
            )
        with self._lock:
            self._numbers[step] = float(metrics[self._best_by.metric])
        self.tidy()

    def tidy(self) -> list[int]:
        """Point out the best checkpoint, and remove what need not stay; returns the steps removed."""
        with self._lock:
            steps = store.list_steps(self._run)
            best = self._best(steps)
            if best is not None:
                self._point_at(best)
            return store.prune_checkpoints(self._run, self._keep, protected=() if best is None else (best,))

    def _best(self, steps: list[int]) -> int | None:
        """The best of these steps, of equals the first; None where none has a number."""
        if self._best_by is None:
            return None
        sign = 1.0 if self._best_by.larger else -1.0
        numbered = [step for step in steps if math.isfinite(self._numbers.get(step, math.nan))]
        return max(numbered, key=lambda step: (sign * self._numbers[step], -step), default=None)

    def _point_at(self, step: int) -> None:
        assert self._best_by is not None
        whole = {
            "step": step,
            "metric": self._best_by.metric,
            "larger_is_better": self._best_by.larger,
            "numbers": {str(one): number if math.isfinite(number) else None for one, number in sorted(self._numbers.items())},
        }
        text = json.dumps(whole, indent=1) + "\n"
        path = self._run / BEST_NUMBERS_NAME
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            store.write_text(path, text)
        store.write_link(self._run / BEST_NAME, store.step_path(self._run, step).name)


def best_checkpoint(run: Path) -> Path:
    """The best checkpoint of a run.

    Raises:
        CheckpointError: the run has none.
    """
    link = run / BEST_NAME
    if not link.is_symlink():
        raise CheckpointError(f"{run}: no checkpoint is the best; train with export_config {{ exporter_type: 'best' }} and evaluation data")
    return run / link.readlink()


def _read_numbers(run: Path, best_by: BestBy) -> dict[int, float]:
    """What an earlier process of the run noted; nothing, where it noted another metric."""
    path = run / BEST_NUMBERS_NAME
    if not path.is_file():
        return {}
    data = store.read_json(path)
    try:
        if data["metric"] != best_by.metric:
            return {}
        return {int(step): math.nan if number is None else float(number) for step, number in data["numbers"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error!r}") from error
