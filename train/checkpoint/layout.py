"""How a run's tables lay on its ranks when a checkpoint was written: for people, and for the few tensors whose meaning depends on it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch.distributed as dist
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ParameterSharding

from emberline.train.checkpoint.live_dynamic import live_tables, notes_of
from emberline.train.checkpoint.stored_dynamic import DynamicNotes
from emberline.train.models.model import RecModel
from emberline.train.sharding.fit_plan import saved_table
from emberline.train.sharding.saved_plan import SavedPlan
from emberline.train.zch import zch_modules


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the manifest says.

    Args:
        world_size: ranks that wrote the checkpoint together.
        columns: of each table that is cut by columns, the first column of each part: moments that are kept by row have one number for each part.
        zch_routing: of each ZCH table, how ids find their shard.
        dynamic: the tables that grow.
    """

    world_size: int = 1
    columns: Mapping[str, tuple[int, ...]]
    zch_routing: Mapping[str, str]
    dynamic: Mapping[str, DynamicNotes] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> Self:
        """Out of a manifest; a checkpoint that says nothing was written by one rank, with its tables whole."""
        if data is None:
            return cls(columns={}, zch_routing={})
        columns = {str(table): tuple(int(start) for start in starts) for table, starts in data["columns"].items()}
        dynamic = {str(table): DynamicNotes.of(notes) for table, notes in data.get("dynamic", {}).items()}
        return cls(world_size=int(data["world_size"]), columns=columns, zch_routing=dict(data["zch_routing"]), dynamic=dynamic)


def layout_of(sharded: DistributedModelParallel, model: RecModel) -> Layout:
    """The layout of a sharded model, the same on all ranks."""
    columns = {}
    for _, table, placed in _placed(sharded):
        shards = placed.sharding_spec.shards if placed.sharding_spec is not None else []
        starts = tuple(sorted({int(shard.shard_offsets[1]) for shard in shards})) or (0,)
        if len(starts) > 1:
            columns[table] = starts
    routing = {table: module.routing for table, module in zch_modules(model).items()}
    return Layout(world_size=dist.get_world_size(), columns=columns, zch_routing=routing, dynamic=notes_of(live_tables(sharded)))


def plan_of(sharded: DistributedModelParallel, model: RecModel) -> SavedPlan:
    """The plan that a model runs by, as `--plan` takes it."""
    shapes = {spec.name: (spec.rows, spec.dim) for spec in model.embedding_group.tables}
    tables = {f"{path}.{table}": saved_table(shapes[table], placed) for path, table, placed in _placed(sharded)}
    ranks = dist.get_world_size()
    return SavedPlan(world_size=ranks, local_world_size=get_local_size(ranks) if ranks > 1 else 1, tables=tables, device=sharded.device.type)


def _placed(sharded: DistributedModelParallel) -> Iterator[tuple[str, str, ParameterSharding]]:
    """Collection, table and place."""
    for path, tables in sharded.plan.plan.items():
        for table, placed in tables.items():
            yield path, table, placed
