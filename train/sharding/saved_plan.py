"""Plans as files: JSON that a planner wrote, or a person.

    {"format": "emberline.plan", "version": 1, "world_size": 2, "local_world_size": 2,
     "tables": {"user_emb": {"sharding_type": "row_wise"}, "model.pooled.ebc.item_emb": {"sharding_type": "table_wise", "ranks": [1]}}}

A table stands under its full path, or its name where only one table has that. What is left out is completed: the kernel (`fused`; `dense` for
`data_parallel`), the ranks where the type leaves no choice, the shards. What is there is checked against the model, all of it at once, by name.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emberline.errors import ConfigError
from emberline.train.features.constraints import COMPUTE_KERNELS, SHARDING_TYPES
from emberline.train.features.sentences import unknown_name

FORMAT, VERSION = "emberline.plan", 1
_PLAN_KEYS = ("format", "version", "device", "world_size", "local_world_size", "tables")
_TABLE_KEYS = ("rows", "dim", "sharding_type", "compute_kernel", "cache_load_factor", "caching", "ranks", "shards")
CUSTOMIZED_KERNEL = "customized_kernel"
"""The kernel of dynamic tables."""
_KERNELS = (*COMPUTE_KERNELS, CUSTOMIZED_KERNEL)
_SHARD_KEYS = ("rank", "offset", "size")


@dataclass(frozen=True)
class SavedShard:
    """One part of a table.

    Args:
        rank: that holds it.
        offset: its first row and column.
        size: its rows and columns.
    """

    rank: int
    offset: tuple[int, int]
    size: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class SavedTable:
    """One table's place; None for what a person left out.

    Args:
        rows: of the table, to be compared with the model's.
        dim: likewise.
        sharding_type: how it is cut.
        compute_kernel: what holds each shard.
        cache_load_factor: share of the rows that a GPU keeps; of a dynamic table, that the fast memory keeps.
        caching: of a dynamic table whose share is below 1: whether the memory behind has all rows (CACHING), or those only that are not in the fast
            one (HYBRID).
        ranks: of the shards, in order.
        shards: where each part lies; none for `data_parallel`.
    """

    sharding_type: str
    rows: int | None = None
    dim: int | None = None
    compute_kernel: str | None = None
    cache_load_factor: float | None = None
    caching: bool | None = None
    ranks: tuple[int, ...] | None = None
    shards: tuple[SavedShard, ...] | None = None

    @property
    def kernel(self) -> str:
        """The kernel, or what goes without saying."""
        return self.compute_kernel or ("dense" if self.sharding_type == "data_parallel" else "fused")


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    """A plan as a file has it.

    Args:
        world_size: ranks in all.
        local_world_size: ranks of each machine.
        tables: by full path, or by name.
        device: `cpu` or `cuda`; None: any.
        source: the file that it came from; empty: none.
    """

    world_size: int
    local_world_size: int
    tables: Mapping[str, SavedTable]
    device: str | None = None
    source: str = ""

    def text(self) -> str:
        """As a file has it."""
        tables = {path: {name: value for name, value in asdict(table).items() if value is not None} for path, table in self.tables.items()}
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "device": self.device,
            "world_size": self.world_size,
            "local_world_size": self.local_world_size,
        }
        lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(table)}" for path, table in tables.items())
        head = json.dumps({name: value for name, value in whole.items() if value is not None}, indent=1)
        return f'{head[:-2]},\n "tables": {{\n{lines}\n }}\n}}\n'


def read_plan(path: Path) -> SavedPlan:
    """Read a plan's file.

    Raises:
        ConfigError: it can't be read, or is no plan; names what is wrong.
    """
    reader = _PlanReader()
    try:
        whole = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=reader.unique)
    except OSError as error:
        raise ConfigError(f"the plan can't be read: {error.strerror or error}", str(path)) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"the plan is not JSON: {error}", str(path)) from None
    plan = reader.plan(whole, str(path))
    if plan is None or reader.problems:
        raise ConfigError(reader.problems, str(path))
    return plan


def _is_share(value: Any, whole: bool) -> bool:
    """Whether a value is a share of the rows: below 1, or, where it may be `whole`, 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0.0 < value < 1.0 or (whole and value == 1)


class _PlanReader:
    """Turns JSON into a plan, and notes everything that is of the wrong type."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object's entries by name; JSON itself would take the last of those with one name."""
        counts = Counter(name for name, _ in pairs)
        self.problems += [f"entry {name!r} is there {count} times in one object; keep one" for name, count in counts.items() if count > 1]
        return dict(pairs)

    def plan(self, whole: Any, source: str) -> SavedPlan | None:
        if not isinstance(whole, dict) or whole.get("format") != FORMAT:
            self.problems.append(f'is no plan: it must be an object with "format": "{FORMAT}"')
            return None
        if whole.get("version") != VERSION:
            self.problems.append(f"version must be {VERSION}, found {whole.get('version')!r}: it was made by another release")
            return None
        self._unknown(whole, _PLAN_KEYS, "the plan")
        tables = whole.get("tables")
        if not isinstance(tables, dict):
            self.problems.append("tables must be an object: a place for each table")
            tables = {}
        world_size = self._count(whole.get("world_size"), "world_size", 1)
        return SavedPlan(
            world_size=world_size,
            local_world_size=self._count(whole.get("local_world_size", world_size), "local_world_size", 1),
            device=whole.get("device"),
            tables={path: table for path, place in tables.items() if (table := self._table(place, f"table {path!r}")) is not None},
            source=source,
        )

    def _table(self, place: Any, where: str) -> SavedTable | None:
        if not isinstance(place, dict) or not isinstance(place.get("sharding_type"), str):
            self.problems.append(f'{where} must be an object with a "sharding_type"')
            return None
        self._unknown(place, _TABLE_KEYS, where)
        if place["sharding_type"] not in SHARDING_TYPES:
            self.problems.append(f"{where}: {unknown_name('sharding type', place['sharding_type'], SHARDING_TYPES)}")
        ratio, kernel = place.get("cache_load_factor"), place.get("compute_kernel")
        caching, is_dynamic = place.get("caching"), kernel == CUSTOMIZED_KERNEL
        if ratio is not None and not _is_share(ratio, is_dynamic):
            self.problems.append(f"{where}: cache_load_factor must be between 0 and 1, found {ratio!r}")
        if caching is not None and not isinstance(caching, bool):
            self.problems.append(f"{where}: caching must be true or false, found {caching!r}")
        if kernel is not None and not isinstance(kernel, str):
            self.problems.append(f"{where}: compute_kernel must be a name, found {kernel!r}")
        elif kernel is not None and kernel not in _KERNELS:
            self.problems.append(f"{where}: {unknown_name('compute kernel', kernel, _KERNELS)}")
        shards = place.get("shards")
        return SavedTable(
            sharding_type=place["sharding_type"],
            compute_kernel=kernel,
            cache_load_factor=None if ratio is None or not _is_share(ratio, True) else float(ratio),
            caching=caching,
            rows=None if place.get("rows") is None else self._count(place["rows"], f"{where}: rows", 1),
            dim=None if place.get("dim") is None else self._count(place["dim"], f"{where}: dim", 1),
            ranks=None if place.get("ranks") is None else self._counts(place["ranks"], f"{where}: ranks"),
            shards=None if shards is None else self._shards(shards, where),
        )

    def _shards(self, shards: Any, where: str) -> tuple[SavedShard, ...]:
        if not isinstance(shards, list) or not all(isinstance(shard, dict) for shard in shards):
            self.problems.append(f"{where}: shards must be a list of objects")
            return ()
        found = []
        for place, shard in enumerate(shards):
            here = f"{where}: shards[{place}]"
            self._unknown(shard, _SHARD_KEYS, here)
            offset, size = (self._counts(shard.get(name), f"{here}: {name}", 2) for name in ("offset", "size"))
            rank = self._count(shard.get("rank"), f"{here}: rank", 0)
            if len(offset) == len(size) == 2:
                found.append(SavedShard(rank, (offset[0], offset[1]), (size[0], size[1])))
        return tuple(found)

    def _counts(self, value: Any, where: str, length: int | None = None) -> tuple[int, ...]:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            self.problems.append(f"{where} must be a list{f' of {length} numbers' if length else ''}, found {value!r}")
            return ()
        return tuple(self._count(one, where, 0) for one in value)

    def _count(self, value: Any, where: str, least: int) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self.problems.append(f"{where} must be a whole number of {least} or more, found {value!r}")
        return least

    def _unknown(self, value: dict[str, Any], known: tuple[str, ...], where: str) -> None:
        self.problems += [f"{where}: {unknown_name('entry', name, known)}" for name in value if name not in known]
