"""Plans written by hand: which rank holds which table, under which sharding and kernel."""

from collections.abc import Iterable
from typing import cast

from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection

from emberline.errors import ConfigError

_COLLECTIONS = (EmbeddingBagCollection, ManagedCollisionEmbeddingBagCollection)
FUSED = EmbeddingComputeKernel.FUSED.value
DIM_MULTIPLE = 4
"""fbgemm's fused kernels want every table's width to be a multiple of this many numbers."""


def create_sharders() -> list[ModuleSharder[nn.Module]]:
    """One sharder for each kind of collection that a model may have."""
    return [EmbeddingBagCollectionSharder(), ManagedCollisionEmbeddingBagCollectionSharder()]


def create_single_process_plan(model: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> ShardingPlan:
    """The plan for one process on the CPU: every table whole on rank 0, in fused kernels; ZCH tables row-wise, which is the one way they know.

    Raises:
        ConfigError: tables whose width the fused kernels do not know; names all of them.
    """
    collections = {path: module for path, module in model.named_modules() if isinstance(module, _COLLECTIONS)}
    # A ZCH collection holds a plain one: only the outer is sharded.
    inner = {f"{path}._embedding_module" for path, module in collections.items() if isinstance(module, ManagedCollisionEmbeddingBagCollection)}
    collections = {path: module for path, module in collections.items() if path not in inner}
    _check_dims(collections.values())
    by_type = {sharder.module_type: sharder for sharder in sharders}
    plan = {}
    for path, module in collections.items():
        sharder = by_type[type(module)]
        is_zch = isinstance(module, ManagedCollisionEmbeddingBagCollection)
        placement = row_wise(compute_kernel=FUSED) if is_zch else table_wise(rank=0, device="cpu", compute_kernel=FUSED)
        tables = dict.fromkeys(sharder.shardable_parameters(module), placement)
        plan[path] = construct_module_sharding_plan(module, tables, sharder=sharder, local_size=1, world_size=1, device_type="cpu")
    return ShardingPlan(plan)


def _check_dims(collections: Iterable[nn.Module]) -> None:
    bags = [module._embedding_module if isinstance(module, ManagedCollisionEmbeddingBagCollection) else module for module in collections]
    problems = [
        f"table {config.name!r} has embedding_dim {config.embedding_dim}: training needs a multiple of {DIM_MULTIPLE}, "
        f"such as {-(-config.embedding_dim // DIM_MULTIPLE) * DIM_MULTIPLE}"
        for module in bags
        for config in cast(EmbeddingBagCollection, module).embedding_bag_configs()
        if config.embedding_dim % DIM_MULTIPLE
    ]
    if problems:
        raise ConfigError(problems)
