"""TorchRec's sharders, whose modules hold tables on the CPU in our kernels. On other devices they are TorchRec's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embedding_kernel import BaseEmbedding
from torchrec.distributed.embedding_lookup import GroupedEmbeddingsLookup, GroupedPooledEmbeddingsLookup
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.sharding.dp_sequence_sharding import DpSequenceEmbeddingSharding
from torchrec.distributed.sharding.dp_sharding import DpPooledEmbeddingSharding
from torchrec.distributed.sharding.grid_sharding import GridPooledEmbeddingSharding
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingSharding
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingSharding
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingEnv, ShardingType
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.dynamic.nvidia.sharding import kernel_sharding
from emberline.train.dynamic.options import DynamicRuntime
from emberline.train.sharding.cpu_kernels import CpuBags, CpuSteps
from emberline.train.sharding.hash_rows import HASHED_ROWS, HashedBags, HashedSteps, is_dynamic, split_dynamic
from emberline.train.zch import MapSharder

_SUMMED_OVER_RANKS = (ShardingType.ROW_WISE.value, ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value)


class _BagLookup(GroupedPooledEmbeddingsLookup):  # type: ignore[misc]
    """One rank's kernels of pooled reads."""

    are_copies = False

    def _create_embedding_kernel(
        self,
        config: GroupedEmbeddingConfig,
        device: torch.device | None,
        pg: dist.ProcessGroup | None,
        sharding_type: ShardingType | None,
        env: ShardingEnv | None,
    ) -> BaseEmbedding:
        return CpuBags(config, pg, device, sharding_type, are_copies=self.are_copies)


class _StepLookup(GroupedEmbeddingsLookup):  # type: ignore[misc]
    """One rank's kernels of reads by position."""

    are_copies = False

    def _create_embedding_kernel(
        self, config: GroupedEmbeddingConfig, pg: dist.ProcessGroup | None, device: torch.device | None, env: ShardingEnv | None = None
    ) -> BaseEmbedding:
        return CpuSteps(config, pg, device, are_copies=self.are_copies)


class _Copies:
    """Kernels of tables that every rank holds whole."""

    are_copies = True
    _emb_modules: Any

    @property
    def module(self) -> Self:
        """Where TorchRec looks for what DistributedDataParallel wraps; here nothing does."""
        return self

    def forward(self, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Ids of all features -> their vectors, as the kernels beside this class give them."""
        return _averaged(super().forward(sparse_features), self._emb_modules[0].num_ranks)  # type: ignore[misc]


class _BagCopies(_Copies, _BagLookup):
    """Pooled reads of them."""


class _StepCopies(_Copies, _StepLookup):
    """Reads of them by position."""


class _Average(torch.autograd.Function):
    """Gradients are divided by the number of ranks, as TorchRec's collectives divide those of other tables on their way back: then the ranks' add
    up to the gradient of the mean of their losses. It stands outside of the kernel, so that a bound on gradients means the same for all tables.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, num_ranks: int) -> Tensor:
        ctx.num_ranks = num_ranks
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.num_ranks, None


def _averaged(vectors: Tensor, num_ranks: int) -> Tensor:
    return vectors if num_ranks == 1 else _Average.apply(vectors, num_ranks)  # type: ignore[no-untyped-call]


class _ShardedBags(ShardedEmbeddingBagCollection):  # type: ignore[misc]
    """Tables that are only read pooled.

    Bags that are averaged, of tables that are cut by rows, are summed by the ranks and divided by their lengths when the sums are there. TorchRec
    forgets that of grid_shard, and where one table's bags are divided, it divides those of every table that is not cut by rows as well.

    Tables that grow are cut by rows in a sharding of their own, beside those of the others.
    """

    _embedding_bag_configs: Any

    def __init__(
        self,
        module: EmbeddingBagCollection,
        table_name_to_parameter_sharding: dict[str, ParameterSharding],
        runtime: DynamicRuntime | None = None,
        **others: Any,
    ) -> None:
        self._runtime = runtime  # TorchRec's constructor makes the shardings
        super().__init__(module, table_name_to_parameter_sharding, **others)
        divided: list[str] = []
        kept: list[str] = []
        for table in module.embedding_bag_configs():
            by_rows = table_name_to_parameter_sharding[table.name].sharding_type in _SUMMED_OVER_RANKS
            (divided if by_rows and table.pooling is PoolingType.MEAN else kept).extend(table.feature_names)
        self._pooling_type_to_rs_features = {PoolingType.MEAN.value: divided, PoolingType.SUM.value: kept}
        self._has_mean_pooling_callback = bool(divided)

    @classmethod
    def create_grouped_sharding_infos(cls, *arguments: Any, **others: Any) -> dict[str, list[EmbeddingShardingInfo]]:
        """As TorchRec's, but that tables that grow are by themselves."""
        return split_dynamic(super().create_grouped_sharding_infos(*arguments, **others))

    def create_embedding_bag_sharding(
        self, sharding_infos: list[EmbeddingShardingInfo], env: ShardingEnv, device: torch.device | None = None, **others: Any
    ) -> Any:
        """As TorchRec's, which is a class method, and knows no runtime."""
        if not is_dynamic(sharding_infos[0].param_sharding):
            return super().create_embedding_bag_sharding(sharding_infos, env, device, **others)
        return HashedBags(sharding_infos, env, device, runtime=self._runtime, qcomm_codecs_registry=others.get("qcomm_codecs_registry"))

    def reset_parameters(self) -> None:
        """As TorchRec's, of the tables that have a parameter to fill."""
        with self._static_tables():
            super().reset_parameters()

    def input_dist(self, ctx: Any, features: KeyedJaggedTensor) -> Any:
        """As TorchRec's, but that bags are divided by their lengths, not by a millionth more; sums of weights, which are no whole numbers, stay.

        TorchRec warns of ids beyond the rows of a table, which those that grow do not mind.
        """
        with self._static_tables():
            found = super().input_dist(ctx, features)
        if ctx.divisor is not None and features.weights_or_none() is None:
            ctx.divisor = ctx.divisor.round().clamp(min=1.0)
        return found

    @contextmanager
    def _static_tables(self) -> Iterator[None]:
        """While the body runs, only tables that do not grow are to be seen."""
        tables = self._embedding_bag_configs
        self._embedding_bag_configs = [table for table in tables if not is_dynamic(self.module_sharding_plan[table.name])]
        try:
            yield
        finally:
            self._embedding_bag_configs = tables

    def _create_lookups(self) -> None:
        if not _on_cpu(self._device):
            super()._create_lookups()
            return
        for sharding in self._embedding_shardings:
            self._lookups.append(sharding.create_lookup() if isinstance(sharding, HashedBags) else _bag_lookup(sharding))

    def init_data_parallel(self) -> None:
        """On the CPU nothing is to be wrapped: our copies exchange gradients themselves."""
        if not _on_cpu(self._device):
            super().init_data_parallel()


class _ShardedSteps(ShardedEmbeddingCollection):  # type: ignore[misc]
    """Tables that are read by position; see `_ShardedBags` for those that grow."""

    _embedding_configs: Any

    def __init__(self, *arguments: Any, runtime: DynamicRuntime | None = None, **others: Any) -> None:
        self._runtime = runtime  # TorchRec's constructor makes the shardings
        super().__init__(*arguments, **others)
        _take_over(self, arguments[0])

    @classmethod
    def create_grouped_sharding_infos(cls, *arguments: Any, **others: Any) -> dict[str, list[EmbeddingShardingInfo]]:
        """See `_ShardedBags.create_grouped_sharding_infos`."""
        return split_dynamic(super().create_grouped_sharding_infos(*arguments, **others))

    def create_embedding_sharding(
        self, sharding_type: str, sharding_infos: list[EmbeddingShardingInfo], env: ShardingEnv, device: torch.device | None = None, **others: Any
    ) -> Any:
        """See `_ShardedBags.create_embedding_bag_sharding`."""
        if sharding_type != HASHED_ROWS:
            return super().create_embedding_sharding(sharding_type, sharding_infos, env, device, **others)
        return HashedSteps(sharding_infos, env, device, runtime=self._runtime, qcomm_codecs_registry=others.get("qcomm_codecs_registry"))

    def reset_parameters(self) -> None:
        """See `_ShardedBags.reset_parameters`."""
        tables: Any = self._embedding_configs
        self._embedding_configs = [table for table in tables if not is_dynamic(self.module_sharding_plan[table.name])]
        super().reset_parameters()
        self._embedding_configs = tables

    def _create_lookups(self) -> None:
        if not _on_cpu(self._device):
            super()._create_lookups()
            return
        for sharding in self._sharding_type_to_sharding.values():
            self._lookups.append(sharding.create_lookup() if isinstance(sharding, HashedSteps) else _step_lookup(sharding))

    def init_data_parallel(self) -> None:
        """As `_ShardedBags.init_data_parallel`."""
        if not _on_cpu(self._device):
            super().init_data_parallel()


def _take_over(sharded: nn.Module, collection: EmbeddingBagCollection | EmbeddingCollection) -> None:
    """Give static tables the weights that they had beside tables that grow: for the placeholders' sake the collection says to be on `meta`."""
    weights = {name: weight for name, weight in collection.state_dict().items() if not weight.is_meta}
    if collection.device == torch.device("meta") and weights:
        sharded.load_state_dict(weights, strict=False)


class BagSharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """Of tables that are only read pooled.

    Args:
        runtime: what the job knows, of tables that grow.
    """

    def __init__(self, runtime: DynamicRuntime | None = None) -> None:
        super().__init__()
        self._runtime = runtime

    def shard(
        self,
        module: EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedEmbeddingBagCollection:
        """As TorchRec's sharder."""
        chosen = kernel_sharding(self._runtime or DynamicRuntime(), _ShardedBags, module, params, env.world_size, device)
        return chosen.kind(
            module=module,
            table_name_to_parameter_sharding=chosen.params,
            runtime=self._runtime,
            env=env,
            fused_params=self.fused_params,
            device=device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            module_fqn=module_fqn,
        )


class StepSharder(EmbeddingCollectionSharder):  # type: ignore[misc]
    """Of tables that are read by position; its argument is as of `BagSharder`."""

    def __init__(self, runtime: DynamicRuntime | None = None) -> None:
        super().__init__()
        self._runtime = runtime

    def shard(
        self,
        module: EmbeddingCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedEmbeddingCollection:
        """As TorchRec's sharder."""
        chosen = kernel_sharding(self._runtime or DynamicRuntime(), _ShardedSteps, module, params, env.world_size, device)
        return chosen.kind(
            module,
            chosen.params,
            env,
            self.fused_params,
            device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            use_index_dedup=self._use_index_dedup,
            runtime=self._runtime,
            module_fqn=module_fqn,
            **chosen.arguments,
        )


def create_sharders(runtime: DynamicRuntime | None = None) -> list[ModuleSharder[nn.Module]]:
    """One sharder for each kind of collection that a model may have.

    Args:
        runtime: what the job knows, of tables that grow; None: its defaults.
    """
    return [
        BagSharder(runtime),
        StepSharder(runtime),
        ManagedCollisionEmbeddingBagCollectionSharder(BagSharder(), MapSharder()),
        ManagedCollisionEmbeddingCollectionSharder(StepSharder(), MapSharder()),
    ]


def _on_cpu(device: torch.device | None) -> bool:
    return device is not None and device.type == "cpu"


def _configs(sharding: Any) -> list[GroupedEmbeddingConfig]:
    """The tables of this rank."""
    if hasattr(sharding, "_grouped_embedding_configs"):
        return list(sharding._grouped_embedding_configs)
    return list(sharding._grouped_embedding_configs_per_rank[sharding._rank])


def _bag_lookup(sharding: Any) -> _BagLookup:
    is_copy = isinstance(sharding, DpPooledEmbeddingSharding)
    by_rows = isinstance(sharding, RwPooledEmbeddingSharding | TwRwPooledEmbeddingSharding | GridPooledEmbeddingSharding)
    return (_BagCopies if is_copy else _BagLookup)(
        grouped_configs=_configs(sharding),
        device=sharding._device,
        pg=sharding._env.process_group if is_copy else sharding._pg,
        scale_weight_gradients=not is_copy,
        sharding_type=ShardingType.ROW_WISE if by_rows else None,
        env=sharding._env,
    )


def _step_lookup(sharding: Any) -> _StepLookup:
    is_copy = isinstance(sharding, DpSequenceEmbeddingSharding)
    group = sharding._env.process_group if is_copy else sharding._pg
    return (_StepCopies if is_copy else _StepLookup)(grouped_configs=_configs(sharding), pg=group, device=sharding._device, env=sharding._env)
