"""Plans between files and TorchRec: a plan as a file has it, and what a file has as a plan for a model, checked against it by name."""

from collections.abc import Iterator
from dataclasses import replace

from torch import nn
from torchrec.distributed.planner.constants import UVM_CACHING_RATIO
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ModuleSharder,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)

from emberline.errors import ConfigError
from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.dynamic.sharding import DynamicEmbParameterSharding, with_growth
from emberline.train.features.sentences import unknown_name
from emberline.train.sharding.constraints import growing_tables
from emberline.train.sharding.dynamic_variants import chosen, hashed_layout
from emberline.train.sharding.enumerator import shard_layout
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.offers import (
    BY_COLUMNS,
    DATA_PARALLEL,
    FUSED_UVM_CACHING,
    GRID_SHARD,
    ON_WHOLE_NODES,
    ROW_WISE,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    Offers,
    TableShape,
)
from emberline.train.sharding.saved_plan import CUSTOMIZED_KERNEL, SavedPlan, SavedShard, SavedTable
from emberline.train.sharding.shardable import ShardableTable, shardable_modules, shardable_tables

_ON_NODES = (TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID_SHARD)


def save_plan(plan: ShardingPlan, model: nn.Module, sharders: list[ModuleSharder[nn.Module]], hardware: Hardware) -> SavedPlan:
    """The whole of a plan for a model that is not sharded yet."""
    tables = {
        table.path: saved_table((table.weight.shape[0], table.weight.shape[1]), plan.plan[table.collection][table.name])
        for table in shardable_tables(model, sharders)
    }
    return SavedPlan(world_size=hardware.world_size, local_world_size=hardware.local_world_size, device=hardware.device, tables=tables)


def sharding_plan(saved: SavedPlan, model: nn.Module, sharders: list[ModuleSharder[nn.Module]], hardware: Hardware) -> ShardingPlan:
    """The plan for a model on these ranks.

    Raises:
        ConfigError: it does not fit the model or the ranks; names every table that is missing, surplus or wrong.
    """
    problems = list(_wrong_ranks(saved, hardware))
    there = {table.path: table for table in shardable_tables(model, sharders)}
    growing = growing_tables(model)
    found, wrong_names = _matched(saved, list(there))
    if problems:  # ranks and shards of another cluster would all be wrong
        raise ConfigError([*problems, *wrong_names], saved.source)
    problems = wrong_names
    result: dict[str, EmbeddingModuleShardingPlan] = {}
    for path, table in found.items():
        placed, wrong = _placed(table, there[path], hardware, growing.get(path))
        problems += [f"table {path!r}: {text}" for text in wrong]
        result.setdefault(there[path].collection, EmbeddingModuleShardingPlan())[there[path].name] = placed
    if problems:
        raise ConfigError(problems, saved.source)
    return ShardingPlan({path: result[path] for path, _, _ in shardable_modules(model, sharders) if path in result})


def _wrong_ranks(saved: SavedPlan, hardware: Hardware) -> Iterator[str]:
    if saved.world_size != hardware.world_size:
        yield f"the plan is for {saved.world_size} ranks, the job has {hardware.world_size}"
    if saved.device not in (None, hardware.device):
        yield f"the plan is for {saved.device}, the job runs on {hardware.device}"
    on_nodes = [path for path, table in saved.tables.items() if table.sharding_type in _ON_NODES]
    if saved.local_world_size != hardware.local_world_size and on_nodes:
        yield (
            f"the plan counts {saved.local_world_size} ranks a machine, the launcher {hardware.local_world_size}; "
            f"{on_nodes[0]!r} is planned by machines"
        )


def _matched(saved: SavedPlan, paths: list[str]) -> tuple[dict[str, SavedTable], list[str]]:
    """The tables by full path in the model's order, and what is wrong with their names."""
    found: dict[str, SavedTable] = {}
    keys: dict[str, str] = {}
    problems = []
    for key, table in saved.tables.items():
        meant = [key] if key in paths else [path for path in paths if path.rpartition(".")[2] == key]
        if len(meant) == 1 and meant[0] not in found:
            found[meant[0]], keys[meant[0]] = table, key
        elif not meant:
            problems.append(unknown_name("table", key, [*paths, *(path.rpartition(".")[2] for path in paths)]))
        else:
            twice = (
                f"is there twice, as {keys[meant[0]]!r} too" if len(meant) == 1 else f"could be {' or '.join(map(repr, meant))}; give the full path"
            )
            problems.append(f"table {key!r} {twice}")
    problems += [f"table {path!r} is not in the plan" for path in paths if path not in found]
    return {path: found[path] for path in paths if path in found}, problems


def saved_table(shape: tuple[int, int], placed: ParameterSharding) -> SavedTable:
    """One table's place as a file has it; `shape` is its rows and columns."""
    spec = placed.sharding_spec
    shards = [] if spec is None else spec.shards
    growth = placed.dynamicemb_options if isinstance(placed, DynamicEmbParameterSharding) else None
    share = None if placed.cache_params is None else placed.cache_params.load_factor
    return SavedTable(
        rows=shape[0],
        dim=shape[1],
        sharding_type=placed.sharding_type,
        compute_kernel=placed.compute_kernel,
        cache_load_factor=share if growth is None else growth.cache_load_factor,
        caching=None if growth is None else growth.caching,
        ranks=tuple(placed.ranks or ()) if spec is None else None,
        shards=tuple(
            SavedShard(
                rank=shard.placement.rank(),
                offset=(shard.shard_offsets[0], shard.shard_offsets[1]),
                size=(shard.shard_sizes[0], shard.shard_sizes[1]),
            )
            for shard in shards
        )
        or None,
    )


def _placed(
    table: SavedTable, there: ShardableTable, hardware: Hardware, growth: DynamicEmbOptions | None
) -> tuple[ParameterSharding | None, list[str]]:
    """One table's place as TorchRec wants it, or what is wrong with it; `growth` is how it grows, if it does."""
    if growth is not None and table.compute_kernel is None:
        table = replace(table, compute_kernel=CUSTOMIZED_KERNEL)
    shape = TableShape(there.weight.shape[0], there.weight.shape[1], there.kind, there.id_map, growth)
    problems = [
        f"the plan has {name} {given}, the model {found}"
        for name, given, found in (("rows", table.rows, shape.rows), ("dim", table.dim, shape.dim))
        if given not in (None, found)
    ]
    given = table.ranks if table.shards is None else tuple(shard.rank for shard in table.shards)
    ranks = _default_ranks(table.sharding_type, hardware) if given is None else given
    beyond = [rank for rank in ranks or () if rank >= hardware.world_size]
    if beyond:
        problems.append(f"there are ranks 0 to {hardware.world_size - 1}, found {', '.join(map(str, beyond))}")
    if problems or ranks is None:
        return None, problems or [f"{table.sharding_type} needs ranks"]
    width = _width(table, shape, len(ranks), hardware)
    problems = _not_offered(table, shape, there.sharder, width, hardware)
    if problems:
        return None, problems
    sizes, offsets = shard_layout(there.weight, table.sharding_type, width, hardware, there.id_map)
    if growth is not None:
        sizes, offsets = hashed_layout(there.weight, hardware.world_size)
    problems = _wrong_layout(table, ranks, sizes, offsets, hardware)
    if problems:
        return None, problems
    shards = [
        ShardMetadata(shard_sizes=size, shard_offsets=offset, placement=placement(hardware.device, rank, hardware.local_world_size))
        for size, offset, rank in zip(sizes, offsets, ranks, strict=True)
    ]
    placed = ParameterSharding(
        sharding_type=table.sharding_type,
        compute_kernel=table.kernel,
        ranks=list(ranks),
        sharding_spec=None if table.sharding_type == DATA_PARALLEL else EnumerableShardingSpec(shards),
        cache_params=_cache(table),
    )
    if growth is not None:
        share = growth.cache_load_factor if table.cache_load_factor is None else table.cache_load_factor
        growth = replace(growth, caching=bool(table.caching), cache_load_factor=share)
        return with_growth(placed, chosen(growth, there.weight, hardware.world_size, hardware.device)), []
    return placed, []


def _cache(table: SavedTable) -> CacheParams | None:
    """The share of the rows that a GPU keeps, where it keeps any; fbgemm's own where the plan does not say."""
    if table.kernel != FUSED_UVM_CACHING:
        return None
    return CacheParams(load_factor=UVM_CACHING_RATIO if table.cache_load_factor is None else table.cache_load_factor)


def _default_ranks(sharding_type: str, hardware: Hardware) -> tuple[int, ...] | None:
    """The ranks where the type leaves no choice."""
    on_one_node = sharding_type == TABLE_ROW_WISE and hardware.num_nodes == 1
    whole = sharding_type in (ROW_WISE, DATA_PARALLEL) or on_one_node or hardware.world_size == 1
    return tuple(range(hardware.world_size)) if whole else None


def _width(table: SavedTable, shape: TableShape, num_ranks: int, hardware: Hardware) -> int | None:
    """Columns of a shard, where the table is cut by columns."""
    if table.sharding_type not in BY_COLUMNS:
        return None
    if table.shards:
        return table.shards[0].size[1]
    return shape.dim // max(1, num_ranks // (hardware.local_world_size if table.sharding_type == GRID_SHARD else 1))


def _not_offered(table: SavedTable, shape: TableShape, sharder: ModuleSharder[nn.Module], width: int | None, hardware: Hardware) -> list[str]:
    asked = ParameterConstraints(sharding_types=[table.sharding_type], compute_kernels=[table.kernel], min_partition=1)
    offers = Offers(shape, sharder, asked, hardware)
    if offers.problems:
        return offers.problems
    if shape.growth is not None:
        return [
            f"dynamic tables have {name} {known} only, found {given}"
            for name, known, given in (("sharding_type", ROW_WISE, table.sharding_type), ("compute_kernel", CUSTOMIZED_KERNEL, table.kernel))
            if given != known
        ]
    if table.caching is not None:
        return ["caching is for dynamic tables"]
    widths = {offer.width for offer in offers.offers}
    if width not in widths:
        return [f"{table.sharding_type}: {width} columns a shard are not among {', '.join(map(str, sorted(filter(None, widths))))}"]
    if table.cache_load_factor is not None and table.kernel != FUSED_UVM_CACHING:
        return [f"cache_load_factor is for {FUSED_UVM_CACHING}, not for {table.kernel}"]
    return []


def _wrong_layout(table: SavedTable, ranks: tuple[int, ...], sizes: list[list[int]], offsets: list[list[int]], hardware: Hardware) -> list[str]:
    """Ranks and shards that TorchRec's form of the type does not have."""
    kind, local = table.sharding_type, hardware.local_world_size
    if len(ranks) != len(sizes):
        return [f"{kind} has {len(sizes)} shards here, and {len(ranks)} ranks are given"]
    nodes = [rank // local for rank in ranks]
    if kind in (ROW_WISE, DATA_PARALLEL) and ranks != tuple(range(hardware.world_size)):
        return [f"{kind} has its shards on all ranks in order, found {', '.join(map(str, ranks))}"]
    if kind in (TABLE_ROW_WISE, TABLE_COLUMN_WISE) and len(set(nodes)) > 1:
        return [f"{kind} has its shards on one machine of {local} ranks, found {', '.join(map(str, ranks))}"]
    in_order = [node * local + place % local for place, node in enumerate(nodes)]
    if kind in ON_WHOLE_NODES and list(ranks) != in_order:
        return [f"{kind} uses all ranks of a machine in order, found {', '.join(map(str, ranks))}"]
    if table.shards is None or kind == DATA_PARALLEL:
        return []
    for shard, size, offset in zip(table.shards, sizes, offsets, strict=True):
        if list(shard.size) != size or list(shard.offset) != offset:
            return [f"{kind}: the shard of rank {shard.rank} must be {size} at {offset}, found {list(shard.size)} at {list(shard.offset)}"]
    return []
