"""What a checkpoint holds, in lines for a terminal, and what other numbers of ranks would make of it. Of large tensors only the index is read."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from emberline.errors import CheckpointError, ConfigError
from emberline.text_table import columns
from emberline.train.checkpoint import store
from emberline.train.checkpoint.configs import read_checkpoint_config
from emberline.train.checkpoint.dynamic_report import RESHARDED, dynamic_rows, open_tables, reshard_cells
from emberline.train.checkpoint.id_maps import read_whole_map
from emberline.train.checkpoint.layout import Layout
from emberline.train.checkpoint.ranks import spread_text
from emberline.train.checkpoint.run_state import OTHER_PARTS_STEP, read_layout, read_progress
from emberline.train.checkpoint.tensors import TensorInfo, describe_tensors, dtype_name, load_tensors, read_tensors
from emberline.train.features.configs import HASHED
from emberline.train.models import build_model, features_of
from emberline.train.zch import BY_RANGE, FREE_ROW, IdMap, zch_modules

_OTHERS = {
    "dense": "dense parameters and buffers",
    "dense_optim": "the dense optimiser's state",
    "ema": "moving averages",
    "scaler": "the loss scale",
}


@dataclass
class _Table:
    """What is stored of one table."""

    name: str
    weight: TensorInfo = field(default_factory=lambda: TensorInfo((0, 0), torch.float32))
    moments: dict[str, TensorInfo] = field(default_factory=dict)
    updates: int | None = None
    ids: str = "-"

    @property
    def num_bytes(self) -> int:
        """Of the vectors and moments."""
        return _bytes(self.weight) + sum(map(_bytes, self.moments.values()))


def checkpoint_lines(info: store.CheckpointInfo) -> list[str]:
    """Progress, tables, and everything else by size.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """
    progress, layout = read_progress(info.path), read_layout(info.path)
    folder = info.path / store.TENSORS_NAME
    stored = describe_tensors(folder)
    ranks = f"{layout.world_size} rank{'s' * (layout.world_size > 1)}"
    lines = [f"  epoch {progress.epoch}, {progress.rows:,} rows into it, {progress.updates:,} optimiser steps; written by {ranks}"]
    rows = [
        ("table", "rows", "dim", "type", "moments", "updates", "ids", "bytes"),
        *(_row(table, layout.columns) for table in _tables(folder, stored)),
    ]
    grown = [line for table in dynamic_rows(open_tables(folder, layout)) for line in ("", *columns(table))]
    lines += _of_other_steps(info)
    return [*lines, "", *columns(rows), *grown, "", *columns([("also", "tensors", "bytes"), *_others(stored)])]


def reshard_lines(path: Path, world_size: int) -> list[str]:
    """What restoring a checkpoint on so many ranks does to it.

    Raises:
        CheckpointError: the checkpoint is damaged.
        ConfigError: a table has too few rows for so many ranks.
    """
    info = store.verify_checkpoint(store.find_checkpoint(path))
    layout = read_layout(info.path)
    before = layout.world_size
    count = f"{world_size} rank{'s' * (world_size > 1)}"
    lines = [f"{info.path}: step {info.step}, written by {before} rank{'s' * (before > 1)}"]
    lines.append(f"nothing needs to be rewritten: `emberline train --resume` on {count} takes up tables, moments and counters, by any plan")
    found = [_of_map(info.path, layout, module, world_size) for module in map_modules(info.path).values()]
    if found:
        lines += ["", *columns([("zch table", "rows", "ids", "ids a shard", "ids that change rows", "dropped"), *found])]
    grown = open_tables(info.path / store.TENSORS_NAME, layout)
    if grown:
        lines += ["", *columns([RESHARDED, *(reshard_cells(table, world_size) for table in grown)])]
    return lines


def _of_other_steps(info: store.CheckpointInfo) -> list[str]:
    step = info.notes.get(OTHER_PARTS_STEP)
    return [] if step is None else [f"  tables that grow are of step {info.step}, everything else of step {step}"]


def _tables(folder: Path, stored: Mapping[str, TensorInfo]) -> list[_Table]:
    tables: dict[str, _Table] = {}
    counts = {name: info for name, info in stored.items() if name.startswith("tables/") and name.endswith("/step")}
    steps = {name: torch.empty(info.shape, dtype=info.dtype) for name, info in counts.items()}
    load_tensors(folder, steps)
    for name, info in stored.items():
        kind, _, rest = name.partition("/")
        if kind == "tables":
            table, _, part = rest.rpartition("/")
            own = tables.setdefault(table, _Table(table))
            if part == "weight":
                own.weight = info
            elif part == "step":
                own.updates = int(steps[name])
            else:
                own.moments[part] = info
    for found in tables.values():
        ids = f"zch/{found.name}/raw_ids"
        if ids in stored:
            found.ids = f"{int((read_tensors(folder, ids)[ids] != FREE_ROW).sum()):,}"
    return sorted(tables.values(), key=lambda table: table.name)


def _row(table: _Table, cuts: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    rows, dim = table.weight.shape
    by_row = ((), (len(cuts.get(table.name, ())),))
    moments = ", ".join(f"{name} by row" if info.shape[1:] in by_row else name for name, info in table.moments.items())
    dtype = dtype_name(table.weight.dtype)
    updates = "-" if table.updates is None else f"{table.updates:,}"
    return table.name, f"{rows:,}", str(dim), dtype, moments or "-", updates, table.ids, f"{table.num_bytes:,}"


def _others(stored: Mapping[str, TensorInfo]) -> Iterator[tuple[str, ...]]:
    for prefix, label in _OTHERS.items():
        own = [info for name, info in stored.items() if name.startswith(f"{prefix}/")]
        if own:
            yield label, str(len(own)), f"{sum(map(_bytes, own)):,}"


def _bytes(info: TensorInfo) -> int:
    return math.prod(info.shape) * info.dtype.itemsize


def map_modules(path: Path) -> dict[str, IdMap]:
    """Empty id maps of a checkpoint's ZCH tables, by table.

    Raises:
        CheckpointError: its model cannot be built.
    """
    config = read_checkpoint_config(path)
    try:
        model = build_model(config, features_of(config), torch.device("meta"), search_paths=[Path(read_progress(path).config_folder), Path()])
    except ConfigError as error:
        raise CheckpointError(f"{path}: its model cannot be built: {error}") from error
    return zch_modules(model)


def _of_map(path: Path, layout: Layout, module: IdMap, world_size: int) -> tuple[str, ...]:
    routing = layout.zch_routing.get(module.table, BY_RANGE)
    whole = read_whole_map(path / store.TENSORS_NAME, module.table, routing)
    rows = whole.ends[-1]
    ends = module.shard_ends(world_size)
    num_ids = int((whole.entries["raw_ids"] != FREE_ROW).sum())
    parts = module.ends if module.kind == HASHED else ends
    if parts == whole.ends and (len(parts) == 2 or routing == module.routing):
        counts = [int((whole.entries["raw_ids"][first:end] != FREE_ROW).sum()) for first, end in itertools.pairwise(ends)]
        return module.table, f"{rows:,}", f"{num_ids:,}", spread_text(counts), "0", "0"
    shards = [module.cut(whole, ends, shard) for shard in range(world_size)]
    used = [int((shard.state["raw_ids"] != FREE_ROW).sum()) for shard in shards]
    moved = 0
    for first, shard in zip(ends, shards, strict=False):
        now = shard.state["rows"][shard.state["raw_ids"] != FREE_ROW]
        moved += int((shard.sources[now - first] != now).sum())
    return module.table, f"{rows:,}", f"{num_ids:,}", spread_text(used), f"{moved:,}", f"{sum(shard.dropped for shard in shards):,}"
