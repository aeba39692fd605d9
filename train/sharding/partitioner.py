"""Which rank gets which shard: TorchRec's greedy partitioner, after tables that may be on some ranks only."""

import copy
from collections.abc import Callable

from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, OrderedDeviceHardware
from torchrec.distributed.planner.types import Partitioner, ShardingOption, Storage, Topology

from emberline.train.sharding.offers import COLUMN_WISE, TABLE_COLUMN_WISE


class PinnedPartitioner(Partitioner):  # type: ignore[misc]
    """Places tables with pins first, on a cluster whose other ranks have no memory for them; then all others on what is left.

    Args:
        pins_of: the ranks that may hold a table, by its full path; none where it may be anywhere.
    """

    def __init__(self, pins_of: Callable[[str], tuple[int, ...]]) -> None:
        self._pins_of = pins_of

    def partition(self, proposal: list[ShardingOption], storage_constraint: Topology) -> list[ShardingOption]:
        """Give every shard a rank; the options are changed in place.

        Raises:
            PlannerError: a shard fits nowhere.
        """
        greedy, left = _DistinctColumns(), storage_constraint
        by_ranks: dict[tuple[int, ...], list[ShardingOption]] = {}
        for option in proposal:
            by_ranks.setdefault(self._pins_of(option.fqn), []).append(option)
        for ranks, options in sorted(by_ranks.items(), key=lambda item: (not item[0], len(item[0]))):
            greedy.partition(options, _only(left, ranks) if ranks else left)
            left = _less(left, options)
        return proposal


class _DistinctColumns(GreedyPerfPartitioner):  # type: ignore[misc]
    """TorchRec's greedy search, which gives column shards of one table ranks of their own: two on one rank are run as one wider shard."""

    @classmethod
    def _device_partition(
        cls, sharding_option: ShardingOption, minheap_devices: list[OrderedDeviceHardware], bulk_heapify_threshold: float = 0.25
    ) -> None:
        if sharding_option.sharding_type in (COLUMN_WISE, TABLE_COLUMN_WISE):
            cls._column_wise_device_partition(sharding_option, minheap_devices)
        else:
            super()._device_partition(sharding_option, minheap_devices, bulk_heapify_threshold)


def _only(topology: Topology, ranks: tuple[int, ...]) -> Topology:
    """The same ranks, those that are not listed without memory."""
    found = copy.deepcopy(topology)
    for device in found.devices:
        if device.rank not in ranks:
            device.storage = Storage(hbm=0, ddr=0, ssd=0)
    return found


def _less(topology: Topology, options: list[ShardingOption]) -> Topology:
    """The ranks with what the options leave, and with the work that they bring."""
    found = copy.deepcopy(topology)
    for option in options:
        for shard in option.shards:
            device = found.devices[shard.rank]
            device.storage -= shard.storage
            device.perf += shard.perf
    return found
