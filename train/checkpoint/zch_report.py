"""The ZCH tables of a checkpoint, for a terminal: how full they are, what their ids are worth, and which are worth most."""

import itertools
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from emberline.text_table import columns
from emberline.train.checkpoint import store
from emberline.train.checkpoint.id_maps import read_whole_map
from emberline.train.checkpoint.report import map_modules
from emberline.train.checkpoint.run_state import read_layout
from emberline.train.features.configs import HASHED, SORTED
from emberline.train.zch import BY_RANGE, FREE_ROW, IdMap, WholeMap

_TOP, _BAR = 10, 40
_PARTS = {SORTED: "shards", HASHED: "buckets"}
_MOST_SHARES = 12
"""So many parts are listed, else the emptiest and the fullest."""
_TITLES = {"counts": "seen", "last_access_iter": "last read in batch", "last_seen_hour": "last read"}


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


def _of_table(table: str, module: IdMap, whole: WholeMap) -> Iterator[str]:
    owned = whole.entries["raw_ids"] != FREE_ROW
    room = whole.ends[-1] - whole.num_parts
    count = int(owned.sum())
    yield f"{table}: {count:,} ids in {room:,} rows that can have one, occupancy {_share(count, room)}"
    seen, admitted, evicted, dropped = whole.numbers["counters"].sum(0).tolist()
    waiting = "" if module.kind == HASHED else f"; {len(whole.history_ids):,} wait for the next round"
    yield f"  ids seen {seen:,}, admitted {admitted:,}, evicted {evicted:,}, dropped {dropped:,}{waiting}"
    if whole.num_parts > 1:
        yield f"  {whole.num_parts} {_PARTS[module.kind]}, ids routed by {whole.routing!r}; occupancy {_shares(whole, owned)}"
    if not count:
        return
    entries = {name: values[owned] for name, values in whole.entries.items()}
    worth = module.scores(entries, whole.numbers)
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
    names = [name for name in _TITLES if name in entries]
    rows = []
    for place in best.tolist():
        counts = [hour_text(int(entries[name][place])) if "hour" in name else f"{int(entries[name][place]):,}" for name in names]
        rows.append((str(int(entries["raw_ids"][place])), f"{float(worth[place]):.6g}", str(int(entries["rows"][place])), *counts))
    return iter(columns([("top ids", "score", "row", *(_TITLES[name] for name in names)), *rows]))


def hour_text(hour: int) -> str:
    """An hour since 1970 began, as people write it."""
    return f"{datetime.fromtimestamp(3600 * hour, UTC):%Y-%m-%d %H}h UTC"


def _shares(whole: WholeMap, owned: Tensor) -> str:
    parts = [(int(owned[first:end].sum()), end - first - 1) for first, end in itertools.pairwise(whole.ends)]
    if len(parts) <= _MOST_SHARES:
        return ", ".join(_share(*part) for part in parts)
    by_share = sorted(parts, key=lambda part: part[0] / part[1])
    return f"{_share(*by_share[0])} to {_share(*by_share[-1])}"


def _share(count: int, room: int) -> str:
    return f"{count / room:.1%}" if room else "0.0% of no rows"
