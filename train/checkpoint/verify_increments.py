"""All increments of a run looked at: their bytes, and whether each leads on from a state that is there.

checkpoint   step-10 ─────────────► step-30            a state is a step and its mark
increments       └─ 10-20 ─► 20-30 ─┘ └─ 30-40         each begins with one, and ends with another
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from emberline.errors import CheckpointError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.increments import FOLDER_NAME, IncrementInfo, list_increments, read_increment
from emberline.train.checkpoint.run_state import Progress, read_progress


@dataclass
class SeenIncrements:
    """What was found.

    Args:
        count: increments that were looked at.
        lines: for people, of what is not whole, and of what is worth knowing.
        problems: what is wrong, a sentence for each; also in `lines`.
        span: the first and the last step of those that are whole.
    """

    count: int = 0
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    span: tuple[int, int] | None = None

    def text(self) -> str:
        """How many, of which steps."""
        of_steps = "" if self.span is None else f", of steps {self.span[0]} to {self.span[1]}"
        return f"{self.count} increment{'s' * (self.count != 1)}{of_steps}"


def verify_increments(run: Path) -> SeenIncrements:
    """Compare every byte of a run's increments with their manifests, and look for gaps.

    An increment begins with the state that the one before leads to, or a checkpoint has; those that lead to no step beyond the oldest checkpoint are
    about to be removed, and only their bytes are looked at. Where one is missing that led to a checkpoint, nothing is lost: it is told, and others
    go on from that checkpoint.

    Args:
        run: the run's folder, which a run may be writing to.
    """
    listed = list_increments(run / FOLDER_NAME)  # before the checkpoints: those that come meanwhile are no increment's beginning yet
    states = dict(_checkpoint_states(run))
    seen, oldest = SeenIncrements(), min(states, default=0)
    last: IncrementInfo | None = None
    reached = set()
    for _, end, path in listed:
        try:
            one = read_increment(path)
        except CheckpointError as error:
            if not path.exists():
                seen.lines.append(f"{path}: removed in the meantime")
                continue
            seen.count += 1
            seen.problems.append(str(error))
            continue
        seen.count += 1
        seen.span = (one.base if seen.span is None else seen.span[0], one.step)
        problem = _does_not_lead_on(one, last, states) if end > oldest else ""
        if problem:
            seen.problems.append(problem)
        reached.add(one.mark)
        last = one
    seen.lines += seen.problems
    if seen.span is not None:
        begun = max(seen.span[0], oldest)
        seen.lines += [
            f"{run / FOLDER_NAME}: none leads to step {step}; those from there on go on from its checkpoint"
            for step, progress in sorted(states.items())
            if step > begun and progress.mark not in reached
        ]
    return seen


def _checkpoint_states(run: Path) -> Iterator[tuple[int, Progress]]:
    """The states that checkpoints have; of those that can't be read, others tell."""
    for step in store.list_steps(run):
        try:
            yield step, read_progress(store.step_path(run, step))
        except CheckpointError:
            continue


def _does_not_lead_on(one: IncrementInfo, last: IncrementInfo | None, states: dict[int, Progress]) -> str:
    """Why an increment has no beginning; empty where it has one."""
    runs = {progress.run for progress in states.values()}
    if runs and one.run not in runs:
        return f"{one.path} is of another run ({one.run}) than the checkpoints beside it ({', '.join(sorted(runs)) or 'which have no increments'})"
    if last is not None and (last.step, last.mark) == (one.base, one.base_mark):
        return ""
    here = states.get(one.base)
    if here is not None and here.mark == one.base_mark:
        return ""
    if here is not None or (last is not None and last.step == one.base):
        return f"{one.path} leads on from another state of step {one.base} than is here: the run went on otherwise once it was stopped"
    ends = [step for step in (*states, *(() if last is None else (last.step,))) if step < one.base]
    since = f"those of steps {max(ends)} to {one.base} are missing" if ends else "its beginning is missing"
    return f"{one.path} leads on from step {one.base}, to which no checkpoint and no increment here leads: {since}"
