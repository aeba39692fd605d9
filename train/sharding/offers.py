"""What a table could be on given ranks: sharding types, kernels, widths of column shards, and why others are out.

TorchRec's sharders name what they were built for; on CPUs they leave out kinds that run on gloo all the same, so those are added here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder, ShardingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

from emberline.errors import ConfigError
from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.embedding.constraints import pinned_ranks
from emberline.train.features.constraints import COMPUTE_KERNELS, SHARDING_TYPES
from emberline.train.features.placement import CUSTOMIZED_KERNEL, TableConstraints
from emberline.train.sharding.dynamic_variants import variants
from emberline.train.sharding.hardware import COLUMN_MULTIPLES, Hardware
from emberline.train.zch import IdMap

DATA_PARALLEL, TABLE_WISE, ROW_WISE = (kind.value for kind in (ShardingType.DATA_PARALLEL, ShardingType.TABLE_WISE, ShardingType.ROW_WISE))
COLUMN_WISE, TABLE_COLUMN_WISE = ShardingType.COLUMN_WISE.value, ShardingType.TABLE_COLUMN_WISE.value
TABLE_ROW_WISE, GRID_SHARD = ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value
BY_COLUMNS = (COLUMN_WISE, TABLE_COLUMN_WISE, GRID_SHARD)
"""Types that cut a table by columns."""
ON_WHOLE_NODES = (TABLE_ROW_WISE, GRID_SHARD)
"""Types that use all ranks of a machine."""
_CPU_TOO = (ROW_WISE, TABLE_ROW_WISE, GRID_SHARD)
_ASKED_ONLY = (GRID_SHARD, DATA_PARALLEL)
"""Never chosen unasked: a grid wants a cluster that suits it, and copies take a table's memory, and all gradients, on every rank."""
_NO_COPIES = "copies of a table are trained on CPUs only, as fbgemm's kernels take no other rank's gradients"
_CPU_KERNELS = ("dense", "fused")
FUSED_UVM_CACHING = "fused_uvm_caching"
USUAL_PARTITION = 16
"""Least columns of a shard where nobody says: narrower ones waste the kernels."""
CACHE_RATIOS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Shares of a table's rows that a GPU may keep, where nobody says which."""


_LOOSENED = tuple(
    frozenset(names.split())
    for names in (
        "sharding_types",
        "ranks",
        "sharding_types ranks",
        "compute_kernels",
        "compute_kernels sharding_types",
        "compute_kernels ranks",
        "compute_kernels sharding_types ranks",
    )
)
"""What is tried without, in this order; kernels only for ZCH tables, which know others."""


@dataclass(frozen=True)
class Offer:
    """One way to hold a table.

    Args:
        sharding_type: how it is cut.
        compute_kernel: what holds each shard.
        width: columns of a shard; None: all.
        cache_ratio: share of the rows that a GPU keeps; None where there is no cache.
        growth: of a dynamic table, how it grows and where its rows are.
    """

    sharding_type: str
    compute_kernel: str
    width: int | None = None
    cache_ratio: float | None = None
    growth: DynamicEmbOptions | None = None


@dataclass(frozen=True)
class TableShape:
    """What of a table decides how it can be held.

    Args:
        rows: vectors.
        dim: width of each.
        kind: the collection that has it.
        id_map: from its ids to its rows, where it is a ZCH table.
        growth: how it grows, where it is a dynamic table.
    """

    rows: int
    dim: int
    kind: type[nn.Module]
    id_map: IdMap | None = None
    growth: DynamicEmbOptions | None = None

    @property
    def is_zch(self) -> bool:
        """Whether ids are mapped to rows."""
        return issubclass(self.kind, BaseManagedCollisionEmbeddingCollection)


class Offers:
    """All ways to hold one table, and what was wrong with the others.

    Args:
        table: its shape.
        sharder: of its collection.
        constraints: what may be chosen.
        hardware: the ranks.
    """

    def __init__(self, table: TableShape, sharder: ModuleSharder[nn.Module], constraints: ParameterConstraints, hardware: Hardware) -> None:
        self.table, self.hardware, self.constraints = table, hardware, constraints
        self.pins = pinned_ranks(constraints)
        self._sharder: Any = sharder
        self.problems: list[str] = self._wrong_pins()
        self.has_wrong_pins = bool(self.problems)
        if table.growth is not None:
            self.problems = [] if table.rows >= hardware.world_size else [f"{ROW_WISE}: max_capacity {table.rows} leaves ranks without a row"]
            growths = () if self.problems else tuple(variants(table.growth))
            self.offers = tuple(Offer(ROW_WISE, CUSTOMIZED_KERNEL, cache_ratio=one.cache_load_factor, growth=one) for one in growths)
            return
        types = constraints.sharding_types or self._usual_types()
        self.offers = () if self.problems else tuple(offer for kind in types for offer in self._of_type(kind))
        if not self.offers and self._lacks_copies(types):
            self.problems = [f"the dense kernel is that of {DATA_PARALLEL} alone, which is never chosen unasked: ask for it in sharding_types too"]

    @property
    def known_types(self) -> list[str]:
        """Sharding types that such tables have on this device."""
        if self.table.growth is not None:
            return [ROW_WISE]
        device = self.hardware.device
        found = set(self._sharder.sharding_types(device))
        if self.table.is_zch:
            found = {ROW_WISE}
        elif device == "cpu" and issubclass(self.table.kind, EmbeddingBagCollection):
            found |= set(_CPU_TOO)
        elif device == "cuda":
            found -= {DATA_PARALLEL}
        return [kind for kind in SHARDING_TYPES if kind in found]

    def _usual_types(self) -> list[str]:
        """What is tried where nobody says: on one rank, there is nothing to cut."""
        found = [kind for kind in self.known_types if kind not in _ASKED_ONLY]
        return [kind for kind in found if kind in (TABLE_WISE, ROW_WISE)][:1] if self.hardware.world_size == 1 else found

    def known_kernels(self, sharding_type: str) -> list[str]:
        """Kernels that hold such shards on this device."""
        if self.table.growth is not None:
            return [CUSTOMIZED_KERNEL]
        found = self._sharder.compute_kernels(sharding_type, self.hardware.device)
        kernels = [kernel for kernel in COMPUTE_KERNELS if kernel in found]
        if self.hardware.device == "cpu":
            kernels = [kernel for kernel in kernels if kernel in _CPU_KERNELS]
        return kernels if self.hardware.ssd else [kernel for kernel in kernels if kernel != "key_value"]

    def _of_type(self, kind: str) -> Iterator[Offer]:
        problem = self._problem(kind)
        if problem:
            self.problems.append(f"{kind}: {problem}")
            return
        known = self.known_kernels(kind)
        asked = self.constraints.compute_kernels or [kernel for kernel in known if kernel != "key_value"]
        kernels = [kernel for kernel in known if kernel in asked]
        if not kernels:
            self.problems.append(f"{kind}: its kernels here are {', '.join(known)}")
        for kernel in kernels:
            for width in self._widths(kind):
                for ratio in self._cache_ratios(kernel):
                    yield Offer(kind, kernel, width, ratio)

    def _lacks_copies(self, types: list[str]) -> bool:
        """Whether only a kernel is asked for that none of the types has, while another type has it."""
        return self.constraints.compute_kernels == ["dense"] and DATA_PARALLEL in self.known_types and DATA_PARALLEL not in types

    def _problem(self, kind: str) -> str:
        """Why a type is out here; empty where it is not."""
        if kind == DATA_PARALLEL and self.hardware.device == "cuda" and not self.table.is_zch:
            return _NO_COPIES
        if kind not in self.known_types:
            return f"such tables do not know it on {self.hardware.device}"
        parts = self.hardware.world_size if kind == ROW_WISE else self.hardware.local_world_size
        if self.table.id_map is not None:  # which says where its table is cut
            if problem := _map_problem(self.table.id_map, parts):
                return problem
        elif kind in (ROW_WISE, TABLE_ROW_WISE, GRID_SHARD) and not splits(self.table.rows, parts):
            return f"{self.table.rows} rows cannot be cut into {parts} equal blocks with none empty"
        if kind in BY_COLUMNS and not self._widths(kind):
            least = self.constraints.min_partition
            bound = f", and shards of {least} columns or more" if least else ""
            multiple = COLUMN_MULTIPLES[self.hardware.device]
            parts_text = f"at most {self._most_parts(kind)} equal parts" + (f" of a multiple of {multiple} columns" if multiple > 1 else "")
            return f"embedding_dim {self.table.dim} cannot be cut into {parts_text}{bound}"
        return self._pin_problem(kind)

    def _wrong_pins(self) -> list[str]:
        beyond = [rank for rank in self.pins if rank >= self.hardware.world_size]
        return [f"there are ranks 0 to {self.hardware.world_size - 1}, and ranks has {', '.join(map(str, beyond))}"] if beyond else []

    def _pin_problem(self, kind: str) -> str:
        if not self.pins:
            return ""
        if kind in (ROW_WISE, DATA_PARALLEL) and len(self.pins) < self.hardware.world_size:
            return f"it uses every rank, and ranks has only {', '.join(map(str, self.pins))}"
        local = self.hardware.local_world_size
        whole = [node for node in range(self.hardware.num_nodes) if set(range(node * local, (node + 1) * local)) <= set(self.pins)]
        if kind in ON_WHOLE_NODES and not whole:
            return f"it uses all {local} ranks of a machine, and ranks has no whole one"
        return ""

    def _widths(self, kind: str) -> tuple[int | None, ...]:
        """Columns of a shard, widest first."""
        if kind not in BY_COLUMNS:
            return (None,)
        most, multiple = self._most_parts(kind), COLUMN_MULTIPLES[self.hardware.device]
        if most == 1:
            return (self.table.dim,)
        asked = self.constraints.min_partition or (multiple if self.constraints.sharding_types else USUAL_PARTITION)
        counts = [count for count in range(2, most + 1) if self.table.dim % count == 0]
        widths = [self.table.dim // count for count in counts]
        return tuple(width for width in widths if width % multiple == 0 and width >= asked)

    def _most_parts(self, kind: str) -> int:
        """Most parts that columns can be cut into: ranks, or machines, that could hold one."""
        most = {COLUMN_WISE: self.hardware.world_size, TABLE_COLUMN_WISE: self.hardware.local_world_size, GRID_SHARD: self.hardware.num_nodes}[kind]
        return min(most, len(self.pins)) if self.pins else most

    def _cache_ratios(self, kernel: str) -> tuple[float | None, ...]:
        if kernel != FUSED_UVM_CACHING:
            return (None,)
        given = self.constraints.cache_params
        return CACHE_RATIOS if given is None or given.load_factor is None else (given.load_factor,)


@dataclass(frozen=True)
class Choice:
    """All ways to hold one table by what binds it.

    Args:
        offers: of that.
        strict: of everything that is asked; where they have none, something does not bind.
        loose: fields of the constraints that do not bind.
    """

    offers: Offers
    strict: Offers
    loose: frozenset[str] = frozenset()


def create_choice(table: TableShape, sharder: ModuleSharder[nn.Module], constraints: ParameterConstraints, hardware: Hardware) -> Choice:
    """The ways to hold a table; what is asked of all tables, or meant for a wider one, and it can't have, does not bind it.

    Ranks that there are not are told all the same.

    Args:
        table: its shape.
        sharder: of its collection.
        constraints: what may be chosen.
        hardware: the ranks.
    """
    strict = Offers(table, sharder, constraints, hardware)
    if strict.offers or strict.has_wrong_pins or not isinstance(constraints, TableConstraints):
        return Choice(strict, strict)
    for loose in sorted(_LOOSENED, key=lambda names: not names <= set(constraints.general)):  # a feature's own wish goes before those of all
        if loose <= constraints.soft and (table.is_zch or "compute_kernels" not in loose):
            freed: dict[str, Any] = dict.fromkeys(loose, ())
            found = Offers(table, sharder, replace(constraints, **freed), hardware)
            if found.offers:
                return Choice(found, strict, loose)
    return Choice(strict, strict)


def _map_problem(id_map: IdMap, parts: int) -> str:
    """Why a ZCH table cannot be shared by so many ranks; empty where it can."""
    try:
        id_map.shard_ends(parts)
    except ConfigError as error:
        return str(error).removeprefix(f"table {id_map.table!r}: ")
    return ""


def splits(rows: int, parts: int) -> bool:
    """Whether TorchRec's blocks of `ceil(rows / parts)` rows leave every part at least one."""
    block = -(-rows // parts)
    return rows > block * (parts - 1)
