"""Tables that grow of a run that begins, filled from another's: from a table that grows there too, or from a ZCH table.

A ZCH table's ids get rows of their own, whatever rank had them; what policies kept of each becomes its score:

    counts             ──►  the score of LFU
    last_access_iter   ──►  the last step, and the score of STEP
    last_seen_hour     ──►  the score of TIMESTAMP
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from emberline.errors import CheckpointError
from emberline.routing import MIXED, owner_of
from emberline.train.checkpoint.live_dynamic import HeldTables, differences, read_state, score_strategy, take_state
from emberline.train.checkpoint.stored_dynamic import StoredDynamic
from emberline.train.checkpoint.stored_rows import read_rows
from emberline.train.checkpoint.tensors import describe_tensors
from emberline.train.dynamic.options import ScoreStrategy
from emberline.train.dynamic.state import DynamicState
from emberline.train.zch import FREE_ROW, WholeMap

_MOST_STEPS = 2**32 - 2
_HOUR_US = 3_600_000_000


def take_growing(kernel: HeldTables, table: str, stored: StoredDynamic, rank: int, ranks: int, *, with_progress: bool) -> list[str]:
    """Fill a table from one that grows too.

    Args:
        kernel: holds it on this rank.
        table: its name.
        stored: what it is filled from.
        rank: this one.
        ranks: of how many.
        with_progress: with moments and counters; else ids, vectors, last steps, scores, and counts of ids that wait.

    Returns:
        what a user should know.

    Raises:
        CheckpointError: with progress: moments or scores are of another kind.
    """
    if with_progress:
        problems = differences(kernel, table, stored)
        if problems:
            raise CheckpointError("; ".join(problems))
        told = take_state(kernel, table, read_state(kernel, table, stored, rank, ranks))
        kernel.tables.step = max(kernel.tables.step, stored.updates)
        return told
    state = read_state(kernel, table, stored, rank, ranks, moments=False)
    state = replace(state, moments=fresh_moments(kernel, table, len(state.keys)), counters=dict.fromkeys(state.counters, 0))
    strategy = score_strategy(kernel, table)
    if strategy == stored.notes.score_strategy:
        return take_state(kernel, table, state)
    told = take_state(kernel, table, replace(state, scores=_scores(strategy, state.last_steps, {})))
    return [*told, f"table {table!r}: scores begin anew, as they were {stored.notes.score_strategy} and are {strategy}"]


def take_zch(
    kernel: HeldTables, table: str, folder: Path, source: tuple[str, WholeMap], rank: int, ranks: int, *, with_progress: bool, fallback: bool
) -> list[str]:
    """Fill a table from a ZCH table.

    Args:
        kernel: holds it on this rank.
        table: its name.
        folder: of the tensors.
        source: the ZCH table's name, and its id map.
        rank: this one.
        ranks: of how many.
        with_progress: with moments.
        fallback: let unknown ids read what they read there: the mean of the fallback rows of its parts.

    Returns:
        what a user should know.

    Raises:
        CheckpointError: with progress: the moments there are of another optimiser.
    """
    (name, whole), fresh = source, kernel.dump(table)
    entries = {part: values[whole.entries["raw_ids"] != FREE_ROW] for part, values in whole.entries.items()}
    mine = (owner_of(entries["raw_ids"], ranks, MIXED) == rank).nonzero().flatten()
    mine = mine[torch.argsort(entries["raw_ids"][mine])]
    own = {part: values[mine] for part, values in entries.items()}
    steps = own.get("last_access_iter", torch.zeros_like(mine)).clamp(0, _MOST_STEPS)
    moments = _read_moments(kernel, table, folder, name, own["rows"]) if with_progress else fresh_moments(kernel, table, len(mine))
    state = replace(
        fresh,
        keys=own["raw_ids"],
        weights=read_rows(folder, f"tables/{name}/weight", own["rows"]),
        moments=moments,
        last_steps=steps,
        scores=_scores(score_strategy(kernel, table), steps, own),
        step=int(steps.max()) if len(steps) else 0,
    )
    if fallback:
        rows = read_rows(folder, f"tables/{name}/weight", torch.tensor(whole.ends[1:]) - 1)
        state = replace(state, default=rows.double().mean(0).float())
    told = [f"table {table!r}: {len(entries['raw_ids']):,} ids of the ZCH table {name!r} get rows of their own"] if rank == 0 else []
    return told + take_state(kernel, table, state)


def fresh_moments(kernel: HeldTables, table: str, rows: int) -> dict[str, Tensor]:
    """What the optimiser keeps of rows that have learnt nothing; all rows are one in memory, and only to be read."""
    dim = next(one.dim for one in kernel.described if one.name == table)
    kept = kernel.tables.optimizer.moments
    return {moment.name: torch.tensor(moment.begins_with, dtype=torch.float32).expand((rows,) if moment.per_row else (rows, dim)) for moment in kept}


def _read_moments(kernel: HeldTables, table: str, folder: Path, name: str, rows: Tensor) -> dict[str, Tensor]:
    stored, found = describe_tensors(folder), {}
    for moment, begun in fresh_moments(kernel, table, len(rows)).items():
        info = stored.get(f"tables/{name}/{moment}")
        if info is None or info.shape[1:] != begun.shape[1:]:
            raise CheckpointError(f"table {table!r}: the optimiser keeps {moment!r}, which the checkpoint has not: it was another one")
        found[moment] = read_rows(folder, f"tables/{name}/{moment}", rows)
    return found


def _scores(strategy: ScoreStrategy, steps: Tensor, kept: dict[str, Tensor]) -> Tensor:
    """What ids are worth, by what is known of them."""
    nothing = torch.zeros_like(steps)
    if strategy is ScoreStrategy.STEP:
        return steps
    if strategy is ScoreStrategy.LFU:
        return kept.get("counts", nothing + 1)
    return kept.get("last_seen_hour", nothing) * _HOUR_US if strategy is ScoreStrategy.TIMESTAMP else nothing


def level_steps(held: Mapping[str, HeldTables]) -> None:
    """Let all tables count steps from where the latest is: they all see the same batches."""
    latest = max((kernel.step for kernel in held.values()), default=0)
    for kernel in held.values():
        kernel.step = latest


def merged(state: DynamicState, keys: Tensor, vectors: Tensor, kernel: HeldTables, table: str) -> DynamicState:
    """A state with other vectors of some ids; those that are new are as if the last step had read them once.

    Args:
        state: as it is.
        keys: int64 [n], ascending.
        vectors: [n, dim] of the table's dtype.
        kernel: holds the table.
        table: its name.
    """
    old = ~torch.isin(state.keys, keys)
    places = torch.searchsorted(state.keys, keys).clamp_(max=max(len(state.keys) - 1, 0))
    known = state.keys[places] == keys if len(state.keys) else torch.zeros(len(keys), dtype=torch.bool)
    steps = torch.full_like(keys, state.step)
    fresh = {"last_steps": steps, "scores": _scores(score_strategy(kernel, table), steps, {}), **fresh_moments(kernel, table, len(keys))}
    before = {"last_steps": state.last_steps, "scores": state.scores, **state.moments}
    for name, begun in fresh.items():
        fresh[name] = values = begun.clone(memory_format=torch.contiguous_format)
        values[known] = before[name][places[known]]
    waits = ~torch.isin(state.counted_keys, keys)  # who has a row waits for none
    order = torch.argsort(torch.cat([state.keys[old], keys]))
    joined = {name: torch.cat([before[name][old], fresh[name]])[order] for name in fresh}
    return replace(
        state,
        keys=torch.cat([state.keys[old], keys])[order],
        weights=torch.cat([state.weights[old], vectors])[order],
        moments={name: joined[name] for name in state.moments},
        last_steps=joined["last_steps"],
        scores=joined["scores"],
        counted_keys=state.counted_keys[waits],
        counts=state.counts[waits],
    )
