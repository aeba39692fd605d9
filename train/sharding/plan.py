"""Plans written by hand: which rank holds which table, under which sharding and kernel."""

from collections.abc import Sequence
from typing import Any, cast

from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection

from emberline.errors import ConfigError
from emberline.train.dynamic.sharding import with_growth
from emberline.train.embedding import EmbeddingGroup
from emberline.train.embedding.jagged import feature_of_key
from emberline.train.sharding.constraints import growing_tables
from emberline.train.sharding.dynamic_variants import chosen
from emberline.train.sharding.hardware import COLUMN_MULTIPLES
from emberline.train.sharding.shardable import shardable_modules

_MANAGED = (ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection)
FUSED = EmbeddingComputeKernel.FUSED.value


def create_single_process_plan(model: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> ShardingPlan:
    """The plan for one process on the CPU: every table whole on rank 0, in fused kernels; ZCH tables row-wise, which is the one way they know.

    Dynamic tables grow there, with the `cache_load_factor` that they ask for.
    """
    plan = {}
    growing = growing_tables(model)
    for path, module, sharder in shardable_modules(model, sharders):
        is_zch = isinstance(module, _MANAGED)
        placement = row_wise(compute_kernel=FUSED) if is_zch else table_wise(rank=0, device="cpu", compute_kernel=FUSED)
        weights = sharder.shardable_parameters(module)
        tables = {name: row_wise(compute_kernel=FUSED) if f"{path}.{name}" in growing else placement for name in weights}
        plan[path] = construct_module_sharding_plan(module, tables, sharder=sharder, local_size=1, world_size=1, device_type="cpu")
        for name, weight in weights.items():
            if f"{path}.{name}" in growing:
                plan[path][name] = with_growth(plan[path][name], chosen(growing[f"{path}.{name}"], weight, 1, "cpu"))
    return ShardingPlan(plan)


def check_dims(model: nn.Module, sharders: list[ModuleSharder[nn.Module]], device: str) -> None:
    """Refuse tables whose width the fused kernels of a device do not know.

    Args:
        model: before sharding.
        sharders: one for each kind of collection.
        device: `cpu`, where any width will do, or `cuda`.

    Raises:
        ConfigError: names all of them.
    """
    multiple = COLUMN_MULTIPLES[device]
    wide = {table.name for module in model.modules() if isinstance(module, EmbeddingGroup) for table in module.registry.tables if table.is_wide}
    problems = []
    for _, module, _ in shardable_modules(model, sharders):
        for config in _tables(module):
            if config.embedding_dim % multiple == 0:
                continue
            field, least = "wide_embedding_dim" if config.name in wide else "embedding_dim", -(-config.embedding_dim // multiple) * multiple
            problems.append(
                f"table {config.name!r}, read by {', '.join(map(feature_of_key, config.feature_names))}, has {field} {config.embedding_dim}: "
                f"training on a GPU needs a multiple of {multiple}, such as {field}: {least}; on CPUs any width will do"
            )
    if problems:
        raise ConfigError(problems)


def _tables(module: nn.Module) -> Sequence[BaseEmbeddingConfig]:
    collection = module._embedding_module if isinstance(module, _MANAGED) else module
    configs = collection.embedding_bag_configs() if isinstance(collection, EmbeddingBagCollection) else cast(Any, collection).embedding_configs()
    return cast(Sequence[BaseEmbeddingConfig], configs)
