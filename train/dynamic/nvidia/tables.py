"""NVIDIA's kernel of some tables, as jobs and checkpoints know ours."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import optim

from emberline.errors import ConfigError
from emberline.train.dynamic.nvidia.files import StoredTable, description_name, own_part, read_table, refuse_lost, write_table
from emberline.train.dynamic.nvidia.options import LearnedTable
from emberline.train.dynamic.nvidia.package import OURS_INSTEAD, NvidiaPackage
from emberline.train.dynamic.options import DynamicRuntime
from emberline.train.dynamic.state import DynamicState, DynamicTable
from emberline.train.kernels import Adagrad, Adam, RowOptimizer, RowWiseAdagrad, Sgd

_OURS: Mapping[type[torch.optim.Optimizer] | None, type[RowOptimizer]] = {
    optim.Adagrad: Adagrad,
    torch.optim.Adagrad: Adagrad,
    optim.RowWiseAdagrad: RowWiseAdagrad,
    optim.Adam: Adam,
    torch.optim.Adam: Adam,
}


@dataclass
class Learning:
    """What checkpoints ask of how tables learn.

    Args:
        optimizer: ours with the same moments.
        step: updates so far.
    """

    optimizer: RowOptimizer
    step: int = 0


class GuardedTables(nn.Module):
    """NVIDIA's kernel, spared what it cannot take: a rank without ids, or without rows. It has the same `dump`, `load` and `step` as our tables.

    Everything else goes to the kernel as it is; it lies where NVIDIA's own functions look for it, in `_emb_module`.

    Args:
        tables: the kernel.
        package: NVIDIA's.
        learned: what its tables are, by name; others may be among them.
        runtime: what the job knows.
    """

    def __init__(self, tables: nn.Module, package: NvidiaPackage, learned: Mapping[str, LearnedTable], runtime: DynamicRuntime) -> None:
        super().__init__()
        self._emb_module = tables
        self._package, self._runtime = package, runtime
        own = [learned[name] for name in cast(Any, tables).table_names]
        self.described: Sequence[DynamicTable] = [_described(table) for table in own]
        self.dtype = own[0].dtype
        self.tables = Learning(_OURS.get(own[0].optimizer, Sgd)())
        self.step = 0

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_emb_module"), name)

    def forward(self, indices: Tensor, offsets: Tensor, *others: Any, **named: Any) -> Any:
        """As the kernel's: ids [n] and where bags end -> [rows, width of all bags], or [n, d] read by position."""
        if self.training:
            self.step += 1
            self.tables.step += 1
        if indices.numel() == 0:
            return self._nothing(offsets)
        return self._emb_module(indices, offsets, *others, **named)

    def prefetch(self, indices: Tensor, offsets: Tensor, batch_sizes: Sequence[int] | None = None) -> None:
        """As the kernel's; batches of several sizes are left to their lookups."""
        if indices.numel() and batch_sizes is None:
            self._emb_module.prefetch(indices, offsets)  # type: ignore[operator]

    def set_initial_moment(self, value: float) -> None:
        """What the moments of rows that come from now on begin with."""
        optimizer = self._emb_module.optimizer
        name = "set_initial_optimizer_state" if hasattr(optimizer, "set_initial_optimizer_state") else "set_initial_optim_states"
        getattr(optimizer, name)(value)

    def dump(self, table: str) -> DynamicState:
        """A copy of what this rank has of a table; all ranks ask for the same tables in the same order.

        Raises:
            CheckpointError: what the kernel wrote does not fit together.
        """
        rank, ranks = _rank()
        with tempfile.TemporaryDirectory(dir=self._runtime.spill_folder) as folder:
            self._write(folder, table)
            return read_table(Path(folder), self._stored(table), rank, ranks, self.step, self._runtime.seed)

    def load(self, table: str, state: DynamicState) -> int:
        """Replace a table's rows; ids of other ranks, by the kernel's rule, go to those. All ranks ask for the same tables in the same order.

        Returns:
            0: the kernel does not tell how many found no room.

        Raises:
            CheckpointError: the kernel would lose ids.
        """
        rank, ranks = _rank()
        refuse_lost(self._package, table, state.keys, ranks)
        own = state if ranks == 1 else own_part([_from(source, state if source == rank else None) for source in range(ranks)], rank)
        tables: Any = self._emb_module
        description = self._description(table, rank, ranks)
        with tempfile.TemporaryDirectory(dir=self._runtime.spill_folder) as folder:
            counters = self._package.dumps_counters
            write_table(Path(folder), self._stored(table), own, rank, ranks, description=description, counters=counters)
            tables.load(folder, optim=True, table_names=[table], **self._counters())
        self.step = max(self.step, state.step)
        return 0

    def changes_since(self, table: str, step: int) -> tuple[DynamicState, Tensor]:
        """Refused: the kernel keeps no note of ids that went."""
        raise ConfigError(f"table {table!r}: NVIDIA's kernel does not tell which ids went; leave save_increments_steps out, {OURS_INSTEAD}")

    def track_removals(self, is_on: bool) -> None:
        """Refused, as `changes_since`."""
        if is_on:
            self.changes_since(self.described[0].name, 0)

    def forget_removals(self, before_step: int) -> None:
        """None are kept."""

    def _write(self, folder: str, table: str) -> None:
        cast(Any, self._emb_module).dump(folder, optim=True, table_names=[table], **self._counters())

    def _description(self, table: str, rank: int, ranks: int) -> dict[str, Any]:
        """What the first rank's kernel says of a table."""
        with tempfile.TemporaryDirectory(dir=self._runtime.spill_folder) as folder:
            self._write(folder, table)
            told = json.loads((Path(folder) / description_name(table)).read_text()) if rank == 0 else None
        description: dict[str, Any] = _from(0, told) if ranks > 1 else told or {}
        return description

    def _counters(self) -> dict[str, bool]:
        return {"counter": True} if self._package.dumps_counters else {}

    def _stored(self, name: str) -> StoredTable:
        table = next(table for table in self.described if table.name == name)
        return StoredTable(table, self.dtype, self.tables.optimizer.moments)

    def _nothing(self, offsets: Tensor) -> Tensor:
        """Zeros that take a gradient, so that the other ranks' exchange of gradients finds this one."""
        tables: Any = self._emb_module
        none_pooled = getattr(tables.pooling_mode, "name", "") == "NONE"
        rows = 0 if none_pooled else (offsets.numel() - 1) // max(1, tables.feature_num)
        width = max(tables.dims) if none_pooled else tables.total_D
        return torch.zeros(rows, width, dtype=tables.output_dtype, device=offsets.device, requires_grad=torch.is_grad_enabled() and self.training)


def guard(lookups: nn.Module, package: NvidiaPackage, learned: Mapping[str, LearnedTable], runtime: DynamicRuntime) -> int:
    """Put every kernel of NVIDIA's behind a `GuardedTables`; how many there were.

    Args:
        lookups: of a sharded collection.
        package: NVIDIA's.
        learned: what the tables that grow are, by name.
        runtime: what the job knows.
    """
    found = [module for module in lookups.modules() if isinstance(getattr(module, "_emb_module", None), package.tables)]
    found = [module for module in found if not isinstance(module, GuardedTables)]
    for kernel in found:
        guarded = GuardedTables(cast(nn.Module, kernel._emb_module), package, learned, runtime)
        kernel._emb_module = guarded
        cast(Any, kernel).set_initial_moment = guarded.set_initial_moment
    return len(found)


def _described(table: LearnedTable) -> DynamicTable:
    admission = table.options.admission
    counted = 0 if admission is None else -(-admission.counter_capacity // table.world_size)
    return DynamicTable(table.name, table.dim, table.options, table.rows, counted)


def _from(source: int, what: Any) -> Any:
    """What one rank has, on all of them."""
    told = [what]
    dist.broadcast_object_list(told, src=source)
    return told[0]


def _rank() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
