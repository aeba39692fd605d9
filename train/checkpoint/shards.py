"""What a rank holds of each table: weights, moments and the number of updates, by where they lie in the whole table.

Every kernel is asked for what it holds, so it does not matter which kernel it is, nor how the planner cut the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn

from emberline.errors import CheckpointError
from emberline.train.checkpoint.chunks import Chunk, Chunks
from emberline.train.kernels import Copies, FusedTables
from emberline.train.optim.border import kernels_of


@dataclass(frozen=True)
class TableShard:
    """One part of a table, on this rank.

    Args:
        table: its name.
        shape: rows and columns of the whole table.
        offsets: first row and column of this part.
        starts: the first column of each part side by side, over all ranks; (0,) where the table is not cut by columns.
        weight: the live numbers [rows, columns] of this part.
        moments: the live moments by PyTorch's names, each [rows, columns], or [rows] where the optimiser keeps one for each row.
        kernel: what holds it.
    """

    table: str
    shape: tuple[int, int]
    offsets: tuple[int, int]
    starts: tuple[int, ...]
    weight: Tensor
    moments: Mapping[str, Tensor]
    kernel: Any

    @property
    def place(self) -> int:
        """Which of the parts side by side this one is."""
        return self.starts.index(self.offsets[1])


def table_shards(model: nn.Module) -> list[TableShard]:
    """All parts of all tables of fixed rows of a sharded model on this rank; their kernels' caches are written out."""
    found = []
    for kernel, _ in kernels_of(model):
        held: Any = kernel.emb_module
        if holds_growing(held):
            continue
        configs: Any = kernel.config
        if isinstance(held, SplitTableBatchedEmbeddingBagsCodegen):
            held.flush()
        tables = configs.embedding_tables
        for config, weight, moments in zip(tables, held.split_embedding_weights(), _moments(held, len(tables)), strict=True):
            shape = (config.num_embeddings, config.embedding_dim)
            offsets = (0, 0) if config.local_metadata is None else tuple(config.local_metadata.shard_offsets)
            found.append(TableShard(config.name, shape, (offsets[0], offsets[1]), _starts(config), weight, moments, held))
    return found


def holds_growing(held: Any) -> bool:
    """Whether what a kernel has in it are tables that grow: those tell what they have themselves."""
    return hasattr(held, "dump")


def parts_to_write(shards: Sequence[TableShard]) -> list[TableShard]:
    """What this rank writes of its shards: all of them, but of a table that every rank holds whole, its share of the rows."""
    return [shard if (copies := _copies(shard.kernel)) is None else _rows_of(shard, *copies.share(len(shard.weight))) for shard in shards]


def weight_chunks(shards: Sequence[TableShard]) -> dict[str, Chunks]:
    """`tables/<table>/weight`: [rows, columns]."""
    return {
        f"tables/{table}/weight": Chunks(own[0].shape, own[0].weight.dtype, [Chunk(shard.offsets, shard.weight) for shard in own])
        for table, own in by_table(shards).items()
    }


def moment_chunks(shards: Sequence[TableShard]) -> dict[str, Chunks]:
    """`tables/<table>/<moment>`: [rows, columns]; of moments that are kept by row, [rows], or [rows, parts] where each of several parts side by
    side has its own.
    """
    found = {}
    for table, own in by_table(shards).items():
        for name, moment in own[0].moments.items():
            parts = [shard.moments[name] for shard in own]
            found[f"tables/{table}/{name}"] = Chunks(_moment_shape(own[0], name), moment.dtype, list(map(_moment_chunk, own, parts)))
    return found


def step_tensors(shards: Sequence[TableShard]) -> dict[str, Tensor]:
    """`tables/<table>/step`: how many updates the table has had, int64 [1]; only for optimisers with moments."""
    return {f"tables/{shard.table}/step": torch.tensor([_step(shard.kernel)]) for shard in shards if shard.moments}


def load_steps(shards: Sequence[TableShard], tensors: Mapping[str, Tensor]) -> None:
    """Let every kernel go on counting; names are those of `step_tensors`.

    Raises:
        CheckpointError: tables that one kernel counts for have had different numbers of updates.
    """
    steps: dict[int, dict[str, int]] = {}
    kernels = {}
    for shard in shards:
        if shard.moments:
            kernels[id(shard.kernel)] = shard.kernel
            steps.setdefault(id(shard.kernel), {})[shard.table] = int(tensors[f"tables/{shard.table}/step"])
    for key, counts in steps.items():
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{table} {count}" for table, count in counts.items())
            raise CheckpointError(f"tables that learn together have had different numbers of updates: {shown}")
        _set_step(kernels[key], next(iter(counts.values())))


def reset_caches(shards: Sequence[TableShard]) -> None:
    """After weights were filled: let no kernel answer from a cache of older ones."""
    for kernel in {id(shard.kernel): shard.kernel for shard in shards}.values():
        if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen):
            kernel.reset_cache_states()


def by_table(shards: Sequence[TableShard]) -> dict[str, list[TableShard]]:
    """The parts of each table."""
    found: dict[str, list[TableShard]] = {}
    for shard in shards:
        found.setdefault(shard.table, []).append(shard)
    return found


def _copies(held: Any) -> Copies | None:
    tables = getattr(held, "tables", None)
    return tables.copies if isinstance(tables, FusedTables) else None


def _rows_of(shard: TableShard, first: int, end: int) -> TableShard:
    moments = {name: moment[first:end] for name, moment in shard.moments.items()}
    return replace(shard, offsets=(first, shard.offsets[1]), weight=shard.weight[first:end], moments=moments)


def _moment_shape(shard: TableShard, name: str) -> tuple[int, ...]:
    if shard.moments[name].dim() == 2:
        return shard.shape
    return (shard.shape[0],) if len(shard.starts) == 1 else (shard.shape[0], len(shard.starts))


def _moment_chunk(shard: TableShard, moment: Tensor) -> Chunk:
    if moment.dim() == 2:
        return Chunk(shard.offsets, moment)
    if len(shard.starts) == 1:
        return Chunk((shard.offsets[0],), moment)
    return Chunk((shard.offsets[0], shard.place), moment.unsqueeze(1))


def _starts(config: Any) -> tuple[int, ...]:
    """First columns of the parts side by side, ascending."""
    if config.global_metadata is None:
        return (0,)
    return tuple(sorted({shard.shard_offsets[1] for shard in config.global_metadata.shards_metadata}))


def _moments(held: Any, num_tables: int) -> Iterator[dict[str, Tensor]]:
    """Each part's moments by name."""
    if isinstance(held, SplitTableBatchedEmbeddingBagsCodegen) and held.optimizer == EmbOptimType.LARS_SGD:
        states = [{"momentum_buffer": states[0]} for states in held.split_optimizer_states()]  # fbgemm has no name for it
    else:
        states = held.get_optimizer_state() if hasattr(held, "get_optimizer_state") else []
    for place in range(num_tables):
        yield {name: moment for name, moment in states[place].items() if name != "iter"} if states else {}


def _step(held: Any) -> int:
    tables = getattr(held, "tables", None)
    return tables.step if isinstance(tables, FusedTables) else int(held.iter.item())


def _set_step(held: Any, step: int) -> None:
    tables = getattr(held, "tables", None)
    if isinstance(tables, FusedTables):
        tables.step = step
        return
    held.iter.fill_(step)
    held.iter_cpu.fill_(step)
