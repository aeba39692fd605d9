"""Writing increments beside the training, each whole or not at all: under another name, flushed to disk, renamed."""

import shutil
from collections.abc import Callable, Mapping, Sequence
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
from emberline.train.checkpoint import store
from emberline.train.checkpoint.increments import FOLDER_NAME, FORMAT, TableChanges, changed_tensors, list_increments, rank_file
from emberline.train.checkpoint.ranks import from_first_rank
from emberline.train.checkpoint.stored_dynamic import DynamicNotes
from emberline.train.sharding.process_group import COLLECTIVE_TIMEOUT


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.wait()
        self._writer.shutdown(wait=True)

    def _write(self, stretch: Stretch, tables: Mapping[str, DynamicNotes], tensors: dict[str, Tensor]) -> None:
        final = self._folder / f"{stretch.base}-{stretch.step}"
        draft = self._folder / f"{store.DRAFT_PREFIX}{final.name}"
        first = partial(from_first_rank, group=self._group)
        head = {**asdict(stretch), "format": FORMAT, "ranks": self._ranks, "tables": {table: asdict(notes) for table, notes in tables.items()}}
        try:
            first(partial(_plainly, final, partial(_begin, draft)))
            self._save(tensors, draft, final)
            first(partial(_plainly, final, partial(_finish, draft, final, head)))
        except CheckpointError:  # which all ranks have
            if self._rank == 0:
                shutil.rmtree(draft, ignore_errors=True)
            raise

    def _save(self, tensors: dict[str, Tensor], draft: Path, final: Path) -> None:
        """What this rank has; no rank goes on where one can't write its file."""
        problem = _problem(partial(_save_file, tensors, draft / rank_file(self._rank)))
        problems: list[str] = [problem]
        if self._together:
            problems = [""] * self._ranks
            dist.all_gather_object(problems, problem, group=self._group)
        if any(problems):
            raise CheckpointError(f"{final} cannot be written: {next(filter(None, problems))}")


def drop_after(run: Path, step: int) -> None:
    """Remove what leads beyond a step of a run, which goes on from there, and what writes that never ended have left; the first rank does it.

    Raises:
        CheckpointError: it cannot be removed.
    """
    folder = run / FOLDER_NAME
    if folder.is_dir() and (not dist.is_initialized() or dist.get_rank() == 0):
        _plainly(folder, lambda: _drop(folder, lambda end: end > step))
        _plainly(folder, partial(store.remove_drafts, folder))


def _begin(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    store.flush(draft.parent.parent)


def _save_file(tensors: dict[str, Tensor], path: Path) -> None:
    save_file(tensors, path)
    store.flush(path)  # here: the first rank may be on another machine


def _finish(draft: Path, final: Path, head: Mapping[str, Any]) -> None:
    store.complete(draft, final, head)
    oldest = min(store.list_steps(final.parent.parent), default=0)
    _drop(final.parent, lambda end: end <= oldest)  # they lead to no step beyond a checkpoint that is still there


def _drop(folder: Path, is_dropped: Callable[[int], bool]) -> None:
    """Take away the increments whose last step is of no use any more."""
    for _, end, path in list_increments(folder):
        if is_dropped(end):
            store.remove(path)


def _plainly(path: Path, work: Callable[[], object]) -> None:
    """An error of the file system as one of ours."""
    try:
        work()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def _problem(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the others must hear of it, whatever it is
        return first_line(error)
    return ""
