"""The planner: from a model and the ranks it will run on to the plan that says which rank holds which part of which table."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.proposers import UniformProposer
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, ShardingOption
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from emberline.errors import ConfigError
from emberline.train.config.planner_config import PlannerConfig
from emberline.train.dynamic.sharding import DynamicEmbParameterSharding
from emberline.train.features import EmbeddingConstraints
from emberline.train.features.placement import DynamicEmbParameterConstraints
from emberline.train.sharding.constraints import Traffic, default_constraints, gather_constraints, unbound
from emberline.train.sharding.dynamic_costs import GrowthCosts
from emberline.train.sharding.dynamic_variants import is_of, with_growths
from emberline.train.sharding.enumerator import OptionEnumerator
from emberline.train.sharding.found import hardware_here
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.partitioner import PinnedPartitioner
from emberline.train.sharding.proposer import MemoryProposer
from emberline.train.sharding.reservation import Reserved, ShareReservation
from emberline.train.sharding.shardable import shardable_tables
from emberline.train.sharding.sizes import size_text

DEFAULT_RESERVE = PlannerConfig().storage_reserve


class TablePlanner(EmbeddingShardingPlanner):  # type: ignore[misc]
    """TorchRec's planner over the options of our enumerator; made by `create_planner`.

    Args:
        hardware: the ranks.
        batch_size: rows that each rank reads in a step.
        constraints: by the tables' full paths.
        default: of all other tables.
        storage_reserve: share of each rank's memory that no table may have.
        costs: of rows of dynamic tables; None: as assumed for the device.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        batch_size: int,
        constraints: Mapping[str, ParameterConstraints],
        default: ParameterConstraints | None = None,
        storage_reserve: float = DEFAULT_RESERVE,
        costs: GrowthCosts | None = None,
    ) -> None:
        self.hardware, self.batch_size, self._costs = hardware, batch_size, costs
        self.options = OptionEnumerator(hardware, batch_size, constraints, default, costs)
        self.chosen: tuple[ShardingOption, ...] = ()
        """What the last plan took for each table, with storage, cost and rank of each shard."""
        self._reservation = ShareReservation(storage_reserve, self.options)
        super().__init__(
            topology=hardware.topology(),
            batch_size=batch_size,
            enumerator=self.options,
            storage_reservation=self._reservation,
            proposer=[MemoryProposer(), UniformProposer()],
            partitioner=PinnedPartitioner(self.options.pins_of),
            stats=[],
            callbacks=[self._keep],
        )

    @property
    def reserved(self) -> Reserved:
        """What the last plan kept free on each rank."""
        assert self._reservation.reserved is not None, "no plan was made"
        return self._reservation.reserved

    def plan(self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> ShardingPlan:
        """The plan of the least cost that was found; each table of `module` is in it exactly once.

        Raises:
            ConfigError: nothing that constraints allow fits on the ranks; says what is needed and what there is.
        """
        self.chosen = ()
        try:
            with _without_warnings():
                plan = super().plan(module, sharders)
        except PlannerError as error:
            raise ConfigError(self._no_room(module, sharders)) from error
        check_complete_plan(plan, module, sharders)
        return with_growths(plan, self.chosen, self.hardware.device)

    def collective_plan(
        self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]] | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """The plan of rank 0, on all ranks; so is the error, where there is one.

        Raises:
            ConfigError: as `plan`, on every rank.
        """
        assert sharders is not None
        answer: list[Any] = [None]
        if dist.get_rank(pg) == 0:
            try:
                answer = [self.plan(module, sharders)]
            except ConfigError as error:
                answer = [error.problems]
        dist.broadcast_object_list(answer, 0, group=pg)
        if not isinstance(answer[0], ShardingPlan):
            raise ConfigError(answer[0])
        return answer[0]

    def price(self, plan: ShardingPlan, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> None:
        """Reckon with a plan that was made elsewhere, as if this planner had chosen it; whether it fits is not asked."""
        fixed = {}
        for path, tables in plan.plan.items():
            for name, placed in tables.items():
                own = unbound(self.options.constraints_of(f"{path}.{name}"))
                own.sharding_types, own.compute_kernels = [placed.sharding_type], [placed.compute_kernel]
                own.cache_params, own.min_partition = placed.cache_params, 1
                if isinstance(own, DynamicEmbParameterConstraints):
                    own.dynamicemb_options = cast(DynamicEmbParameterSharding, placed).dynamicemb_options
                fixed[f"{path}.{name}"] = own
        self._reservation.reserve(self.hardware.topology(), self.batch_size, module, sharders)
        chosen = []
        for option in OptionEnumerator(self.hardware, self.batch_size, fixed, costs=self._costs).enumerate(module, sharders):
            placed = plan.plan[option.path][option.name]
            spec = placed.sharding_spec
            if not is_of(option, placed):
                continue
            if spec is not None and [list(shard.shard_sizes) for shard in spec.shards] != [list(shard.size) for shard in option.shards]:
                continue
            for shard, rank in zip(option.shards, placed.ranks, strict=True):
                shard.rank = rank
            chosen.append(option)
        planned, priced = _tables_of(plan), Counter(option.fqn for option in chosen)
        assert priced == planned, f"planned and not priced: {planned - priced}; priced more than once: {priced - planned}"
        self.chosen = tuple(chosen)

    def _keep(self, plan: list[ShardingOption]) -> list[ShardingOption]:
        self.chosen = tuple(plan)
        return plan

    def _no_room(self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> str:
        """One sentence: what is needed at least, and what there is."""
        by_table: dict[str, list[ShardingOption]] = {}
        for option in self.options.enumerate(module, sharders):
            by_table.setdefault(option.fqn, []).append(option)
        storages = {path: [option.total_storage for option in options] for path, options in by_table.items()}
        least = {path: min(storage.hbm + storage.ddr for storage in own) for path, own in storages.items()}
        largest = sorted(least, key=lambda path: -least[path])[:3]
        reserved, on_gpu = self.reserved, self.hardware.device == "cuda"
        left = self._reservation.last_reserved_topology
        assert left is not None
        room = {name: sum(max(0, getattr(device.storage, name)) for device in left.devices) for name in ("hbm", "ddr")[not on_gpu :]}
        pins = [path.rpartition(".")[2] for path in least if self.options.pins_of(path)]
        pinned = f"; ranks pins {', '.join(pins)}" if pins else ""
        about, _ = self.hardware.lines()
        return (
            f"the tables do not fit on {about}: they need {size_text(sum(least.values()))} at least, with moments and vectors in flight, and "
            f"{' and '.join(f'{size_text(size)} of {name}' for name, size in room.items())} are left after {size_text(reserved.total)} a rank for "
            f"everything else (dense part {size_text(reserved.dense)}, ids {size_text(reserved.ids)}); "
            f"largest: {', '.join(f'{path} ({size_text(least[path])})' for path in largest)}{pinned}. "
            f"Use more ranks or memory, smaller tables or batches, or constraints that allow more{' (row_wise, fused_uvm)' * on_gpu}"
        )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Leave out TorchRec's warning, in the root logger, that copies of a table have no shards."""
    root = logging.getLogger()

    def keep(record: logging.LogRecord) -> bool:
        return "Sharding spec not found" not in record.getMessage()

    silent = logging.NullHandler()  # else the first warning would set up a handler for the whole process
    root.addFilter(keep)
    root.addHandler(silent)
    try:
        yield
    finally:
        root.removeHandler(silent)
        root.removeFilter(keep)


def create_planner(
    model: nn.Module,
    hardware: Hardware | None = None,
    *,
    batch_size: int,
    constraints: EmbeddingConstraints | None = None,
    tables: Mapping[str, EmbeddingConstraints] | None = None,
    traffic: Mapping[str, Traffic] | None = None,
    storage_reserve: float = DEFAULT_RESERVE,
    bound: bool = True,
    costs: GrowthCosts | None = None,
) -> TablePlanner:
    """A TorchRec planner for a model.

    Args:
        model: what will be planned; the sparse optimiser is on its tables already, so that moments count.
        hardware: the ranks; None: those of this process's group or launcher, on the device and with the memory that are found here.
        batch_size: rows that each rank reads in a step.
        constraints: of tables whose features do not say otherwise; what a table can't have of them doesn't bind it.
        tables: of single tables by name, whatever their features say.
        traffic: what features were seen to read, by name; of others, ids a row are what their configs say, or assumed.
        storage_reserve: share of each rank's memory that no table may have.
        bound: whether the plan keeps to what modules and `constraints` ask of tables' places; without, whatever fits and costs least.
        costs: of rows of dynamic tables; None: as assumed for the device.

    Raises:
        ConfigError: `tables` has a name that no table has.
    """
    found = gather_constraints(model, constraints, traffic, tables)
    default = default_constraints(constraints)
    return TablePlanner(
        hardware_here() if hardware is None else hardware,
        batch_size=batch_size,
        constraints=found if bound else {path: unbound(own) for path, own in found.items()},
        default=default if bound else unbound(default),
        storage_reserve=storage_reserve,
        costs=costs,
    )


def check_complete_plan(plan: ShardingPlan, model: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> None:
    """Our own promise: the plan has each table of the model exactly once, and nothing else."""
    planned = _tables_of(plan)
    there = Counter(table.path for table in shardable_tables(model, sharders))
    assert planned == there, f"planned and not there: {planned - there}; there and not planned: {there - planned}"


def _tables_of(plan: ShardingPlan) -> Counter[str]:
    """How often a plan has each table, by full path."""
    return Counter(f"{path}.{name}" for path, tables in plan.plan.items() for name in tables)
