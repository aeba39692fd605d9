"""The ZCH tables of a checkpoint, for a terminal: how full they are, what their ids are worth, and which are worth most."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from emberline.text_table import columns
from emberline.train.checkpoint import store
from emberline.train.checkpoint.id_maps import read_whole_map
from emberline.train.checkpoint.report import map_modules
from emberline.train.checkpoint.run_state import read_layout
from emberline.train.zch import BY_RANGE, FREE_ROW, WholeMap, ZchModule
from emberline.train.zch.policies import scores

_TOP, _BAR = 10, 40


def zch_lines(path: Path) -> list[str]:
    """What a checkpoint, or a run's newest, has of each ZCH table.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    info = store.verify_checkpoint(store.find_checkpoint(path))
    routing = read_layout(info.path).zch_routing
    lines = [f"{info.path}: step {info.step}"]
    modules = map_modules(info.path)
    for table, module in modules.items():
        whole = read_whole_map(info.path / store.TENSORS_NAME, table, routing.get(table, BY_RANGE))
        lines += ["", *_of_table(table, module, whole)]
    return lines if modules else [*lines, "it has no ZCH tables"]


def _of_table(table: str, module: ZchModule, whole: WholeMap) -> Iterator[str]:
    owned = whole.entries["raw_ids"] != FREE_ROW
    room = whole.ends[-1] - whole.num_shards
    count = int(owned.sum())
    yield f"{table}: {count:,} ids in {room:,} rows that can have one, occupancy {_share(count, room)}"
    seen, admitted, evicted, dropped = whole.numbers["counters"].sum(0).tolist()
    yield f"  ids seen {seen:,}, admitted {admitted:,}, evicted {evicted:,}, dropped {dropped:,}; {len(whole.history_ids):,} wait for the next round"
    if whole.num_shards > 1:
        parts = [(int(owned[first:end].sum()), end - first - 1) for first, end in itertools.pairwise(whole.ends)]
        yield f"  {whole.num_shards} shards, ids routed by {whole.routing!r}; occupancy {', '.join(_share(*part) for part in parts)}"
    if not count:
        return
    entries = {name: values[owned] for name, values in whole.entries.items()}
    worth = scores(module._eviction_policy, entries, int(whole.numbers["iteration"].max()))
    yield from (f"  {line}" for line in _histogram(worth))
    yield from (f"  {line}" for line in _top(entries, worth))


def _histogram(worth: Tensor) -> Iterator[str]:
    """Ids by score, each line for scores up to twice as far from 0 as the one before."""
    powers = worth.abs().clamp(min=2.0**-30).log2().floor().to(torch.int64)
    sign = "-" if bool((worth < 0).any()) else ""  # a policy's scores are all negative, or none is
    found = [(power, int((powers == power).sum())) for power in range(int(powers.min()), int(powers.max()) + 1)]
    most = max(count for _, count in found)
    rows = [(f"{sign}{2.0**power:g} to {sign}{2.0 ** (power + 1):g}", f"{count:,}", "#" * math.ceil(_BAR * count / most)) for power, count in found]
    return iter(columns([("score", "ids", ""), *rows]))


def _top(entries: dict[str, Tensor], worth: Tensor) -> Iterator[str]:
    best = torch.argsort(worth, descending=True, stable=True)[:_TOP]
    names = [name for name in ("counts", "last_access_iter") if name in entries]
    titles = {"counts": "seen", "last_access_iter": "last read in batch"}
    rows = []
    for place in best.tolist():
        counts = [f"{int(entries[name][place]):,}" for name in names]
        rows.append((str(int(entries["raw_ids"][place])), f"{float(worth[place]):.6g}", str(int(entries["rows"][place])), *counts))
    return iter(columns([("top ids", "score", "row", *(titles[name] for name in names)), *rows]))


def _share(count: int, room: int) -> str:
    return f"{count / room:.1%}" if room else "0.0% of no rows"
