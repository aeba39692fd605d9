"""What NVIDIA's kernel knows, to and from our states: by way of the files that its own functions write and read.

Files of a table, for each rank R of W, with ending `.rank_R.world_size_W`: `_emb_keys` int64, `_emb_values` (of the table's type; before, float32),
`_emb_scores` int64, `_emb_opt_values` of the type of the values, `_counter_keys` and `_counter_frequencies` int64; and `_opt_args.json` of all ranks.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from emberline.errors import CheckpointError
from emberline.train.dynamic.initial_values import first_vectors, stream
from emberline.train.dynamic.nvidia import OURS_INSTEAD, NvidiaPackage
from emberline.train.dynamic.options import ScoreStrategy
from emberline.train.dynamic.state import DynamicState, DynamicTable
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


def dump_tables(
    package: NvidiaPackage, model: nn.Module, tables: Mapping[str, StoredTable], folder: Path, *, step: int, seed: int = 0
) -> dict[str, DynamicState]:
    """What this rank holds of every table. All ranks call it.

    Args:
        package: NVIDIA's.
        model: sharded.
        tables: by name, those that grow.
        folder: empty or new, seen by all ranks; what is written there may be removed afterwards.
        step: training steps so far.
        seed: of the run.

    Raises:
        CheckpointError: files are missing, or do not fit together.
    """
    named = {"counter": True} if package.dumps_counters else {}
    package.top.DynamicEmbDump(str(folder), model, optim=True, **named)
    rank, ranks = _rank()
    return {name: _read(folder, stored, rank, ranks, step, seed) for name, stored in tables.items()}


def load_tables(
    package: NvidiaPackage, model: nn.Module, tables: Mapping[str, StoredTable], states: Mapping[str, DynamicState], folder: Path
) -> None:
    """Give the kernels what this rank has of every table. All ranks call it, and which of them has an id does not matter.

    Args:
        package: NVIDIA's.
        model: sharded, its tables empty.
        tables: by name, those that grow.
        states: of the same.
        folder: empty or new, seen by all ranks.

    Raises:
        CheckpointError: their loading would lose ids, or they describe no such table.
    """
    rank, ranks = _rank()
    for name, state in states.items():
        _refuse_lost(package, name, state.keys, ranks)
    described, given = folder / "described", folder / "given"
    package.top.DynamicEmbDump(str(described), model, optim=True)  # each table in its own words; we only bring rows and ids
    files = ranks + 1 if ranks > 1 else 1  # with as many files as ranks, each would read its own alone
    for name, state in states.items():
        about = _only(described, f"{name}_opt_args.json")
        target = given / about.parent.relative_to(described)
        target.mkdir(parents=True, exist_ok=True)
        _write(target, tables[name], state, rank, files, package.dumps_counters)
        if rank == 0:
            _describe(about, target, tables[name], state)
            if files > ranks:
                _write(target, tables[name], _none_of(state), ranks, files, package.dumps_counters)
    if dist.is_initialized():
        dist.barrier()
    named = {"counter": True} if package.dumps_counters else {}
    package.top.DynamicEmbLoad(str(given), model, optim=True, **named)


def _read(folder: Path, stored: StoredTable, rank: int, ranks: int, step: int, seed: int) -> DynamicState:
    table, ending = stored.table, f".rank_{rank}.world_size_{ranks}"
    found = _only(folder, f"{table.name}_emb_keys{ending}")
    start = str(found).removesuffix(f"_emb_keys{ending}")
    keys = _numbers(found)
    kind = _value_type(Path(f"{start}_emb_values{ending}"), len(keys) * table.dim, stored.dtype)
    weights = _rows(Path(f"{start}_emb_values{ending}"), len(keys), kind).reshape(len(keys), table.dim).to(stored.dtype)
    scores = _numbers(Path(f"{start}_emb_scores{ending}"), len(keys))
    counted, counts = _numbers(Path(f"{start}_counter_keys{ending}"), 0), _numbers(Path(f"{start}_counter_frequencies{ending}"), 0)
    if len(counted) != len(counts):
        raise CheckpointError(f"{start}_counter_*: {len(counted)} ids and {len(counts)} counts")
    kept = _rows(Path(f"{start}_emb_opt_values{ending}"), len(keys), kind) if stored.moments else torch.empty(len(keys), 0)
    order, counted_order = torch.argsort(keys), torch.argsort(counted)
    moments = {name: values[order] for name, values in _moments(start, stored, kept.float()).items()}
    by_strategy = _our_scores(table.options.score_strategy, scores)[order]
    is_step = table.options.score_strategy is ScoreStrategy.STEP
    admission = table.options.admission
    return DynamicState(
        keys=keys[order],
        weights=weights[order].contiguous(),
        moments=moments,
        last_steps=by_strategy.clone() if is_step else torch.full((len(keys),), step, dtype=torch.int64),
        scores=by_strategy,
        counted_keys=counted[counted_order],
        counts=counts[counted_order],
        default=torch.full((table.dim,), table.options.eval_initializer.value),
        unadmitted=torch.zeros(table.dim)
        if admission is None
        else torch.from_numpy(
            first_vectors(admission.initializer, stream(seed, table.name, "unadmitted"), np.zeros(1, dtype=np.int64), table.dim)[0]
        ),
        step=step,
    )


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


def _describe(about: Path, folder: Path, stored: StoredTable, state: DynamicState) -> None:
    """The table's own description, of values of float32 and with the step that comes next."""
    words = json.loads(about.read_text())
    words |= {name: "float32" for name in ("embedding_dtype", "optim_state_dtype") if name in words}
    if stored.table.options.score_strategy is ScoreStrategy.STEP:
        words["step_score"] = state.step + 1
    if "iters" in words:
        words["iters"] = state.step
    (folder / about.name).write_text(json.dumps(words))


def _refuse_lost(package: NvidiaPackage, name: str, keys: Tensor, ranks: int) -> None:
    """Their routing takes ids as unsigned, their loading took them as signed: of negative ids both agree for 1, 2, 4, 8, ... ranks alone."""
    negative = int((keys < 0).sum())
    if package.ids_are_unsigned or ranks & (ranks - 1) == 0 or not negative:
        return
    lost = f"table {name!r}: {package} would lose {negative} negative ids as it loads them on {ranks} ranks"
    raise CheckpointError(f"{lost}; update it, take 1, 2, 4 or 8 ranks, {OURS_INSTEAD}")


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


def _numbers(path: Path, missing: int | None = None) -> Tensor:
    """int64 [n] of a file; zeros [missing] where there is none."""
    if not path.is_file():
        if missing is None:
            raise CheckpointError(f"{path}: missing")
        return torch.zeros(missing, dtype=torch.int64)
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


def _rank() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
