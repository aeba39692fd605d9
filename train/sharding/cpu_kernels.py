"""Our tables in the place of fbgemm's fused kernels, in TorchRec's sharded modules on the CPU.

fbgemm's CPU kernels know three optimisers and widths that are multiples of 4, leave out weight decay, and spend most of a step in backward. TorchRec
asks a kernel for its tables' weights and moments, and sets its rate; what it asks, `CpuTables` answers.
"""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor, nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torchrec.distributed.batched_embedding_kernel import BaseBatchedEmbedding, BaseBatchedEmbeddingBag, EmbeddingFusedOptimizer
from torchrec.distributed.composable.table_batched_embedding_slice import TableBatchedEmbeddingSlice
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig, ShardedEmbeddingTable
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import data_type_to_dtype
from torchrec.optim.fused import EmptyFusedOptimizer, FusedOptimizer, FusedOptimizerModule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.kernels import Copies, FusedTables, Table, TableBank
from emberline.train.sharding.fused_params import FusedParams


class CpuTables(nn.Module):
    """A kernel as TorchRec wants it: fbgemm's names, our tables.

    Args:
        config: the shards of tables on this rank that lie together.
        pooling: how bags become vectors; NONE: each id is a vector.
        num_ranks: ranks of the group.
        copies: where every rank holds the tables whole, the ranks that learn together.
    """

    def __init__(self, config: GroupedEmbeddingConfig, pooling: PoolingMode, num_ranks: int, copies: Copies | None = None) -> None:
        super().__init__()
        params = FusedParams.of(config)
        tables = [Table(shard.name, shard.local_rows, shard.local_cols) for shard in config.embedding_tables]
        reads = [place for place, shard in enumerate(config.embedding_tables) for _ in range(shard.num_features())]
        self.pooling = pooling
        self.tables = FusedTables(
            TableBank(tables, reads, data_type_to_dtype(config.data_type)),
            params.optimizer,
            max_gradient=params.max_gradient,
            stochastic_rounding=params.stochastic_rounding,
            frozen_in_graph=num_ranks > 1,  # ranks must agree about which collectives run backward
            copies=copies,
        )
        self._output_dtype = params.output_dtype

    def forward(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """Look bags up.

        Args:
            indices: rows, integers [N], of all features one after the other.
            offsets: integers [F * B + 1].
            per_sample_weights: [N], or None for 1 each.

        Returns:
            [B, D] of pooled bags, or [N, d] where ids are not pooled.

        Raises:
            DataError: an id that its table does not have.
        """
        num_rows = (len(offsets) - 1) // len(self.tables.bank.reads)
        if self.pooling is PoolingMode.NONE:
            ends = offsets[:: max(num_rows, 1)]
            counts = ends.diff().tolist() if num_rows else [0] * len(self.tables.bank.reads)
            found = self.tables.per_position(indices, counts)
        else:
            mean = self.pooling is PoolingMode.MEAN
            found = self.tables.pooled(indices, offsets, num_rows, per_sample_weights, mean=mean)
        return found.to(self._output_dtype)

    def split_embedding_weights(self) -> list[Tensor]:
        """Each shard's weights [rows, columns], as views."""
        return self.tables.bank.weights()

    def split_optimizer_states(self) -> list[list[Tensor]]:
        """Each shard's moments, as views; empty for optimisers without."""
        return self.tables.moments() if self.tables.optimizer.moments else []

    def get_optimizer_state(self) -> list[dict[str, Tensor]]:
        """Each shard's moments by PyTorch's names; empty for optimisers without."""
        names = [moment.name for moment in self.tables.optimizer.moments]
        return [dict(zip(names, moments, strict=True)) for moments in self.split_optimizer_states()]

    def get_learning_rate(self) -> float:
        """The rate of the next update."""
        return self.tables.lr

    def set_learning_rate(self, lr: float) -> None:
        """Use this rate from the next update on."""
        self.tables.lr = float(lr)

    def set_optimizer_step(self, step: int) -> None:
        """Go on as if that many updates were done."""
        self.tables.step = int(step)

    def slices(self) -> Iterator[tuple[int, TableBatchedEmbeddingSlice]]:
        """The place of each table among the shards, once for each name, and its weights as TorchRec keeps them: one table's shards together."""
        bank, seen = self.tables.bank, set()
        for place, table in enumerate(bank.tables):
            if table.name in seen:
                continue
            seen.add(table.name)
            block, first = bank.blocks[bank.places[place][0]], bank.places[place][1]
            last = max(within for (other, within), shard in zip(bank.places, bank.tables, strict=True) if shard.name == table.name)
            start, end = (block.first_rows[bound] * table.dim for bound in (first, last + 1))
            yield place, TableBatchedEmbeddingSlice(block.weights.view(-1), start, end, num_embeddings=-1, embedding_dim=table.dim)


class _Holder(FusedOptimizerModule):  # type: ignore[misc]
    """What both kinds of TorchRec's kernels have in common here."""

    _emb_module: CpuTables
    _config: GroupedEmbeddingConfig
    _pg: dist.ProcessGroup | None

    def _hold(self, pooling: PoolingMode, are_copies: bool) -> None:
        copies = None
        if are_copies:
            self._config = replace(self._config, embedding_tables=[_as_one_shard(table, self._pg) for table in self._config.embedding_tables])
            copies = Copies(self._pg, _key(self._config)) if self._pg is not None and self.num_ranks > 1 else None
        self._emb_module = CpuTables(self._config, pooling, self.num_ranks, copies)
        self._optim = EmbeddingFusedOptimizer(self._config, self._emb_module, self._pg)
        self.init_parameters()

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return dist.get_world_size(self._pg) if self._pg is not None else 1

    @property
    def emb_module(self) -> CpuTables:
        """The tables."""
        return self._emb_module

    @property
    def fused_optimizer(self) -> FusedOptimizer:
        """The optimiser that runs in backward."""
        return self._optim

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        """None: TorchRec calls weights parameters."""
        yield from ()

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Weights by table, marked as trained in backward."""
        for name, weights in self.named_split_embedding_weights(prefix, recurse, remove_duplicate):
            parameter: Any = nn.Parameter(weights)
            parameter._in_backward_optimizers = [EmptyFusedOptimizer()]
            yield name, parameter

    def named_parameters_by_table(self) -> Iterator[tuple[str, TableBatchedEmbeddingSlice]]:
        """Weights by table, a table's column shards together, each with the optimiser that trains it."""
        shared: dict[str, Any] = {"embedding_weights_by_table": self._emb_module.split_embedding_weights()}
        shared["all_optimizer_states"] = self._emb_module.get_optimizer_state()
        for place, weights in self._emb_module.slices():
            name = self._config.embedding_tables[place].name
            optimizer = EmbeddingFusedOptimizer(
                self._config, self._emb_module, self._pg, create_for_table=name, param_weight_for_table=weights, **shared
            )
            weights._in_backward_optimizers = [optimizer]
            yield name, weights


class CpuBags(_Holder, BaseBatchedEmbeddingBag[Tensor]):  # type: ignore[misc]
    """Pooled reads.

    Args:
        config: the shards.
        pg: the group of all ranks.
        device: the CPU.
        sharding_type: rows of a mean that are cut by row are divided later.
        are_copies: whether each rank holds these tables whole.
    """

    def __init__(
        self,
        config: GroupedEmbeddingConfig,
        pg: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
        sharding_type: ShardingType | None = None,
        *,
        are_copies: bool = False,
    ) -> None:
        super().__init__(config, pg, device, sharding_type)
        self._hold(self._pooling, are_copies)


class CpuSteps(_Holder, BaseBatchedEmbedding[Tensor]):  # type: ignore[misc]
    """Reads by position.

    Args:
        config: the shards.
        pg: the group of all ranks.
        device: the CPU.
        are_copies: whether each rank holds these tables whole.
    """

    def __init__(
        self,
        config: GroupedEmbeddingConfig,
        pg: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
        *,
        are_copies: bool = False,
    ) -> None:
        super().__init__(config, pg, device)
        self._hold(PoolingMode.NONE, are_copies)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Ids of all features -> [N, d]."""
        return self._emb_module(indices=features.values(), offsets=features.offsets())  # type: ignore[no-any-return]


def _as_one_shard(table: ShardedEmbeddingTable, group: dist.ProcessGroup | None) -> ShardedEmbeddingTable:
    """A copy as TorchRec's optimisers want it: a table of one shard, which is on this rank."""
    rank = dist.get_rank(group) if group is not None else 0
    shape = [table.local_rows, table.local_cols]
    shard = ShardMetadata(shard_offsets=[0, 0], shard_sizes=shape, placement=f"rank:{rank}/cpu")
    properties = TensorProperties(dtype=data_type_to_dtype(table.data_type))
    return replace(table, local_metadata=shard, global_metadata=ShardedTensorMetadata([shard], torch.Size(shape), properties))


def _key(config: GroupedEmbeddingConfig) -> int:
    return zlib.crc32("\n".join(table.name for table in config.embedding_tables).encode())
