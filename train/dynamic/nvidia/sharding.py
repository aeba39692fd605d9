"""Collections of tables that NVIDIA's kernel holds, made of its sharded collections and of ours, so that static tables beside them stay ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torchrec.distributed.types import EnumerableShardingSpec, ParameterSharding, ShardMetadata
from torchrec.modules.embedding_configs import BaseEmbeddingConfig, data_type_to_dtype
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import ConfigError
from emberline.train.dynamic.nvidia.options import ROUND_ROBIN, LearnedTable, table_options
from emberline.train.dynamic.nvidia.package import OURS_INSTEAD, NvidiaPackage, choose_kernel
from emberline.train.dynamic.nvidia.tables import guard
from emberline.train.dynamic.options import CUSTOMIZED_COMPUTE_KERNEL, DynamicRuntime
from emberline.train.dynamic.sharding import DynamicEmbParameterSharding


@dataclass(frozen=True)
class KernelSharding:
    """How one collection is sharded.

    Args:
        kind: class of the sharded collection.
        params: of each table; NVIDIA's for those that its kernel holds.
        arguments: what its constructor takes beside those of TorchRec's.
    """

    kind: type[Any]
    params: dict[str, ParameterSharding]
    arguments: dict[str, Any] = field(default_factory=dict)


def kernel_sharding(
    runtime: DynamicRuntime,
    base: type[Any],
    module: EmbeddingBagCollection | EmbeddingCollection,
    params: Mapping[str, ParameterSharding],
    world_size: int,
    device: torch.device | None,
) -> KernelSharding:
    """How to shard a collection: as ever, or with NVIDIA's kernel for the tables of it that grow.

    Args:
        runtime: says which kernel the job wants.
        base: our sharded collection, whose constructor takes what TorchRec's does.
        module: the collection.
        params: how the plan shards each table.
        world_size: ranks.
        device: of this rank.

    Raises:
        ConfigError: the kernel that was asked for is not for this device, or NVIDIA's cannot do what a table asks.
        MissingDependencyError: NVIDIA's was asked for, and is not there.
    """
    if not _growing(params):
        return KernelSharding(base, dict(params))
    package = choose_kernel(device or torch.device("cpu"), runtime.kernel).package
    return KernelSharding(base, dict(params)) if package is None else nvidia_sharding(package, runtime, base, module, params, world_size)


def nvidia_sharding(
    package: NvidiaPackage,
    runtime: DynamicRuntime,
    base: type[Any],
    module: EmbeddingBagCollection | EmbeddingCollection,
    params: Mapping[str, ParameterSharding],
    world_size: int,
) -> KernelSharding:
    """How to shard a collection with NVIDIA's kernel.

    Args:
        package: NVIDIA's.
        runtime: what the job knows.
        base: our sharded collection, whose constructor takes what TorchRec's does.
        module: the collection.
        params: how the plan shards each table; one of them at least grows.
        world_size: ranks.

    Raises:
        ConfigError: the kernel cannot do what a table asks.
    """
    growing = _growing(params)
    pooled = isinstance(module, EmbeddingBagCollection)
    if pooled and module.is_weighted() and not package.weighs_bags:
        wrong = f"tables {', '.join(growing)}: {package} takes weights of bags for counts of reads and weighs nothing"
        raise ConfigError(f"{wrong}; update it (0.1.0+20260911 or later), leave the weights out, {OURS_INSTEAD}")
    tables = {name: _table(module, name, sharding, world_size) for name, sharding in growing.items()}
    converted = {name: _converted(package, growing[name], table) for name, table in tables.items()}
    kind = (_bags if pooled else _steps)(package, base, tables, runtime)
    arguments = {} if pooled else _step_arguments([sharding.dynamicemb_options for sharding in converted.values()], tables)
    return KernelSharding(kind, {**params, **converted}, arguments)


def _growing(params: Mapping[str, ParameterSharding]) -> dict[str, DynamicEmbParameterSharding]:
    return {name: sharding for name, sharding in params.items() if isinstance(sharding, DynamicEmbParameterSharding)}


def _table(module: EmbeddingBagCollection | EmbeddingCollection, name: str, sharding: DynamicEmbParameterSharding, world_size: int) -> LearnedTable:
    configs: list[BaseEmbeddingConfig] = module.embedding_bag_configs() if isinstance(module, EmbeddingBagCollection) else module.embedding_configs()
    config = next(config for config in configs if config.name == name)
    holders = module.embedding_bags if isinstance(module, EmbeddingBagCollection) else module.embeddings
    weight = holders[name].weight
    if not weight.requires_grad:
        raise ConfigError(f"table {name!r} is frozen: NVIDIA's kernel would admit ids to it; let it learn, {OURS_INSTEAD}")
    optimizers = getattr(weight, "_optimizer_classes", [None])
    if optimizers[0] is None:  # one that is only evaluated: the kernel asks for an optimiser all the same
        _apply_optimizer_in_backward(torch.optim.SGD, [weight], {"lr": 0.0})
    options = sharding.dynamicemb_options
    assert options is not None
    return LearnedTable(name, config.embedding_dim, data_type_to_dtype(config.data_type), optimizers[0], options, world_size)


def _converted(package: NvidiaPackage, sharding: DynamicEmbParameterSharding, table: LearnedTable) -> Any:
    """Theirs of ours: whole buckets on each rank."""
    theirs = package.planner.DynamicEmbParameterSharding
    assert isinstance(sharding.sharding_spec, EnumerableShardingSpec)
    placements = [shard.placement for shard in sharding.sharding_spec.shards]
    shards = [
        ShardMetadata(shard_offsets=[table.rows * rank, 0], shard_sizes=[table.rows, table.dim], placement=placement)
        for rank, placement in enumerate(placements)
    ]
    known = {one.name for one in fields(theirs)}
    beside = {"customized_compute_kernel": CUSTOMIZED_COMPUTE_KERNEL, "dist_type": ROUND_ROBIN}
    return theirs(
        sharding_type=sharding.sharding_type,
        compute_kernel=sharding.compute_kernel,
        ranks=list(range(len(shards))),
        sharding_spec=EnumerableShardingSpec(shards),
        dynamicemb_options=table_options(package, table),
        **{name: value for name, value in beside.items() if name in known},
    )


def _step_arguments(options: list[Any], tables: Mapping[str, LearnedTable]) -> dict[str, Any]:
    """NVIDIA's collection counts reads by the first table's strategy; so all of one collection are to have the same."""
    strategies = {one.score_strategy for one in options}
    admitted = {one.admit_strategy is not None for one in options}
    if len(strategies) > 1 or len(admitted) > 1:
        wants = "NVIDIA's kernel wants one score_strategy for tables of one width that are read by position, and frequency admission for all or none"
        raise ConfigError(f"tables {', '.join(tables)}: {wants}; change that, {OURS_INSTEAD}")
    return {"score_strategy": strategies.pop(), "has_admit_strategy": admitted.pop()}


def _bags(package: NvidiaPackage, base: type[Any], learned: Mapping[str, LearnedTable], runtime: DynamicRuntime) -> type[Any]:
    theirs: Any = package.shard.ShardedDynamicEmbeddingBagCollection

    class Bags(base, theirs):  # type: ignore[misc]
        """Pooled reads."""

        def input_dist(self, ctx: Any, features: KeyedJaggedTensor) -> Any:
            """Of tables that weigh nothing, weights stay behind: old releases count reads by them."""
            return super().input_dist(ctx, features if self._is_weighted else _unweighted(features))

        def _create_lookups(self) -> None:
            super()._create_lookups()
            for lookup in self._lookups:
                guard(lookup, package, learned, runtime)

    return Bags


def _steps(package: NvidiaPackage, base: type[Any], learned: Mapping[str, LearnedTable], runtime: DynamicRuntime) -> type[Any]:
    theirs: Any = package.shard.ShardedDynamicEmbeddingCollection

    class Steps(base, theirs):  # type: ignore[misc]
        """Reads by position."""

        def _create_lookups(self) -> None:
            super()._create_lookups()
            for lookup in self._lookups:
                guard(lookup, package, learned, runtime)

    return Steps


def _unweighted(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    if features.weights_or_none() is None:
        return features
    variable = features.variable_stride_per_key()
    return KeyedJaggedTensor(
        keys=features.keys(),
        values=features.values(),
        lengths=features.lengths(),
        **({"stride_per_key_per_rank": features.stride_per_key_per_rank()} if variable else {"stride": features.stride()}),
    )
