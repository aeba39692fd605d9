"""The tables that grow of a run, to a checkpoint and back: saved by any number of ranks, taken up by any other.

An id belongs to one rank of so many, wherever it was before. So each rank looks through the ids of a checkpoint, and reads the rows of its own.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from emberline.errors import CheckpointError
from emberline.train.checkpoint.dynamic_drafts import Place, columns_of, common_tensors, counted_columns, name_numbers, number_row, row_tensors
from emberline.train.checkpoint.ranks import of_all_ranks
from emberline.train.checkpoint.shards import holds_growing
from emberline.train.checkpoint.stored_dynamic import FIXED_PARTS, KEYS, PREFIX, WEIGHT, DynamicNotes, StoredDynamic
from emberline.train.checkpoint.tensors import TensorInfo, Writable, dtype_name, read_index
from emberline.train.dynamic.options import DynamicEmbOptions, ScoreStrategy
from emberline.train.dynamic.state import DynamicCounters, DynamicState, DynamicTable
from emberline.train.kernels import FusedTables
from emberline.train.optim.border import kernels_of

_NOW = ("size", "capacity", "counted")
"""Counters that tell how things are, and do not add up over time."""
COUNTERS = tuple(name for name in DynamicCounters.__dataclass_fields__ if name not in _NOW)
"""Those that do, which checkpoints keep."""


class HeldTables(Protocol):
    """What holds tables that grow; see `BatchedDynamicEmbeddingTables`."""

    step: int
    dtype: torch.dtype

    @property
    def tables(self) -> FusedTables:
        """What learns."""

    @property
    def described(self) -> Sequence[DynamicTable]:
        """What each table is."""

    def dump(self, table: str) -> DynamicState:
        """A copy of what this rank has of a table."""

    def changes_since(self, table: str, step: int) -> tuple[DynamicState, Tensor]:
        """The rows that training read in this step or later, and the keys that were removed since removals are tracked."""

    def track_removals(self, is_on: bool) -> None:
        """Begin, or cease, to keep note of keys that lose their rows."""

    def forget_removals(self, before_step: int) -> None:
        """Keep no note any more of what was removed before this step."""

    def load(self, table: str, state: DynamicState) -> int:
        """Replace a table's rows; returns how many ids found no room."""


def live_tables(model: nn.Module) -> dict[str, HeldTables]:
    """What holds each table that grows, on this rank; all ranks hold a part of each."""
    found: dict[str, HeldTables] = {}
    for kernel, names in kernels_of(model):
        held: Any = kernel.emb_module
        if holds_growing(held):
            found |= dict.fromkeys(names, cast(HeldTables, held))
    return dict(sorted(found.items()))


def dynamic_tensors(held: Mapping[str, HeldTables], group: dist.ProcessGroup | None = None) -> dict[str, Writable]:
    """Everything that this rank gives to a checkpoint: copies, which training does not change. All ranks must call it together.

    Args:
        held: as `live_tables` gives it.
        group: of all ranks, on the CPU; None: the default one.
    """
    states = {table: kernel.dump(table) for table, kernel in held.items()}
    places = _places([(len(state.keys), len(state.counted_keys)) for state in states.values()], group)
    found: dict[str, Writable] = {}
    for (table, state), (rows, counted) in zip(states.items(), places, strict=True):
        found |= row_tensors(table, columns_of(state), rows, is_copy=True)
        found |= row_tensors(table, counted_columns(state.counted_keys, state.counts), counted, is_copy=True)
        numbers = of_all_ranks(number_row(state, held[table].tables.step), group)
        found |= common_tensors(table, state.default, state.unadmitted, torch.stack(numbers))
    return found


def dynamic_names(held: Mapping[str, HeldTables]) -> set[str]:
    """The names that `dynamic_tensors` gives, of all ranks."""
    return {f"{PREFIX}{table}/{part}" for table, kernel in held.items() for part in (*FIXED_PARTS, *moment_names(kernel))}


def moment_names(kernel: HeldTables) -> list[str]:
    """What its optimiser keeps of each row."""
    return [moment.name for moment in kernel.tables.optimizer.moments]


def score_strategy(kernel: HeldTables, table: str) -> ScoreStrategy:
    """Which ids of a table give way."""
    return _described(kernel, table).options.score_strategy


def notes_of(held: Mapping[str, HeldTables]) -> dict[str, DynamicNotes]:
    """What the manifest says of each table."""
    return {table: _notes(_described(kernel, table).options) for table, kernel in held.items()}


def restore_dynamic(held: Mapping[str, HeldTables], folder: Path, notes: Mapping[str, DynamicNotes], rank: int, ranks: int) -> list[str]:
    """Give each table on this rank its part.

    Args:
        held: as `live_tables` gives it.
        folder: of the tensors.
        notes: what the manifest says of each table.
        rank: this one.
        ranks: of how many.

    Returns:
        what a user should know of ids that found no row.

    Raises:
        CheckpointError: a table is missing, or its vectors, moments or scores are of another kind; nothing was filled then.
    """
    index = read_index(folder) if held else None
    problems = [f"{PREFIX}{table}/{KEYS} is missing" for table in held if table not in notes]
    stored = {table: StoredDynamic(folder, table, notes[table], index) for table in held if table in notes}
    problems += [problem for table, found in stored.items() for problem in differences(held[table], table, found)]
    if problems:
        raise CheckpointError(f"{folder} does not fit the model: {'; '.join(problems)}")
    told = []
    for table, found in stored.items():  # first: ids that find no room go after this step
        held[table].step = max(held[table].step, found.step)
    for table, found in stored.items():
        told += take_state(held[table], table, read_state(held[table], table, found, rank, ranks))
        held[table].tables.step = found.updates
    return told


def read_state(kernel: HeldTables, table: str, stored: StoredDynamic, rank: int, ranks: int, *, moments: bool = True) -> DynamicState:
    """What a stored table has for a rank of so many; where the table that takes it has a second tier, large parts are in files, not in memory."""
    has_file = _described(kernel, table).options.local_hbm_for_values is not None
    return stored.state(rank, ranks, moments=moments, aside=_aside(stored.folder) if has_file else None)


def take_state(kernel: HeldTables, table: str, state: DynamicState) -> list[str]:
    """Fill a table; tells how many ids found no row."""
    dropped = kernel.load(table, state)
    return [f"table {table!r}: {dropped:,} ids of this rank, those of the lowest scores, have no row any more"] if dropped else []


def differences(kernel: HeldTables, table: str, stored: StoredDynamic) -> list[str]:
    """What of a stored table does not fit one that is held; a sentence for each."""
    own, weight = _described(kernel, table), stored.infos[WEIGHT]
    problems = []
    if stored.dim != own.dim:
        problems.append(f"table {table!r} has embedding_dim {own.dim}, the checkpoint {stored.dim}")
    if weight.dtype != kernel.dtype:
        problems.append(f"table {table!r} is {dtype_name(kernel.dtype)}, and {dtype_name(weight.dtype)} in the checkpoint")
    strategy = own.options.score_strategy
    if stored.notes.score_strategy != strategy:
        problems.append(f"table {table!r} has score_strategy {strategy}, the checkpoint {stored.notes.score_strategy}: scores mean something else")
    wanted = {
        moment.name: TensorInfo((stored.num_ids,) if moment.per_row else (stored.num_ids, stored.dim), torch.float32)
        for moment in kernel.tables.optimizer.moments
    }
    there = {name: stored.infos[name] for name in stored.moments}
    if wanted != there and stored.dim == own.dim:
        problems.append(f"table {table!r}: the optimiser keeps {_moments(wanted)}, and the checkpoint has {_moments(there)}: it was another one")
    return problems


def _aside(folder: Path) -> Path:
    """Where what is larger than memory is read into files that go with the process: the run's folder, if it can be written."""
    run = folder.resolve().parent.parent
    return run if os.access(run, os.W_OK) else Path(tempfile.gettempdir())


def _notes(options: DynamicEmbOptions) -> DynamicNotes:
    return DynamicNotes(max_capacity=options.max_capacity, score_strategy=str(options.score_strategy), numbers=name_numbers(COUNTERS))


def _described(kernel: HeldTables, table: str) -> DynamicTable:
    return next(one for one in kernel.described if one.name == table)


def _places(counts: list[tuple[int, int]], group: dist.ProcessGroup | None) -> list[tuple[Place, Place]]:
    """Where this rank's rows, and ids that wait, lie among those of all ranks."""
    by_rank = torch.stack(of_all_ranks(torch.tensor(counts, dtype=torch.int64).view(-1, 2), group))  # [ranks, tables, 2]
    before, total = by_rank[: dist.get_rank() if dist.is_initialized() else 0].sum(0).tolist(), by_rank.sum(0).tolist()
    return [(Place(first[0], own[0], whole[0]), Place(first[1], own[1], whole[1])) for first, own, whole in zip(before, counts, total, strict=True)]


def _moments(infos: Mapping[str, TensorInfo]) -> str:
    shown = [f"{name}{' by row' if len(info.shape) == 1 else ''}" for name, info in sorted(infos.items())]
    return ", ".join(shown) or "nothing"
