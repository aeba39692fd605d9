"""What tables that grow have learnt between two steps, on disk: `RUN/increments/BASE-STEP/`.

manifest.json        which run and which states it leads from and to, the tables, size and sha256 of each file; written last
rank-R.safetensors   of each table, on rank R: `keys` that training read since the base, with `weight` and moments in their own types, `last_steps`
                     and `scores`; keys that were `removed`; ids that wait for admission with their `counts`; `numbers`

Each leads from the state where the one before ended, or from a checkpoint. A state has a mark, drawn by chance, which the checkpoint of that step has
too: so increments of another run, or of the same run before it was killed and went on otherwise, fit nowhere.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from emberline.errors import CheckpointError, first_line
from emberline.manifest import MANIFEST_NAME, FileEntry, find_damage, read_manifest
from emberline.train.checkpoint.dynamic_drafts import number_row
from emberline.train.checkpoint.stored_dynamic import COUNTED_KEYS, COUNTS, KEYS, LAST_STEPS, NUMBERS, SCORES, WEIGHT, DynamicNotes
from emberline.train.dynamic.state import DynamicState

FOLDER_NAME = "increments"
FORMAT = "emberline.increment.v1"
REMOVED = "removed"


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
