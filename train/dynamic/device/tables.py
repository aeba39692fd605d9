"""Tables that grow, on any device of PyTorch, by its operators alone. On the CPU they give the numbers of `BatchedDynamicEmbeddingTables`, to the
bit, but for PyTorch's fused Adagrad and Adam: these round the last few numbers of an array otherwise than the others, and rows lie elsewhere here.

A batch makes the host wait for the device a fixed number of times for each table (see `keys` and `bank`), and once for all of them.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor

from emberline.errors import DataError
from emberline.train.dynamic.device.bank import DeviceBank, DeviceForm, DeviceFused, DeviceIds, TieredDeviceBlock
from emberline.train.dynamic.device.keys import DeviceKeyed
from emberline.train.dynamic.device.rows import CONSTANTS
from emberline.train.dynamic.keyed import NO_ROW
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.dynamic.tiers.blocks import TierCounters, Tiers
from emberline.train.kernels.optimizers import RowOptimizer


class DeviceDynamicEmbeddingTables(BatchedDynamicEmbeddingTables):
    """The same tables on any device; arguments and methods as there.

    What goes in, and a lookup's vectors, are on the device; states, and what is asked by id, on the host. So are rows beyond a table's share of the
    device's memory: see `tiers`.

    Raises:
        ConfigError: as there.
        CapacityError: as there; or the device has no room for a table's copies of rows of the host.
    """

    _keyed: list[Any]
    tables: Any

    def _new_bank(self, reads: Sequence[int], optimizer: RowOptimizer, folder: Path | None) -> Any:
        return DeviceBank(self.described, reads, self.dtype, self.device, Tiers(optimizer.moments, self.dtype, folder))

    def _new_fused(self, optimizer: RowOptimizer, **options: Any) -> DeviceFused:
        return DeviceFused(self.bank, optimizer, **options)

    def _new_keyed(self, table: DynamicTable) -> DeviceKeyed:
        return DeviceKeyed(table, self.device)

    def forward(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None, batch_sizes: Sequence[int] | None = None) -> Tensor:
        """See `BatchedDynamicEmbeddingTables.forward`."""
        bank: DeviceBank = self.bank
        sizes, counts, ends = self._cut(offsets, batch_sizes, len(indices))
        keys = indices.detach().to(self.device, torch.int64)
        bag_ends = [0, *itertools.accumulate(sizes)]
        is_pooled = self.pooling is not PoolingMode.NONE
        factors = self._factors(counts, per_sample_weights, len(keys)) if is_pooled else None
        found = self._read([bank.of_reads(keys, ends, block) for block in bank.blocks])
        located = []
        for block, rows in zip(bank.blocks, found, strict=True):
            weights = None if factors is None else bank.of_reads(factors, ends, block)
            located.append(DeviceIds(rows, bank.of_reads(counts, bag_ends, block), weights))
        own = sizes if is_pooled else [stop - start for start, stop in itertools.pairwise(ends)]
        vectors: Tensor = self.tables.look_up(located, DeviceForm(tuple(own), is_pooled, is_pooled and batch_sizes is not None))
        return vectors.to(self._output_dtype)

    def prefetch(self, indices: Tensor, offsets: Tensor, batch_sizes: Sequence[int] | None = None) -> None:
        """Let a thread copy the rows of a batch to come to the device, where the host has some; no number changes.

        Raises:
            Exception: what went wrong the last time.
        """
        bank: DeviceBank = self.bank
        tiered = [(place, block) for place, block in enumerate(bank.blocks) if isinstance(block, TieredDeviceBlock) and block.reads]
        if not tiered:
            return
        keys, ends = indices.detach().to(self.device, torch.int64), offsets.detach()[self._bag_ends(len(offsets) - 1, batch_sizes)].tolist()
        for place, block in tiered:
            found = self._keyed[place].index.find_here(bank.of_reads(keys, ends, block))
            block.both.prefetch((found[found != NO_ROW] + CONSTANTS).cpu().numpy())

    def tiers(self, table: str) -> TierCounters:
        """See `BatchedDynamicEmbeddingTables.tiers`."""
        counters: TierCounters = self.bank.keyed(self._places[table])[0].tier_counters()
        return counters

    def _cut(self, offsets: Tensor, batch_sizes: Sequence[int] | None, num_ids: int) -> tuple[list[int], Tensor, list[int]]:
        """Each read's rows, the ids of each bag, and where each read's ids begin, and the end."""
        reads, bags = len(self.bank.reads), len(offsets) - 1
        sizes = [bags // max(reads, 1)] * reads if batch_sizes is None else list(batch_sizes)
        if bags < 0 or len(sizes) != reads or sum(sizes) != bags:
            raise DataError(f"{bags} bags of {reads} reads, which have {sizes} rows")
        offsets = offsets.detach().to(self.device, torch.int64)
        counts = offsets.diff()
        firsts = torch.tensor([0, *itertools.accumulate(sizes)]).to(self.device)
        *ends, least = torch.cat([offsets[firsts], counts.amin(0, keepdim=True) if bags else firsts[:1]]).tolist()
        if least < 0 or ends[0] != 0 or ends[-1] != num_ids:
            raise DataError(f"offsets go from {ends[0]} to {ends[-1]}, of {num_ids} ids, and must not fall")
        return sizes, counts, ends

    def _factors(self, counts: Tensor, weights: Tensor | None, num_ids: int) -> Tensor | None:
        """What each vector is multiplied by: float32 [N]; None: 1."""
        if weights is not None and len(weights) != num_ids:
            raise DataError(f"{len(weights)} weights of {num_ids} ids")
        factors = None if weights is None else weights.detach().to(self.device).float()
        if self.pooling is PoolingMode.MEAN:
            shares = (1.0 / counts.clamp(min=1)).repeat_interleave(counts, output_size=num_ids)
            factors = shares if factors is None else factors * shares
        return factors

    def _read(self, keys: Sequence[Tensor]) -> list[Tensor]:
        """Ids of each table -> rows of the bank."""
        learns = self.training and not (self._is_frozen_for_good and self.tables.is_frozen)
        found = self._learn(keys) if learns else [keyed.index.find_here(own) for keyed, own in zip(self._keyed, keys, strict=True)]
        return [torch.where(rows == NO_ROW, int(learns), rows + CONSTANTS) for rows in found]

    def _learn(self, keys: Sequence[Tensor]) -> list[Tensor]:
        """Rows within each table of the ids that training reads of it."""
        for place, (keyed, own) in enumerate(zip(self._keyed, keys, strict=True)):
            keyed.check_here(own)
            self.bank.reserve(place, keyed.rows_after(own, self.bank.blocks[place].capacity))
        self.step += 1
        now, found = self._clock(), []
        for place, (keyed, own) in enumerate(zip(self._keyed, keys, strict=True)):
            given = keyed.read_here(own, self.step, now)
            self.bank.lose(place, given.lost)
            if len(given.new_keys):
                self._begin(place, given.new_keys.cpu().numpy(), given.new_rows.cpu().numpy())
            found.append(given.rows)
        return found


def create_tables(*arguments: Any, device: torch.device | None = None, **options: Any) -> BatchedDynamicEmbeddingTables:
    """The tables for a device; arguments as of `BatchedDynamicEmbeddingTables`."""
    kind = BatchedDynamicEmbeddingTables if device is None or device.type == "cpu" else DeviceDynamicEmbeddingTables
    return kind(*arguments, device=device, **options)
