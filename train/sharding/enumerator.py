"""Every way to hold every table of a model, with what it costs: TorchRec's search space, keyed by the tables' full paths."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from torch import nn
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import Enumerator, ParameterConstraints, Shard, ShardingOption, Topology
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets
from torchrec.distributed.types import CacheParams, ModuleSharder

from emberline.errors import ConfigError
from emberline.train.embedding.constraints import pinned_ranks
from emberline.train.features.constraints import asked_text
from emberline.train.features.placement import MIB, TableConstraints
from emberline.train.sharding.dynamic_costs import COSTS, GrowthCosts
from emberline.train.sharding.dynamic_variants import (
    DynamicEmbShardingOption,
    estimate,
    growth_of,
    half_speed,
    hashed_layout,
    in_flight,
    static_twin,
)
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.offers import GRID_SHARD, TABLE_ROW_WISE, Choice, Offer, Offers, TableShape, create_choice
from emberline.train.sharding.shardable import shardable_modules
from emberline.train.sharding.sizes import size_text
from emberline.train.zch import IdMap, zch_modules


class OptionEnumerator(Enumerator):  # type: ignore[misc]
    """Lists the options of all tables.

    Args:
        hardware: the ranks.
        batch_size: rows that each rank reads in a step.
        constraints: by the tables' full paths.
        default: of tables that `constraints` does not have.
        costs: of rows of dynamic tables; None: as assumed for the device.
    """

    def __init__(
        self,
        hardware: Hardware,
        batch_size: int,
        constraints: Mapping[str, ParameterConstraints],
        default: ParameterConstraints | None = None,
        costs: GrowthCosts | None = None,
    ) -> None:
        self._hardware, self._batch_size = hardware, batch_size
        self._costs = costs or COSTS[hardware.device]
        self._topology = hardware.topology()
        self._constraints = constraints
        self._default = default or TableConstraints()
        self.loose: dict[str, frozenset[str]] = {}
        """By table, what of its constraints does not bind it, as it can't have it; of the last `enumerate`."""

    def constraints_of(self, path: str) -> ParameterConstraints:
        """Those of the table with this full path."""
        return self._constraints.get(path, self._default)

    def pins_of(self, path: str) -> tuple[int, ...]:
        """The only ranks that may hold the table with this full path; none where it may be anywhere."""
        return () if "ranks" in self.loose.get(path, ()) else pinned_ranks(self.constraints_of(path))

    def enumerate(self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> list[ShardingOption]:
        """All options of all tables below `module`, with storage and cost.

        Raises:
            ConfigError: constraints that leave a table no option; names every such table, what was asked, and what there is.
        """
        data = build_sharder_data_map({sharder_name(sharder.module_type): sharder for sharder in sharders})
        options: list[ShardingOption] = []
        problems = []
        choices: dict[str, Choice] = {}
        for path, part, sharder in shardable_modules(module, sharders):
            own: list[ShardingOption] = []
            tables, maps = sharder.shardable_parameters(part), zch_modules(part)
            for name, weight in tables.items():
                asked = self.constraints_of(f"{path}.{name}")
                shape = TableShape(weight.shape[0], weight.shape[1], type(part), maps.get(name), growth_of(asked))
                choice = create_choice(shape, sharder, asked, self._hardware)
                choices[f"{path}.{name}"] = choice
                if not choice.offers.offers:
                    problems.append(_no_option(name, choice.offers))
                own += [self._option(path, part, name, weight, offer, maps.get(name)) for offer in choice.offers.offers]
            self._estimate(path, list(tables), own, data)
            kept = [option for option in own if self._within_bounds(option)]
            fitting = {option.name for option in kept}
            for name in dict.fromkeys(option.name for option in own if option.name not in fitting):
                problems.append(_too_large(name, [option for option in own if option.name == name], self.constraints_of(f"{path}.{name}")))
            options += kept
        self.loose = {path: choice.loose for path, choice in choices.items() if choice.loose}
        problems += _bind_nothing(choices)
        if problems:
            raise ConfigError(problems)
        return options

    def populate_estimates(self, sharding_options: list[ShardingOption]) -> None:
        """Nothing: `enumerate` gives options that have their estimates."""

    def _option(self, path: str, module: nn.Module, name: str, weight: nn.Parameter, offer: Offer, id_map: IdMap | None) -> ShardingOption:
        constraints = self.constraints_of(f"{path}.{name}")
        layout = shard_layout(weight, offer.sharding_type, offer.width, self._hardware, id_map)
        if offer.growth is not None:
            layout = hashed_layout(weight, self._hardware.world_size)
        cache = constraints.cache_params
        if offer.cache_ratio is not None:
            cache = replace(cache or CacheParams(), load_factor=offer.cache_ratio)
        option = (ShardingOption if offer.growth is None else DynamicEmbShardingOption)(
            name=name,
            tensor=weight,
            module=(path, module),
            input_lengths=constraints.pooling_factors,
            batch_size=self._batch_size,
            compute_kernel=offer.compute_kernel,
            sharding_type=offer.sharding_type,
            partition_by=get_partition_by_type(offer.sharding_type),
            shards=[Shard(size=size, offset=offset) for size, offset in zip(*layout, strict=True)],
            cache_params=cache if offer.cache_ratio is not None else None,
            enforce_hbm=constraints.enforce_hbm,
            stochastic_rounding=constraints.stochastic_rounding,
            bounds_check_mode=constraints.bounds_check_mode,
            is_pooled=ShardingOption.module_pooled(module, path),
            feature_names=constraints.feature_names,
            output_dtype=constraints.output_dtype,
            key_value_params=copy.deepcopy(constraints.key_value_params),
        )
        if isinstance(option, DynamicEmbShardingOption):
            assert offer.growth is not None
            option.growth = offer.growth
        return option

    def _estimate(self, path: str, names: list[str], options: list[ShardingOption], data: Any) -> None:
        """TorchRec's estimators know tables by bare names, so each module has its own."""
        by_name = {name: self.constraints_of(f"{path}.{name}") for name in names}
        growing = [option for option in options if isinstance(option, DynamicEmbShardingOption)]
        options = [option for option in options if not isinstance(option, DynamicEmbShardingOption)]
        self._estimate_growing(growing, by_name, data)
        EmbeddingStorageEstimator(topology=self._topology, constraints=by_name).estimate(options, sharder_data_map=data)
        _cost([_without_twins(option) for option in options], self._topology, by_name, data)
        for option in options:
            known = {tuple(shard.size): shard.perf for shard in option.shards if shard.perf is not None}
            for shard in option.shards:
                shard.perf = known[tuple(shard.size)]

    def _estimate_growing(self, options: list[DynamicEmbShardingOption], by_name: Mapping[str, ParameterConstraints], data: Any) -> None:
        """Dynamic tables have estimates of their own, which begin with those of a static table of the same form."""
        tables: dict[str, list[DynamicEmbShardingOption]] = {}
        for option in options:
            tables.setdefault(option.name, []).append(option)
        twins = {name: static_twin(own[0]) for name, own in tables.items()}
        EmbeddingStorageEstimator(topology=self._topology, constraints=by_name).estimate(list(twins.values()), sharder_data_map=data)
        slower = {name: copy.deepcopy(twin) for name, twin in twins.items()}
        _cost(list(twins.values()), self._topology, by_name, data)
        _cost(list(slower.values()), half_speed(self._hardware).topology(), by_name, data)
        for name, own in tables.items():
            under_way = in_flight(twins[name], self._hardware.device)
            for option in own:
                estimate(option, under_way, twins[name].shards[0].perf, slower[name].shards[0].perf, self._hardware, self._costs)

    def _within_bounds(self, option: ShardingOption) -> bool:
        constraints = self.constraints_of(option.fqn)
        most = constraints.max_hbm if isinstance(constraints, TableConstraints) else None
        return most is None or all(shard.storage is not None and shard.storage.hbm <= most for shard in option.shards)


def _cost(options: list[ShardingOption], topology: Topology, constraints: Mapping[str, ParameterConstraints], data: Any) -> None:
    """Give every shard its cost."""
    estimator = EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, topology=topology, constraints=constraints)
    estimator.estimate(options, sharder_data_map=data)


def _without_twins(option: ShardingOption) -> ShardingOption:
    """The option with one shard of each size: equal shards cost the same, and TorchRec's estimator takes a millisecond for each."""
    found = copy.copy(option)
    found.shards = list({tuple(shard.size): shard for shard in option.shards}.values())
    return found


def shard_layout(
    weight: nn.Parameter, sharding_type: str, width: int | None, hardware: Hardware, id_map: IdMap | None = None
) -> tuple[list[list[int]], list[list[int]]]:
    """Sizes and offsets, [rows, columns] each, of a table's shards; `width` is that of a shard, where columns are cut.

    TorchRec would only cut columns into multiples of 4, and rows into equal blocks, whatever the buckets of an `id_map` are.
    """
    if id_map is not None:
        ends, columns = id_map.shard_ends(hardware.world_size), weight.shape[1]
        return [[end - first, columns] for first, end in pairwise(ends)], [[first, 0] for first in ends[:-1]]
    if width is not None:
        rows, columns = weight.shape
        blocks, _ = shard_layout(weight, TABLE_ROW_WISE, None, hardware) if sharding_type == GRID_SHARD else ([[rows, columns]], [])
        starts = list(accumulate((size for size, _ in blocks), initial=0))[:-1]
        firsts = range(0, columns, width)
        return [[size, width] for _ in firsts for size, _ in blocks], [[start, first] for first in firsts for start in starts]
    sizes, offsets = calculate_shard_sizes_and_offsets(
        tensor=weight,
        world_size=hardware.world_size,
        local_world_size=hardware.local_world_size,
        sharding_type=sharding_type,
    )
    return sizes, offsets


def _bind_nothing(choices: Mapping[str, Choice]) -> Iterator[str]:
    """What is asked of all tables, and binds none of them, though not all are ZCH tables."""
    for field in ("sharding_types", "compute_kernels", "ranks"):
        asked = {path: choice for path, choice in choices.items() if field in getattr(choice.strict.constraints, "general", ())}
        others = [path for path, choice in asked.items() if not choice.strict.table.is_zch]
        if others and all(field in choice.loose for choice in asked.values()):
            strict = choices[others[0]].strict
            values = asked_text({field: getattr(strict.constraints, field)})
            yield f"global_embedding_constraints: {values}: no table can be so; table {others[0].rpartition('.')[2]!r}: {'; '.join(strict.problems)}"


def asked_of(constraints: ParameterConstraints) -> str:
    """What is asked of one table's place, under the names that a config has."""
    cache = constraints.cache_params
    most = constraints.max_hbm if isinstance(constraints, TableConstraints) else None
    return asked_text(
        {
            "sharding_types": constraints.sharding_types,
            "compute_kernels": constraints.compute_kernels,
            "min_partition": constraints.min_partition,
            "cache_load_factor": None if cache is None else cache.load_factor,
            "ranks": pinned_ranks(constraints),
            "max_hbm_mib": None if most is None else round(most / MIB, 3),
        }
    )


def _no_option(name: str, offers: Offers) -> str:
    kinds = [f"{kind} ({', '.join(offers.known_kernels(kind))})" for kind in offers.known_types]
    return (
        f"table {name!r}: nothing is left to choose; asked: {asked_of(offers.constraints)}; {'; '.join(offers.problems)}. "
        f"{offers.hardware.device} offers such tables {', '.join(kinds)}"
    )


def _too_large(name: str, options: list[ShardingOption], asked: ParameterConstraints) -> str:
    least = min(max(shard.storage.hbm for shard in option.shards) for option in options)
    return (
        f"table {name!r}: max_hbm_mib leaves no option: the smallest has {size_text(least)} on one GPU, with moments, and ids and vectors in flight; "
        f"asked: {asked_of(asked)}"
    )
