"""Tables that grow, in the place of kernels in TorchRec's sharded modules.

TorchRec asks a kernel for its tables' weights and moments by parameter name. These have none: which rows there are depends on the ids, so they are
no parameters, and come in no state dict; checkpoints ask `dynamic_tables`. What remains is the rate, which the fused optimiser hands on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor, nn
from torchrec.distributed.batched_embedding_kernel import BaseBatchedEmbedding, BaseBatchedEmbeddingBag
from torchrec.distributed.embedding_lookup import GroupedEmbeddingsLookup, GroupedPooledEmbeddingsLookup
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.distributed.types import ShardingEnv, ShardingType
from torchrec.modules.embedding_configs import data_type_to_dtype
from torchrec.optim.fused import FusedOptimizer, FusedOptimizerModule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.routing import unmix
from emberline.train.dynamic.device.tables import create_tables
from emberline.train.dynamic.options import DynamicEmbOptions, DynamicRuntime
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.kernels import FusedTables
from emberline.train.optim.border import kernels_of
from emberline.train.sharding.fused_params import FusedParams


class RateOptimizer(FusedOptimizer):  # type: ignore[misc]
    """Hands its rate to tables that learn in backward; it has no parameters, and no state.

    Args:
        tables: which.
    """

    def __init__(self, tables: FusedTables) -> None:
        super().__init__({}, {}, [{"params": [], "lr": tables.lr}])
        self._tables = tables

    def step(self, closure: Any = None) -> None:
        """The rate, from the next update on."""
        (group,) = self.param_groups
        self._tables.lr = float(group["lr"])

    def zero_grad(self, set_to_none: bool = False) -> None:
        """As `step`: there are no gradients."""
        self.step()

    def set_optimizer_step(self, step: int) -> None:
        """Go on as if that many updates were done."""
        self._tables.step = int(step)


class DynamicKernel(FusedOptimizerModule):  # type: ignore[misc]
    """What both kinds of kernels have in common."""

    _config: GroupedEmbeddingConfig
    _pg: dist.ProcessGroup | None

    def _hold(self, options: Mapping[str, DynamicEmbOptions], runtime: DynamicRuntime, pooling: PoolingMode, device: torch.device | None) -> None:
        config, params, ranks = self._config, FusedParams.of(self._config), self.num_ranks
        shards = config.embedding_tables
        self._emb_module = create_tables(
            [_share(shard.name, shard.local_cols, options[shard.name], ranks) for shard in shards],
            [place for place, shard in enumerate(shards) for _ in range(shard.num_features())],
            params.optimizer,
            data_type_to_dtype(config.data_type),
            runtime=runtime,
            pooling=pooling,
            max_gradient=params.max_gradient,
            stochastic_rounding=params.stochastic_rounding,
            frozen_in_graph=ranks > 1,  # ranks must agree about which collectives run backward
            output_dtype=params.output_dtype,
            device=device or torch.device("cpu"),
        )
        self._optim = RateOptimizer(self._emb_module.tables)

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return dist.get_world_size(self._pg) if self._pg is not None else 1

    @property
    def emb_module(self) -> BatchedDynamicEmbeddingTables:
        """The tables."""
        return self._emb_module

    @property
    def fused_optimizer(self) -> FusedOptimizer:
        """What takes the rate."""
        return self._optim

    def ids_of(self, features: KeyedJaggedTensor) -> Tensor:
        """The ids of what came from all ranks, int64 [N]: ranks send places."""
        places: Tensor = features.values()
        return unmix(places) if self.num_ranks > 1 else places

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Have the rows of a batch to come at hand, where the tables have a second tier."""
        sizes = features.stride_per_key() if features.variable_stride_per_key() else None
        self._emb_module.prefetch(self.ids_of(features), features.offsets(), sizes)

    def set_initial_moment(self, value: float) -> None:
        """What the moments of rows that come from now on begin with, where the optimiser lets one say so."""
        tables = self._emb_module.tables
        optimizer: Any = tables.optimizer
        if any(field.name == "initial_accumulator_value" for field in fields(optimizer)):
            tables.optimizer = replace(optimizer, initial_accumulator_value=value)

    def split_embedding_weights(self) -> list[Tensor]:
        """None, as in the methods below: these tables are no parameters."""
        return []

    def state_dict(self, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Nothing more than `destination` has."""
        return {} if destination is None else destination

    def named_split_embedding_weights(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        """None."""
        yield from ()

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        """None."""
        yield from ()

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """None."""
        yield from ()

    def named_parameters_by_table(self) -> Iterator[tuple[str, Any]]:
        """None."""
        yield from ()


class DynamicBags(DynamicKernel, BaseBatchedEmbeddingBag[Tensor]):  # type: ignore[misc]
    """Pooled reads; means are divided by the lengths of bags when the ranks' sums are added up.

    Args:
        config: tables that lie together.
        options: of each table, by name.
        runtime: what the job knows.
        pg: the group of all ranks.
        device: of this rank.
    """

    def __init__(
        self,
        config: GroupedEmbeddingConfig,
        options: Mapping[str, DynamicEmbOptions],
        runtime: DynamicRuntime,
        pg: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(config, pg, device, ShardingType.ROW_WISE)
        self._hold(options, runtime, self._pooling, device)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Places of all features -> [B, D]; where features have different numbers of rows, the vectors in one line, by rank and feature."""
        ids, offsets, weights = self.ids_of(features), features.offsets(), features.weights_or_none()
        if not features.variable_stride_per_key():
            return self._emb_module(ids, offsets, weights)  # type: ignore[no-any-return]
        found = self._emb_module(ids, offsets, weights, batch_sizes=features.stride_per_key())
        return _by_rank(found, features.stride_per_key_per_rank(), self._config.embedding_dims())


class DynamicSteps(DynamicKernel, BaseBatchedEmbedding[Tensor]):  # type: ignore[misc]
    """Reads by position.

    Args:
        config: tables that lie together.
        options: of each table, by name.
        runtime: what the job knows.
        pg: the group of all ranks.
        device: of this rank.
    """

    def __init__(
        self,
        config: GroupedEmbeddingConfig,
        options: Mapping[str, DynamicEmbOptions],
        runtime: DynamicRuntime,
        pg: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(config, pg, device)
        self._hold(options, runtime, PoolingMode.NONE, device)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Places of all features -> [N, d]."""
        return self._emb_module(self.ids_of(features), features.offsets())  # type: ignore[no-any-return]


class _DynamicLookup:
    """The kernels of one collection on this rank."""

    _options: Mapping[str, DynamicEmbOptions]
    _runtime: DynamicRuntime
    _feature_splits: list[int]
    _emb_modules: Any

    @property
    def has_second_tier(self) -> bool:
        """Whether rows of some table are kept elsewhere than in the fast memory."""
        return any(options.local_hbm_for_values is not None for options in self._options.values())

    def prefetch(self, sparse_features: KeyedJaggedTensor, forward_stream: Any = None) -> None:
        """See `DynamicKernel.prefetch`."""
        for kernel, features in zip(self._emb_modules, sparse_features.split(self._feature_splits), strict=True):
            kernel.prefetch(features)


class DynamicBagLookup(_DynamicLookup, GroupedPooledEmbeddingsLookup):  # type: ignore[misc]
    """Of pooled reads.

    Args:
        options: of each table, by name.
        runtime: what the job knows.
        grouped_configs: tables that lie together.
        device: of this rank.
        pg: the group of all ranks.
        env: likewise.
    """

    def __init__(
        self,
        options: Mapping[str, DynamicEmbOptions],
        runtime: DynamicRuntime,
        grouped_configs: list[GroupedEmbeddingConfig],
        device: torch.device | None,
        pg: dist.ProcessGroup | None,
        env: ShardingEnv | None,
    ) -> None:
        self._options, self._runtime = options, runtime  # TorchRec's constructor makes the kernels
        super().__init__(grouped_configs, device, pg, sharding_type=ShardingType.ROW_WISE, env=env)

    def _create_embedding_kernel(
        self,
        config: GroupedEmbeddingConfig,
        device: torch.device | None,
        pg: dist.ProcessGroup | None,
        sharding_type: ShardingType | None,
        env: ShardingEnv | None,
    ) -> DynamicBags:
        return DynamicBags(config, self._options, self._runtime, pg, device)

    def _forward_with_vbe_merging(self, features_by_group: list[KeyedJaggedTensor], device: torch.device) -> Tensor:
        """Each kernel gives its own vectors; TorchRec's way has fbgemm's kernels write into one tensor."""
        found: Tensor = self._merge_variable_batch_embeddings(self._forward(features_by_group), self._vbe_splits(features_by_group))
        return found


class DynamicStepLookup(_DynamicLookup, GroupedEmbeddingsLookup):  # type: ignore[misc]
    """Of reads by position; arguments as of `DynamicBagLookup`."""

    def __init__(
        self,
        options: Mapping[str, DynamicEmbOptions],
        runtime: DynamicRuntime,
        grouped_configs: list[GroupedEmbeddingConfig],
        device: torch.device | None,
        pg: dist.ProcessGroup | None,
        env: ShardingEnv | None,
    ) -> None:
        self._options, self._runtime = options, runtime  # TorchRec's constructor makes the kernels
        super().__init__(grouped_configs, pg, device, env)

    def _create_embedding_kernel(
        self, config: GroupedEmbeddingConfig, pg: dist.ProcessGroup | None, device: torch.device | None, env: ShardingEnv | None = None
    ) -> DynamicSteps:
        return DynamicSteps(config, self._options, self._runtime, pg, device)


def has_second_tier(lookup: nn.Module) -> bool:
    """Whether a module's lookup can be told of a batch to come, to some use."""
    return isinstance(lookup, _DynamicLookup) and lookup.has_second_tier


def dynamic_tables(model: nn.Module) -> dict[str, BatchedDynamicEmbeddingTables]:
    """What holds this rank's rows of each table that grows, by the table's name; tables that lie together have the same."""
    kernels = [(kernel, names) for kernel, names in kernels_of(model) if isinstance(kernel, DynamicKernel)]
    return {name: kernel.emb_module for kernel, names in kernels for name in sorted(names)}


def _share(name: str, dim: int, options: DynamicEmbOptions, ranks: int) -> DynamicTable:
    """A table's part on one of several ranks, which all have room for as much."""
    counted = 0 if options.admission is None else -(-options.admission.counter_capacity // ranks)
    return DynamicTable(name, dim, options, -(-options.max_capacity // ranks), counted)


def _by_rank(vectors: Tensor, rows: Sequence[Sequence[int]], dims: Sequence[int]) -> Tensor:
    """Vectors in one line, feature by feature, each rank by rank -> rank by rank, each feature by feature.

    Args:
        vectors: [sum of rows times widths].
        rows: of each feature, by rank.
        dims: of each feature.
    """
    parts = torch.split(vectors, [count * dim for own, dim in zip(rows, dims, strict=True) for count in own])
    ranks = len(rows[0])
    return torch.cat([part for rank in range(ranks) for part in parts[rank::ranks]])
