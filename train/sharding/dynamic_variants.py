"""What the planner may choose for a dynamic table: where its rows are, and how many of them are where they are fast.

Each table has two modes, HYBRID (a row is in one of two memories) and CACHING (the second has all, the first copies of some), with shares of the
fast memory from 0.1 to 1, or the one that its config says: 20 options, or 2. A share of 1 is neither: all rows are in the fast memory. The table
itself lies on all ranks, by hashes of its ids.
"""

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import ParameterConstraints, Perf, Shard, ShardingOption, Storage
from torchrec.distributed.types import ParameterSharding, ShardingPlan

from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.dynamic.sharding import DynamicEmbParameterSharding, with_growth
from emberline.train.features.placement import DynamicEmbParameterConstraints
from emberline.train.sharding.dynamic_costs import GrowthCosts, slowness
from emberline.train.sharding.dynamic_storage import growth_sizes
from emberline.train.sharding.hardware import Hardware

_logger = logging.getLogger(__name__)
RATIOS = tuple(count / 10 for count in range(1, 11))
"""Shares of the rows that the planner tries where the config does not say."""


class Mode(StrEnum):
    """Where rows are."""

    HBM_ONLY = "HBM_ONLY"
    """All in the fast memory; on a CPU, that is the host's."""
    CACHING = "CACHING"
    HYBRID = "HYBRID"


class DynamicEmbShardingOption(ShardingOption):  # type: ignore[misc]
    """TorchRec's option of one table, with where its rows are: `growth`, a copy of its own."""

    growth: DynamicEmbOptions

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.growth))


def growth_of(constraints: ParameterConstraints) -> DynamicEmbOptions | None:
    """How a table with these constraints grows; None of one that does not."""
    return constraints.dynamicemb_options if isinstance(constraints, DynamicEmbParameterConstraints) else None


def mode_of(options: DynamicEmbOptions) -> Mode:
    """Where the rows are, as a plan chose it."""
    if options.cache_load_factor is None or options.cache_load_factor >= 1.0:
        return Mode.HBM_ONLY
    return Mode.CACHING if options.caching else Mode.HYBRID


def variants(options: DynamicEmbOptions) -> Iterator[DynamicEmbOptions]:
    """What there is to choose from."""
    ratios = RATIOS if options.cache_load_factor is None else (options.cache_load_factor,)
    for caching in (False, True):
        for ratio in ratios:
            yield replace(options, caching=caching, cache_load_factor=ratio)


def chosen(options: DynamicEmbOptions, weight: nn.Parameter, world_size: int, device: str) -> DynamicEmbOptions:
    """A variant as the kernel gets it: with the bytes of the fast tier, if there are two.

    Args:
        options: with `caching` and `cache_load_factor`; without the latter, all rows are in the fast memory.
        weight: the placeholder [max_capacity, dim], with the optimiser on it.
        world_size: ranks.
        device: `cpu` or `cuda`.
    """
    if mode_of(options) is Mode.HBM_ONLY:
        return replace(options, caching=False, cache_load_factor=1.0, local_hbm_for_values=None)
    return replace(options, local_hbm_for_values=growth_sizes(options, weight, world_size, device).fast_values)


def hashed_layout(weight: nn.Parameter, world_size: int) -> tuple[list[list[int]], list[list[int]]]:
    """Sizes and offsets, [rows, columns] each, of a dynamic table's parts: as equal as can be. Which ids are in which, hashes say."""
    rows, columns = weight.shape
    ends = [rows * (rank + 1) // world_size for rank in range(world_size)]
    return [[end - first, columns] for first, end in pairwise([0, *ends])], [[first, 0] for first in [0, *ends[:-1]]]


def static_twin(option: ShardingOption) -> ShardingOption:
    """A static table that has just one row on each rank, with the reads of a dynamic one: TorchRec knows what it costs, and takes in flight."""
    columns = option.tensor.shape[1]
    return ShardingOption(
        name=option.name,
        tensor=torch.empty(len(option.shards), columns, dtype=option.tensor.dtype, device="meta"),
        module=option.module,
        input_lengths=option.input_lengths,
        batch_size=option.batch_size,
        sharding_type=option.sharding_type,
        partition_by=option.partition_by,
        compute_kernel=EmbeddingComputeKernel.FUSED.value,
        shards=[Shard(size=[1, columns], offset=[0, 0])],  # that of each rank
        is_pooled=option.is_pooled,
        feature_names=option.feature_names,
        output_dtype=option.output_dtype,
    )


def half_speed(hardware: Hardware) -> Hardware:
    """The same ranks with memory of half the speed."""
    speeds = hardware.speeds
    return replace(hardware, bandwidths=replace(speeds, hbm=speeds.hbm / 2, ddr=speeds.ddr / 2))


def in_flight(twin: ShardingOption, device: str) -> int:
    """Bytes of ids and vectors under way on each rank, of a `static_twin` with its storage: what it takes beside its one row."""
    storage = twin.shards[0].storage
    assert storage is not None
    taken: int = storage.hbm if device == "cuda" else storage.ddr
    row: int = twin.tensor.shape[1] * twin.tensor.element_size()
    return taken - row


def with_growths(plan: ShardingPlan, options: Iterable[ShardingOption], device: str) -> ShardingPlan:
    """The plan with the places of dynamic tables told in full, changed in place; `options` are those that it was made of, `device` the ranks'."""
    for option in options:
        if isinstance(option, DynamicEmbShardingOption):
            tables = plan.plan[option.path]
            growth = chosen(option.growth, option.tensor, len(option.shards), device)
            tables[option.name] = with_growth(tables[option.name], growth)
            _logger.info("%s", plan_line(option.fqn, option.tensor, growth, len(option.shards), device))
    return plan


def plan_line(path: str, weight: nn.Parameter, growth: DynamicEmbOptions, world_size: int, device: str) -> str:
    """What is told of a dynamic table's place: mode, share and bytes of values on each rank, in the fast memory and behind it."""
    sizes = growth_sizes(growth, weight, world_size, device)
    return (
        f"[dynamicemb plan] {path} mode={mode_of(growth)} cache_load_factor={growth.cache_load_factor:g} "
        f"local_hbm={sizes.fast_values} local_dram={sizes.slow}"
    )


def is_of(option: ShardingOption, placed: ParameterSharding) -> bool:
    """Whether an option has the mode of a place in a plan; of a static table it always has."""
    if not isinstance(option, DynamicEmbShardingOption):
        return True
    assert isinstance(placed, DynamicEmbParameterSharding)
    assert placed.dynamicemb_options is not None
    return option.growth.caching == placed.dynamicemb_options.caching


def estimate(option: DynamicEmbShardingOption, in_flight: int, at_speed: Perf, at_half: Perf, hardware: Hardware, costs: GrowthCosts) -> None:
    """Say what an option takes and costs on each rank. All ranks have alike much of a table.

    Args:
        option: its shards get storage and cost. Of a CPU's second tier, which is no memory, nothing is counted.
        in_flight: bytes of ids and vectors under way.
        at_speed: the cost of a static table of this form in the fast memory.
        at_half: likewise, if that memory had half its speed: in between and beyond, cost is a line.
        hardware: the ranks.
        costs: how much slower its rows are.
    """
    sizes = growth_sizes(option.growth, option.tensor, hardware.world_size, hardware.device)
    fast, on_gpu = sizes.fast + in_flight, hardware.device == "cuda"
    storage = Storage(hbm=fast, ddr=sizes.slow) if on_gpu else Storage(hbm=0, ddr=fast)
    more = slowness(option.growth, hardware.device, hardware.speeds, costs) - 1.0
    names: Mapping[str, Any] = vars(at_speed)
    perf = Perf(**{name: value + more * (getattr(at_half, name) - value) for name, value in names.items()})
    for shard in option.shards:
        shard.storage, shard.perf = copy.copy(storage), copy.copy(perf)
