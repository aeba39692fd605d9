"""Which rank gets which shard: TorchRec's greedy partitioner, after tables that may be on some ranks only."""

import copy
from collections.abc import Callable

from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.types import Partitioner, ShardingOption, Storage, Topology


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
        greedy, left = GreedyPerfPartitioner(), storage_constraint
        by_ranks: dict[tuple[int, ...], list[ShardingOption]] = {}
        for option in proposal:
            by_ranks.setdefault(self._pins_of(option.fqn), []).append(option)
        for ranks, options in sorted(by_ranks.items(), key=lambda item: (not item[0], len(item[0]))):
            greedy.partition(options, _only(left, ranks) if ranks else left)
            left = _less(left, options)
        return proposal


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
