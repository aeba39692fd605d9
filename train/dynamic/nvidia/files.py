"""What NVIDIA's kernel knows, to and from our states: by way of the files that its own functions write and read.

Files of a table, for each rank R of W, with ending `.rank_R.world_size_W`: `_emb_keys` int64, `_emb_values` (of the table's type; before, float32),
`_emb_scores` int64, `_emb_opt_values` of the type of the values, `_counter_keys` and `_counter_frequencies` int64; and `_opt_args.json` of all ranks.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emberline.errors import CheckpointError
from emberline.train.dynamic.initial_values import fixed_vectors
from emberline.train.dynamic.nvidia.package import OURS_INSTEAD, NvidiaPackage
from emberline.train.dynamic.options import ScoreStrategy
from emberline.train.dynamic.state import DynamicState, DynamicTable, chosen_of
from emberline.train.kernels import Moment

_US = 1_000
"""Nanoseconds of a microsecond: their ages are in those, our times in these."""


@dataclass(frozen=True)
class StoredTable:
    """What is to be known of a table to read its files.

    Args:
        table: ours.
        dtype: of its weights.
        moments: that its optimiser keeps, in order.
    """

    table: DynamicTable
    dtype: torch.dtype
    moments: tuple[Moment, ...]


def nvidia_owner_of(keys: Tensor, ranks: int) -> Tensor:
    """Which of so many ranks has each id, int64 [n]: the remainder of its 64 bits as an unsigned number."""
    remainders = torch.remainder(keys, ranks)
    return torch.where(keys < 0, (remainders + 2**64 % ranks) % ranks, remainders)


def own_part(states: Sequence[DynamicState], rank: int) -> DynamicState:
    """What one rank has of a table, by the kernel's rule, of the states of as many ranks by any other rule; keys ascending."""
    ranks = len(states)
    keys, counted = (torch.cat(parts) for parts in zip(*((state.keys, state.counted_keys) for state in states), strict=True))
    own, own_counted = (torch.argsort(ids)[nvidia_owner_of(ids.sort().values, ranks) == rank] for ids in (keys, counted))
    return replace(chosen_of(states, own, own_counted), counters=states[rank].counters, step=max(state.step for state in states))


def refuse_lost(package: NvidiaPackage, name: str, keys: Tensor, ranks: int) -> None:
    """Their routing takes ids as unsigned, their loading took them as signed: of negative ids both agree for 1, 2, 4, 8, ... ranks alone.

    Raises:
        CheckpointError: ids would be lost; how many, and what to do.
    """
    negative = int((keys < 0).sum())
    if package.ids_are_unsigned or ranks & (ranks - 1) == 0 or not negative:
        return
    lost = f"table {name!r}: {package} would lose {negative} negative ids as it loads them on {ranks} ranks"
    raise CheckpointError(f"{lost}; update it, take 1, 2, 4 or 8 ranks, {OURS_INSTEAD}")


def read_table(folder: Path, stored: StoredTable, rank: int, ranks: int, step: int, seed: int) -> DynamicState:
    """What a rank wrote of a table.

    Args:
        folder: of the files.
        stored: the table.
        rank: whose part.
        ranks: of how many.
        step: training steps so far.
        seed: of the run.

    Raises:
        CheckpointError: files are missing, or do not fit together.
    """
    table, ending = stored.table, f".rank_{rank}.world_size_{ranks}"
    found = _only(folder, f"{table.name}_emb_keys{ending}")
    start = str(found).removesuffix(f"_emb_keys{ending}")
    keys = _numbers(found)
    kind = _value_type(Path(f"{start}_emb_values{ending}"), len(keys) * table.dim, stored.dtype)
    weights = _rows(Path(f"{start}_emb_values{ending}"), len(keys), kind).reshape(len(keys), table.dim).to(stored.dtype)
    scores = _numbers(Path(f"{start}_emb_scores{ending}"), len(keys), len(keys))
    counted, counts = _numbers(Path(f"{start}_counter_keys{ending}"), 0), _numbers(Path(f"{start}_counter_frequencies{ending}"), 0)
    if len(counted) != len(counts):
        raise CheckpointError(f"{start}_counter_*: {len(counted)} ids and {len(counts)} counts")
    kept = _rows(Path(f"{start}_emb_opt_values{ending}"), len(keys), kind) if stored.moments else torch.empty(len(keys), 0)
    order, counted_order = torch.argsort(keys), torch.argsort(counted)
    moments = {name: values[order] for name, values in _moments(start, stored, kept.float()).items()}
    by_strategy = _our_scores(table.options.score_strategy, scores)[order]
    is_step = table.options.score_strategy is ScoreStrategy.STEP
    fixed = torch.from_numpy(fixed_vectors(seed, table.name, table.dim, table.options))
    return DynamicState(
        keys=keys[order],
        weights=weights[order].contiguous(),
        moments=moments,
        last_steps=by_strategy.clone() if is_step else torch.full((len(keys),), step, dtype=torch.int64),
        scores=by_strategy,
        counted_keys=counted[counted_order],
        counts=counts[counted_order],
        default=fixed[0].clone(),
        unadmitted=fixed[1].clone(),
        step=step,
    )


def write_table(
    folder: Path, stored: StoredTable, state: DynamicState, rank: int, ranks: int, *, description: dict[str, Any], counters: bool
) -> None:
    """What a rank is to load of a table; files of other ranks, which it looks for and reads no further, have nothing in them.

    Args:
        folder: gets the files.
        stored: the table.
        state: with the ids of this rank alone.
        rank: this one.
        ranks: of how many.
        description: what the kernel says of the table itself: some releases say more than others.
        counters: whether its release knows counters of admission.
    """
    for other in range(ranks):
        _write(folder, stored, state if other == rank else _none_of(state), other, ranks, counters)
    words = description | {name: "float32" for name in ("embedding_dtype", "optim_state_dtype") if name in description}
    words |= {"iters": state.step} if "iters" in words else {}
    words |= {"step_score": state.step + 1} if stored.table.options.score_strategy is ScoreStrategy.STEP else {}
    (folder / description_name(stored.table.name)).write_text(json.dumps(words))


def description_name(table: str) -> str:
    """The file in which the kernel describes a table; its first rank writes it."""
    return f"{table}_opt_args.json"


def _write(folder: Path, stored: StoredTable, state: DynamicState, rank: int, ranks: int, counters: bool) -> None:
    """Values and moments as float32, which every release reads."""
    name, ending = stored.table.name, f".rank_{rank}.world_size_{ranks}"
    kept = [values[:, None] if values.dim() == 1 else values for values in (state.moments[moment.name].float() for moment in stored.moments)]
    parts = {
        "_emb_keys": state.keys,
        "_emb_values": state.weights.float(),
        "_emb_scores": _their_scores(stored.table.options.score_strategy, state.scores),
    }
    parts |= {"_emb_opt_values": torch.cat(kept, dim=1)} if kept else {}
    parts |= {"_counter_keys": state.counted_keys, "_counter_frequencies": state.counts} if counters else {}
    for part, tensor in parts.items():
        (folder / f"{name}{part}{ending}").write_bytes(tensor.contiguous().numpy().tobytes())


def _moments(start: str, stored: StoredTable, kept: Tensor) -> dict[str, Tensor]:
    """[K, all numbers of the optimiser] -> each moment. Of one number a row, the file may have 16 bytes, of which the first number counts."""
    if not stored.moments:
        return {}
    if not len(kept):
        return {moment.name: torch.empty((0,) if moment.per_row else (0, stored.table.dim)) for moment in stored.moments}
    if all(moment.per_row for moment in stored.moments):
        if not kept.shape[1]:
            raise CheckpointError(f"{start}_emb_opt_values*: no number for each row")
        return {moment.name: kept[:, place].clone() for place, moment in enumerate(stored.moments)}
    width = len(stored.moments) * stored.table.dim
    if kept.shape[1] != width:
        raise CheckpointError(
            f"{start}_emb_opt_values*: {kept.shape[1]} numbers a row, and the optimiser keeps {width}; was it trained with another?"
        )
    parts = kept.reshape(len(kept), len(stored.moments), stored.table.dim)
    return {moment.name: parts[:, place].clone() for place, moment in enumerate(stored.moments)}


def _our_scores(strategy: ScoreStrategy, scores: Tensor) -> Tensor:
    """Theirs of TIMESTAMP are ages, in nanoseconds; ours are microseconds since 1970."""
    return time.time_ns() // _US - scores // _US if strategy is ScoreStrategy.TIMESTAMP else scores


def _their_scores(strategy: ScoreStrategy, scores: Tensor) -> Tensor:
    return (time.time_ns() // _US - scores).clamp(min=0) * _US if strategy is ScoreStrategy.TIMESTAMP else scores


def _none_of(state: DynamicState) -> DynamicState:
    """The same table without rows."""
    empty = torch.empty(0, dtype=torch.int64)
    moments = {name: values[:0] for name, values in state.moments.items()}
    return DynamicState(empty, state.weights[:0], moments, empty, empty, empty, empty, state.default, state.unadmitted, step=state.step)


def _numbers(path: Path, missing: int | None = None, count: int | None = None) -> Tensor:
    """int64 [n] of a file, of which n is `count` where that is known; zeros [missing] where there is none."""
    if not path.is_file():
        if missing is None:
            raise CheckpointError(f"{path}: missing")
        return torch.zeros(missing, dtype=torch.int64)
    size = path.stat().st_size
    if size % 8 or count not in (None, size // 8):
        raise CheckpointError(f"{path}: {size} bytes, and {'numbers' if count is None else f'{count} numbers'} have 8 each")
    return torch.from_numpy(np.fromfile(path, dtype=np.int64))


def _value_type(path: Path, numbers: int, dtype: torch.dtype) -> torch.dtype:
    """float32, or the table's own type where the file has as many bytes."""
    if not path.is_file():
        raise CheckpointError(f"{path}: missing")
    size = path.stat().st_size
    for kind in (torch.float32, dtype):
        if size == numbers * kind.itemsize:
            return kind
    raise CheckpointError(f"{path}: {size} bytes, and {numbers} numbers have {numbers * 4} or {numbers * dtype.itemsize}")


def _rows(path: Path, rows: int, kind: torch.dtype) -> Tensor:
    """[rows, numbers of each]."""
    if not path.is_file():
        raise CheckpointError(f"{path}: missing")
    raw = torch.from_numpy(np.fromfile(path, dtype=np.uint8))
    if not rows:
        return torch.empty(0, 0, dtype=kind)
    if len(raw) % (rows * kind.itemsize):
        raise CheckpointError(f"{path}: {len(raw)} bytes are no whole numbers for {rows} rows")
    return raw.view(kind).reshape(rows, -1)


def _only(folder: Path, name: str) -> Path:
    found = sorted(folder.rglob(name))
    if len(found) != 1:
        raise CheckpointError(f"{folder}: {len(found)} files {name} where NVIDIA's kernel was to write one")
    return found[0]
