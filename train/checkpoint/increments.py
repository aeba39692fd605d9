"""What tables that grow have learnt between two steps, on disk: `RUN/increments/BASE-STEP/`.

manifest.json        which run and which states it leads from and to, the tables, size and sha256 of each file; written last
rank-R.safetensors   of each table, on rank R: `keys` that training read since the base, with `weight` and moments in their own types, `last_steps`
                     and `scores`; keys that were `removed`; ids that wait for admission with their `counts`; `numbers`

Each leads from the state where the one before ended, or from a checkpoint. A state has a mark, drawn by chance, which the checkpoint of that step has
too: so increments of another run, or of the same run before it was killed and went on otherwise, fit nowhere.
"""

import secrets
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from emberline.errors import CheckpointError, first_line
from emberline.manifest import MANIFEST_NAME, FileEntry, find_damage, hash_tree, read_manifest, write_manifest
from emberline.train.checkpoint import store
from emberline.train.checkpoint.dynamic_drafts import number_row
from emberline.train.checkpoint.ranks import from_first_rank
from emberline.train.checkpoint.stored_dynamic import COUNTED_KEYS, COUNTS, KEYS, LAST_STEPS, NUMBERS, SCORES, WEIGHT, DynamicNotes
from emberline.train.dynamic.state import DynamicState
from emberline.train.sharding.process_group import COLLECTIVE_TIMEOUT

FOLDER_NAME = "increments"
FORMAT = "emberline.increment.v1"
REMOVED = "removed"
_DRAFT = ".draft"


@dataclass(frozen=True, kw_only=True)
class IncrementInfo:
    """What an increment's manifest says.

    Args:
        path: its folder.
        run: which run made it.
        base: the step that it leads from.
        base_mark: the state of that step.
        step: the step that it leads to.
        mark: the state of that step.
        ranks: that wrote it.
        tables: what a checkpoint of the step would say of each.
        times: steps of tables and when they were done.
        files: size and sha256 of each.
    """

    path: Path
    run: str
    base: int
    base_mark: str
    step: int
    mark: str
    ranks: int
    tables: Mapping[str, DynamicNotes]
    times: tuple[tuple[int, int], ...]
    files: Mapping[str, FileEntry]


@dataclass(frozen=True)
class TableChanges:
    """What one rank's part of a table has become.

    Args:
        state: of the ids that training read since the base.
        removed: ids that had a row since then, and lost it: int64 [n]. Those that got another are in `state` too.
        updates: steps of the optimiser so far.
    """

    state: DynamicState
    removed: Tensor
    updates: int


def new_mark() -> str:
    """A mark that no other state has."""
    return secrets.token_hex(8)


def read_increment(path: Path) -> IncrementInfo:
    """An increment, all bytes of which are compared with its manifest.

    Raises:
        CheckpointError: it is none, it is damaged, or another release wrote it.
    """
    try:
        data = read_manifest(path)
        if data.get("format") != FORMAT:
            raise CheckpointError(f"{path}: format {data.get('format')!r} is not {FORMAT!r}: no increment that this release reads")
        info = IncrementInfo(
            path=path,
            run=str(data["run"]),
            base=int(data["base"]),
            base_mark=str(data["base_mark"]),
            step=int(data["step"]),
            mark=str(data["mark"]),
            ranks=int(data["ranks"]),
            tables={table: DynamicNotes.of(notes) for table, notes in data["tables"].items()},
            times=tuple((int(step), int(time)) for step, time in data["times"]),
            files={name: FileEntry(**entry) for name, entry in data["files"].items()},
        )
        damage = find_damage(path, info.files)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no complete increment: {MANIFEST_NAME}, which is written last, is not there") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: {MANIFEST_NAME} cannot be read: {first_line(error)}") from error
    if damage:
        raise CheckpointError(f"{path} is damaged: {'; '.join(damage)}")
    return info


def list_increments(folder: Path) -> list[tuple[int, int, Path]]:
    """The increments of a run's folder of them, by steps: from which, to which, and the path; whether they are whole is not looked at."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        base, _, end = path.name.partition("-")
        if base.isdecimal() and end.isdecimal():
            found.append((int(base), int(end), path))
    return sorted(found)


def rank_file(rank: int) -> str:
    """What a rank writes."""
    return f"rank-{rank}.safetensors"


def changed_tensors(table: str, changes: TableChanges) -> dict[str, Tensor]:
    """What is in a rank's file of a table."""
    state = changes.state
    parts = {KEYS: state.keys, WEIGHT: state.weights, **state.moments, LAST_STEPS: state.last_steps, SCORES: state.scores}
    parts |= {REMOVED: changes.removed, COUNTED_KEYS: state.counted_keys, COUNTS: state.counts, NUMBERS: number_row(state, changes.updates)}
    return {f"{table}/{part}": tensor.contiguous() for part, tensor in parts.items()}


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Which steps an increment is of; see `IncrementInfo`."""

    run: str
    base: int
    base_mark: str
    step: int
    mark: str
    times: Sequence[tuple[int, int]]


class IncrementWriter:
    """Writes a run's increments beside the training, one at a time. All ranks have one, and call it together.

    As a context manager it waits at the end for the one under way. One that could not be written is told by the next call, or at the end.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER_NAME
        self._together = dist.is_initialized() and dist.get_world_size() > 1
        self._rank = dist.get_rank() if self._together else 0
        self._ranks = dist.get_world_size() if self._together else 1
        self._group = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if self._together else None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="increment")
        self._pending: Future[None] | None = None

    def write(self, stretch: Stretch, tables: Mapping[str, DynamicNotes], changes: Mapping[str, TableChanges]) -> None:
        """Begin to write one.

        Args:
            stretch: which steps.
            tables: what a checkpoint would say of each.
            changes: of this rank; nothing changes them any more.

        Raises:
            CheckpointError: the one before cannot be written.
        """
        self.wait()
        tensors = {name: tensor for table, found in changes.items() for name, tensor in changed_tensors(table, found).items()}
        self._pending = self._writer.submit(self._write, stretch, tables, tensors)

    def wait(self) -> None:
        """Until the increment under way is complete.

        Raises:
            CheckpointError: it cannot be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def drop_after(self, step: int) -> None:
        """Remove what leads beyond a step: a run that goes on from there writes it anew."""
        if self._rank == 0 and self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name.startswith(_DRAFT) or _end(path) > step:
                    shutil.rmtree(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.wait()
        self._writer.shutdown(wait=True)

    def _write(self, stretch: Stretch, tables: Mapping[str, DynamicNotes], tensors: dict[str, Tensor]) -> None:
        final = self._folder / f"{stretch.base}-{stretch.step}"
        draft = self._folder / f"{_DRAFT}-{final.name}"
        first = partial(from_first_rank, group=self._group)
        first(partial(_plainly, final, partial(_begin, draft)))
        problem = _problem(lambda: save_file(tensors, draft / rank_file(self._rank)))
        problems: list[str] = [problem]
        if self._together:
            problems = [""] * self._ranks
            dist.all_gather_object(problems, problem, group=self._group)
        if any(problems):
            raise CheckpointError(f"{final} cannot be written: {next(filter(None, problems))}")
        head = {**asdict(stretch), "format": FORMAT, "ranks": self._ranks, "tables": {table: asdict(notes) for table, notes in tables.items()}}
        first(partial(_plainly, final, partial(_finish, draft, final, head)))


def _begin(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)


def _finish(draft: Path, final: Path, head: Mapping[str, Any]) -> None:
    write_manifest(draft, {**head, "files": {name: asdict(entry) for name, entry in hash_tree(draft).items()}})
    if final.exists():  # of the same steps, before the run was killed
        shutil.rmtree(final)
    draft.rename(final)
    oldest = min(store.list_steps(final.parent.parent), default=0)
    for path in final.parent.iterdir():
        if 0 <= _end(path) <= oldest:  # it leads to no step beyond a checkpoint that is still there
            shutil.rmtree(path)


def _end(path: Path) -> int:
    """The step that an increment leads to; -1 where the folder is none."""
    base, _, end = path.name.partition("-")
    return int(end) if base.isdecimal() and end.isdecimal() else -1


def _plainly(path: Path, work: Any) -> None:
    try:
        work()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def _problem(work: Any) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the others must hear of it, whatever it is
        return first_line(error)
    return ""
