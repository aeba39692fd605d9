"""Memory that tables may not have: a share of all, the dense part with its gradients and moments, and the ids in flight."""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torchrec.distributed.planner.constants import BIGINT_DTYPE
from torchrec.distributed.planner.types import ParameterConstraints, Storage, StorageReservation, Topology
from torchrec.distributed.types import ModuleSharder

from emberline.train.sharding.enumerator import OptionEnumerator
from emberline.train.sharding.shardable import shardable_modules, shardable_tables

DENSE_COPIES = 6
"""Of each dense parameter: itself, its gradient, two moments, and two in the buckets that gradients are averaged in."""
ID_COPIES = 20
"""Of each id: two batches are in flight, each of which is cut, permuted and sent about."""


@dataclass(frozen=True)
class Reserved:
    """What is kept free on each rank, in bytes.

    Args:
        share: for everything that nobody counts.
        dense: of the dense part.
        ids: in flight.
    """

    share: int
    dense: int
    ids: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.share + self.dense + self.ids


class ShareReservation(StorageReservation):  # type: ignore[misc]
    """Keeps memory free on each rank, of the kind that tables live in; of the host's memory beside GPUs, the share only.

    Args:
        share: in [0, 1).
        enumerator: knows the tables' ids a row.
    """

    def __init__(self, share: float, enumerator: OptionEnumerator) -> None:
        self._percentage, self._enumerator = share, enumerator  # the name that TorchRec looks for
        self._last: Topology | None = None
        self.reserved: Reserved | None = None

    def reserve(
        self,
        topology: Topology,
        batch_size: int,
        module: nn.Module,
        sharders: list[ModuleSharder[nn.Module]],
        constraints: dict[str, ParameterConstraints] | None = None,
    ) -> Topology:
        """The topology with the memory that is left; below 0 where there is not enough."""
        on_gpu = topology.compute_device == "cuda"
        found = copy.deepcopy(topology)
        dense = DENSE_COPIES * _dense_bytes(module, sharders)
        ids = math.ceil(ID_COPIES * BIGINT_DTYPE * self._ids(module, sharders, batch_size))
        for device in found.devices:
            hbm, ddr = (math.ceil(size * self._percentage) for size in (device.storage.hbm, device.storage.ddr))
            device.storage -= Storage(hbm=hbm + (dense + ids) * on_gpu, ddr=ddr + (dense + ids) * (not on_gpu))
            self.reserved = Reserved(share=hbm if on_gpu else ddr, dense=dense, ids=ids)
        self._last = found
        return found

    @property
    def last_reserved_topology(self) -> Topology | None:
        """What `reserve` gave the last time."""
        return copy.deepcopy(self._last)

    def _ids(self, module: nn.Module, sharders: list[ModuleSharder[nn.Module]], batch_size: int) -> float:
        """Ids that a rank reads in a step."""
        total = 0.0
        for table in shardable_tables(module, sharders):
            own = self._enumerator.constraints_of(table.path)
            rows = own.batch_sizes or [batch_size] * len(own.pooling_factors)
            total += sum(ids * count for ids, count in zip(own.pooling_factors, rows, strict=True))
        return total


def _dense_bytes(module: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> int:
    """Bytes of all parameters and buffers that are in no table's module."""
    sharded = {id(tensor) for _, part, _ in shardable_modules(module, sharders) for tensor in _tensors(part)}
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(module) if id(tensor) not in sharded)


def _tensors(module: nn.Module) -> Iterable[Tensor]:
    return {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}.values()
