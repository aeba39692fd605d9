"""Ids of tables that grow taken out of a checkpoint because training has not read them for long."""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.dynamic_drafts import DynamicDraft
from emberline.train.checkpoint.increments import new_mark
from emberline.train.checkpoint.rewrite import Changes, open_checkpoint, rewrite_checkpoint
from emberline.train.checkpoint.stored_dynamic import COUNTED_KEYS, COUNTS, DEFAULT, KEYS, LAST_STEPS, UNADMITTED, StoredDynamic
from emberline.train.checkpoint.tensors import read_index
from emberline.train.features.sentences import given_again, unknown_name

EXPIRED = "expired"
_MOST_STEPS = 2**63 - 1
_AGE = re.compile(r"([1-9][0-9]{0,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_age(text: str) -> int:
    """`30d`, `12h`, `90m` or `2w`: seconds.

    Raises:
        ValueError: it is not of that form.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a whole number with m, h, d or w (minutes, hours, days, weeks), found {text!r}")
    return int(match[1]) * _SECONDS[match[2]]


def expire_ids(
    checkpoint: Path,
    output: Path,
    tell: Callable[[str], None],
    *,
    older_than_s: int | None = None,
    before_step: int | None = None,
    tables: Sequence[str] = (),
) -> Path:
    """Write `output/step-N` without the ids that training read last before a time or a step; a run goes on from it with `--resume`.

    Args:
        checkpoint: a step-N folder, or a run's folder: its newest.
        output: a new or empty folder.
        tell: gets lines for people.
        older_than_s: seconds before the checkpoint's last step. Times of steps are known to a minute or so: an id stays where it may be younger.
        before_step: a training step, instead.
        tables: which ones; empty: all that grow.

    Raises:
        CheckpointError: the checkpoint is damaged, has no such tables, or does not know the times of its steps.
        ConfigError: no table that grows has such a name, or the output cannot be used.
    """
    assert (older_than_s is None) != (before_step is None)
    info, layout, progress = open_checkpoint(checkpoint)
    problems = [f"--table: {unknown_name('table that grows', table, list(layout.dynamic))}" for table in tables if table not in layout.dynamic]
    problems += given_again("--table: table", list(tables))
    if problems:
        raise ConfigError(problems)
    if before_step is None:
        assert older_than_s is not None
        before_step = _step_of(info.path, progress.times, older_than_s, tell)
    index = read_index(info.path / store.TENSORS_NAME)
    drafts = []
    for table in tables or layout.dynamic:
        stored = StoredDynamic(info.path / store.TENSORS_NAME, table, layout.dynamic[table], index)
        keys, last_steps = stored.whole(KEYS), stored.whole(LAST_STEPS)
        draft = without(stored, last_steps < min(before_step, _MOST_STEPS))
        tell(f"table {table!r}: {len(keys) - len(draft.keys):,} of {len(keys):,} ids go, which training read last before step {before_step}")
        drafts.append(draft)
    tensors = {name: tensor for draft in drafts for name, tensor in draft.tensors().items()}
    dynamic = {draft.table: draft.notes for draft in drafts}
    changes = Changes(tensors=tensors, dynamic=dynamic, progress=replace(progress, mark=new_mark()), step=info.step)
    return rewrite_checkpoint(info, changes, output)


def without(stored: StoredDynamic, gone: Tensor) -> DynamicDraft:
    """A table without some rows; they are counted as expired.

    Args:
        stored: the table.
        gone: bool [K].
    """
    keys, rows = stored.whole(KEYS), (~gone).nonzero().flatten()
    numbers = stored.numbers.clone()
    if EXPIRED in stored.notes.numbers:
        numbers[0, stored.notes.numbers.index(EXPIRED)] += int(gone.sum())
    return DynamicDraft(
        table=stored.table,
        ranks=len(numbers),
        keys=keys[rows],
        places=torch.stack([torch.zeros_like(rows), rows], dim=1),
        sources=[stored],
        columns={part: (stored.infos[part].dtype, stored.infos[part].shape[1:]) for part in stored.row_parts if part != KEYS},
        counted_keys=stored.whole(COUNTED_KEYS),
        counts=stored.whole(COUNTS),
        default=stored.whole(DEFAULT),
        unadmitted=stored.whole(UNADMITTED),
        numbers=numbers,
        notes=stored.notes,
    )


def _step_of(path: Path, times: Sequence[tuple[int, int]], older_than_s: int, tell: Callable[[str], None]) -> int:
    """The first step that is young enough."""
    if not times:
        raise CheckpointError(f"{path} does not know when its steps were done; give --before-step")
    end = times[-1][1]
    limit = end - older_than_s
    latest = itertools.accumulate((time for _, time in times), max)
    told = [pair for pair, so_far in zip(times, latest, strict=True) if pair[1] == so_far]  # what a clock that was set back says is not known
    old = [step for step, _ in itertools.takewhile(lambda pair: pair[1] <= limit, told)]
    tell(f"the last step was done at {_utc(end)}; ids that training read last before {_utc(limit)} go")
    return old[-1] + 1 if old else 0


def _utc(time: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):  # before the year 1
        return f"{time:,} s after 1970"
