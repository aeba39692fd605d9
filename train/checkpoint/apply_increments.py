"""Increments applied to the checkpoint that they lead from: its tables that grow become what they were at the step of the last increment.

Other parts of the model are not in increments, and stay those of the checkpoint. So the result can be evaluated, scored and exported, and its tables
are a beginning for other runs; the run itself goes on from its own checkpoints.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from emberline.errors import CheckpointError, first_line
from emberline.manifest import MANIFEST_NAME
from emberline.train.checkpoint import store
from emberline.train.checkpoint.dynamic_drafts import DynamicDraft, RowSource
from emberline.train.checkpoint.increments import FOLDER_NAME, REMOVED, IncrementInfo, list_increments, rank_file, read_increment
from emberline.train.checkpoint.rewrite import Changes, open_checkpoint, rewrite_checkpoint
from emberline.train.checkpoint.run_state import OTHER_PARTS_STEP, Progress
from emberline.train.checkpoint.stored_dynamic import (
    COUNTED_KEYS,
    COUNTS,
    DEFAULT,
    KEYS,
    NUMBERS,
    UNADMITTED,
    StoredDynamic,
)
from emberline.train.checkpoint.tensors import TensorInfo, read_index


def apply_increments(checkpoint: Path, folders: Sequence[Path], output: Path, tell: Callable[[str], None]) -> Path:
    """Write `output/step-N`, N the step of the last increment.

    Args:
        checkpoint: a step-N folder, or a run's folder: its newest.
        folders: increments, in order; or one folder that holds a run's: those that lead on from the checkpoint.
        output: a new or empty folder.
        tell: gets lines for people.

    Raises:
        CheckpointError: the checkpoint or an increment is damaged, of another run, or does not lead on from the one before; nothing was written.
        ConfigError: the output cannot be used.
    """
    info, layout, progress = open_checkpoint(checkpoint)
    increments = [read_increment(path) for path in _listed(folders, info.step)]
    _check_chain(info, progress, increments)
    last = increments[-1]
    if set(layout.dynamic) != set(last.tables):
        raise CheckpointError(f"{last.path} has the tables {', '.join(sorted(last.tables))}, and {info.path} {', '.join(sorted(layout.dynamic))}")
    with ExitStack() as stack:
        parts = [_Parts.open(one, stack) for one in increments]
        index = read_index(info.path / store.TENSORS_NAME)
        stored = {table: StoredDynamic(info.path / store.TENSORS_NAME, table, notes, index) for table, notes in layout.dynamic.items()}
        drafts = [_draft(found, increments, parts) for found in stored.values()]
        for draft in drafts:
            tell(f"table {draft.table!r}: {stored[draft.table].num_ids:,} ids at step {info.step}, {len(draft.keys):,} at step {last.step}")
        others = int(info.notes.get(OTHER_PARTS_STEP, info.step))
        tell(f"everything but these tables is of step {others}")
        path = rewrite_checkpoint(
            info,
            Changes(
                tensors={name: tensor for draft in drafts for name, tensor in draft.tensors().items()},
                dynamic=last.tables,
                progress=replace(progress, mark=last.mark, times=_joined_times(progress, increments)),
                step=last.step,
                notes={OTHER_PARTS_STEP: others},
            ),
            output,
        )
    return path


def _listed(folders: Sequence[Path], step: int) -> list[Path]:
    """The increments that are meant."""
    if not folders:
        raise CheckpointError(f"no increment is given: name some in their order, or RUN/{FOLDER_NAME}")
    if len(folders) != 1 or (folders[0] / MANIFEST_NAME).exists() or not folders[0].is_dir():
        return list(folders)
    found = [path for _, end, path in list_increments(folders[0]) if end > step]
    if not found:
        raise CheckpointError(f"{folders[0]}: no increment here leads on from step {step}; RUN/{FOLDER_NAME} has those of a run")
    return found


def _check_chain(info: store.CheckpointInfo, progress: Progress, increments: Sequence[IncrementInfo]) -> None:
    """Refuse what does not lead on from the checkpoint, one after the other.

    Raises:
        CheckpointError: names the first that does not fit, and why.
    """
    step, mark, before = info.step, progress.mark, str(info.path)
    seen = {mark}
    for one in increments:
        if one.run != progress.run:
            raise CheckpointError(f"{one.path} is of another run ({one.run}) than {info.path} ({progress.run or 'which has no increments'})")
        if one.mark in seen:
            raise CheckpointError(f"{one.path} is applied already: {before} is at step {step} with it; leave it out")
        if one.base > step:
            raise CheckpointError(f"{one.path} leads on from step {one.base}, and {before} is at step {step}: those between are missing")
        if one.base < step:
            raise CheckpointError(f"{one.path} leads on from step {one.base}, and {before} is at step {step}: it is out of order, or applied already")
        if one.base_mark != mark:
            raise CheckpointError(
                f"{one.path} leads on from another state of step {step} than {before}: the run went on otherwise once it was stopped"
            )
        step, mark, before = one.step, one.mark, str(one.path)
        seen.add(mark)


def _joined_times(progress: Progress, increments: Sequence[IncrementInfo]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({*progress.times, *(pair for one in increments for pair in one.times)}))


@dataclass(frozen=True)
class _Parts:
    """The files of an increment; rows of all ranks together are counted rank by rank. The part asked for last is kept."""

    info: IncrementInfo
    files: Sequence[Any]
    kept: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def open(cls, info: IncrementInfo, stack: ExitStack) -> "_Parts":
        try:
            return cls(info, [stack.enter_context(safe_open(info.path / rank_file(rank), "pt")) for rank in range(info.ranks)])
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{info.path} cannot be read: {first_line(error)}") from error

    def joined(self, table: str, part: str) -> Tensor:
        """A part of all ranks."""
        name = f"{table}/{part}"
        if name not in self.kept:
            self.kept.clear()
            self.kept[name] = torch.cat([self._read(rank, table, part) for rank in range(self.info.ranks)])
        return self.kept[name]

    def stacked(self, table: str, part: str) -> Tensor:
        """A part of all ranks, with a row for each."""
        return torch.stack([self._read(rank, table, part) for rank in range(self.info.ranks)])

    def kind(self, rank: int, table: str, part: str) -> TensorInfo:
        """Shape and type of a part of a rank; no number is read."""
        try:
            part_of = self.files[rank].get_slice(f"{table}/{part}")
            shape = tuple(part_of.get_shape())
            return TensorInfo(shape, part_of[0:0].dtype if shape else self._read(rank, table, part).dtype)
        except SafetensorError as error:
            raise CheckpointError(f"{self.info.path / rank_file(rank)}: {first_line(error)}") from error

    def _read(self, rank: int, table: str, part: str) -> Tensor:
        try:
            found: Tensor = self.files[rank].get_tensor(f"{table}/{part}")
        except SafetensorError as error:
            raise CheckpointError(f"{self.info.path / rank_file(rank)}: {first_line(error)}") from error
        return found


@dataclass(frozen=True)
class _Changed:
    """The rows of one table in an increment."""

    parts: _Parts
    table: str

    def take(self, part: str, rows: Tensor) -> Tensor:
        """See `RowSource`."""
        return self.parts.joined(self.table, part)[rows]


def _draft(stored: StoredDynamic, increments: Sequence[IncrementInfo], parts: Sequence[_Parts]) -> DynamicDraft:
    """What a table has become."""
    table, keys = stored.table, stored.whole(KEYS).numpy()
    places = np.stack([np.zeros(len(keys), np.int64), np.arange(len(keys))], axis=1)
    columns = {part: (stored.infos[part].dtype, stored.infos[part].shape[1:]) for part in stored.row_parts if part != KEYS}
    for number, part in enumerate(parts, 1):
        _check_kinds(part, table, columns)
        changed, removed = part.joined(table, KEYS).numpy(), part.joined(table, REMOVED).numpy()
        if len(np.unique(changed)) != len(changed):
            raise CheckpointError(f"{part.info.path}: {table}/{KEYS} has an id twice")
        stays = ~np.isin(keys, np.concatenate([changed, removed]))
        fresh = np.stack([np.full(len(changed), number), np.arange(len(changed))], axis=1)
        keys, places = np.concatenate([keys[stays], changed]), np.concatenate([places[stays], fresh])
    sources: list[RowSource] = [stored, *(_Changed(part, table) for part in parts)]
    last = parts[-1]
    return DynamicDraft(
        table=table,
        ranks=last.info.ranks,
        keys=torch.from_numpy(keys),
        places=torch.from_numpy(places),
        sources=sources,
        columns=columns,
        counted_keys=last.joined(table, COUNTED_KEYS),
        counts=last.joined(table, COUNTS),
        default=stored.whole(DEFAULT),
        unadmitted=stored.whole(UNADMITTED),
        numbers=last.stacked(table, NUMBERS),
        notes=increments[-1].tables[table],
    )


def _check_kinds(parts: _Parts, table: str, columns: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    """Refuse an increment whose parts are not of the checkpoint's types, or have not a row for each key.

    Raises:
        CheckpointError: names the first.
    """
    for rank in range(parts.info.ranks):
        rows = parts.kind(rank, table, KEYS).shape[:1]
        for part, (dtype, width) in {KEYS: (torch.int64, ()), **columns}.items():
            found, wanted = parts.kind(rank, table, part), TensorInfo((*rows, *width), dtype)
            if found != wanted:
                raise CheckpointError(f"{parts.info.path / rank_file(rank)}: {table}/{part} is {found}, and {wanted} would go with the checkpoint")
