"""What a run keeps of its tables that grow beside their rows: which run it is, which state it is in, when its steps were done; and its increments.

step       0 ──── 10 ──── 20 ──── 25 ──── 30 ──── 40
checkpoint                        25                     has the mark of its state
increments                             25-30   30-40     lead from one mark to the next
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from emberline.train.checkpoint.increment_writer import IncrementWriter, Stretch, drop_after
from emberline.train.checkpoint.increments import TableChanges, new_mark
from emberline.train.checkpoint.live_dynamic import HeldTables, notes_of, score_strategy
from emberline.train.checkpoint.run_state import Progress
from emberline.train.dynamic.options import ScoreStrategy

SECONDS_BETWEEN_TIMES = 60
MOST_TIMES = 4096
"""Beyond it, every second one of the older half is forgotten."""


@dataclass(frozen=True)
class Growth:
    """What a checkpoint says of it; see `Progress`."""

    run: str = ""
    mark: str = ""
    times: tuple[tuple[int, int], ...] = ()


class RunGrowth:
    """All ranks have one, and call it together. Without tables that grow it does nothing.

    Args:
        run: the run's folder.
        held: its tables that grow, as `live_tables` gives them.
        every: steps between two increments; 0: none are written.
    """

    def __init__(self, run: Path, held: Mapping[str, HeldTables], every: int) -> None:
        self._run, self._held = run, held
        self._every = every if self._held else 0
        self._growth = Growth(run=new_mark()) if self._held else Growth()
        self._base, self._since, self._last_time = 0, self._steps(), 0.0
        self._writer = IncrementWriter(run) if self._every else None
        for kernel in _kernels(self._held) if self._every else ():
            kernel.track_removals(True)

    def begin(self) -> None:
        """Begin a run: increments that an earlier one left, which was killed before its first checkpoint, lead on from nothing."""
        if self._held:
            drop_after(self._run, -1)

    def restore(self, progress: Progress, *, same_run: bool = True) -> None:
        """Go on where a run was; another run knows when its steps were done, and begins increments of its own."""
        if not self._held:
            return
        if same_run:
            self._growth, self._base = Growth(progress.run or self._growth.run, progress.mark, tuple(progress.times)), progress.step
            self._since = self._steps()
            drop_after(self._run, progress.step)  # also where it writes none any more: they would lead on from nothing
        else:
            self._growth = Growth(self._growth.run, "", tuple(progress.times))

    def after_step(self, step: int, *, pending: bool) -> None:
        """Write an increment, where one is due.

        Args:
            step: batches trained.
            pending: whether what batches have learnt is not in the tables yet.

        Raises:
            CheckpointError: the one before cannot be written.
        """
        if not self._held:
            return
        now = time.time()
        if now - self._last_time >= SECONDS_BETWEEN_TIMES:
            self._note_time(now)
        if self._every and self._growth.mark and step // self._every > self._base // self._every and not pending:
            self._note_time(now)
            self._advance(step)

    def at_save(self, step: int) -> Growth:
        """What the checkpoint of this step says; an increment that leads to it is written, where the run writes such.

        Raises:
            CheckpointError: the increment before cannot be written.
        """
        if self._held:
            self._note_time(time.time())
            if step > self._base or not self._growth.mark:
                self._advance(step)
        return self._growth

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)

    def _advance(self, step: int) -> None:
        """The next state, and the increment that leads to it; there is none to one that nothing was saved before."""
        before, mark = self._growth, new_mark()
        if self._writer is not None and before.mark:
            stretch = Stretch(run=before.run, base=self._base, base_mark=before.mark, step=step, mark=mark, times=before.times)
            self._writer.write(stretch, notes_of(self._held), self._changes())
        for kernel in _kernels(self._held) if self._writer is not None else ():
            kernel.forget_removals(kernel.step + 1)
        self._growth, self._base, self._since = Growth(before.run, mark, before.times), step, self._steps()

    def _steps(self) -> dict[str, int]:
        return {table: kernel.step for table, kernel in self._held.items()}

    def _changes(self) -> Mapping[str, TableChanges]:
        found = {}
        for table, kernel in self._held.items():
            all_change = score_strategy(kernel, table) is ScoreStrategy.CUSTOMIZED  # the caller may have set any score
            state, removed = kernel.changes_since(table, 0 if all_change else self._since[table] + 1)
            found[table] = TableChanges(state, removed, kernel.tables.step)
        return found

    def _note_time(self, now: float) -> None:
        step, times = max(kernel.step for kernel in self._held.values()), self._growth.times
        if times and times[-1][0] >= step:
            return
        times = (*times, (step, int(now)))
        if len(times) > MOST_TIMES:
            times = (*times[: MOST_TIMES // 2 : 2], *times[MOST_TIMES // 2 :])
        self._growth, self._last_time = Growth(self._growth.run, self._growth.mark, times), now


def _kernels(held: Mapping[str, HeldTables]) -> list[HeldTables]:
    return list({id(kernel): kernel for kernel in held.values()}.values())
