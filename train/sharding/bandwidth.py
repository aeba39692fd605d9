"""How fast bytes move here, measured: memory by copies, links by exchanges within the process group."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

_REPEATS = 5


def measure_bandwidths(device: str, local_world_size: int, copy_bytes: int = 1 << 27, exchange_bytes: int = 1 << 24) -> dict[str, float]:
    """Measure what can be measured: in GB/s, of one rank, by the names that `Hardware` has; a slow rank's number counts.

    All ranks must call it together where there is a process group. Each number is the best of five.

    Args:
        device: `cpu` or `cuda`.
        local_world_size: ranks of each machine.
        copy_bytes: that are copied within memory.
        exchange_bytes: that each rank sends.
    """
    host = torch.empty(copy_bytes, dtype=torch.uint8).fill_(1)
    found = {"ddr": 2 * copy_bytes / _best_time(lambda: host.clone(), device)}
    if device == "cuda":
        there, pinned = host.cuda(), host.pin_memory()
        found["hbm"] = 2 * copy_bytes / _best_time(lambda: there.clone(), device)
        found["hbm_to_ddr"] = copy_bytes / _best_time(lambda: there.copy_(pinned, non_blocking=True), device)
    found |= _links(device, local_world_size, exchange_bytes)
    return {name: _slowest(speed, device) / 1e9 for name, speed in found.items()}


def _links(device: str, local_world_size: int, exchange_bytes: int) -> dict[str, float]:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return {}
    rank, world_size = dist.get_rank(), dist.get_world_size()
    nodes = [list(range(first, first + local_world_size)) for first in range(0, world_size, local_world_size)]
    found = {}
    for name, groups in (("intra_node", nodes), ("inter_node", [list(ranks) for ranks in zip(*nodes, strict=True)])):
        if len(groups[0]) < 2:
            continue
        made = [dist.new_group(ranks) for ranks in groups]
        own = next(group for group, ranks in zip(made, groups, strict=True) if rank in ranks)
        found[name] = _exchange(own, len(groups[0]), device, exchange_bytes)
        for group in made:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
    return found


def _exchange(group: dist.ProcessGroup, size: int, device: str, exchange_bytes: int) -> float:
    """Bytes a second that a rank sends to the others of its group."""
    part = exchange_bytes // size
    sent = torch.ones(part * size, dtype=torch.uint8, device=device)
    received = torch.empty_like(sent)
    return part * (size - 1) / _best_time(lambda: dist.all_to_all_single(received, sent, group=group), device)


def _best_time(work: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of several runs, after one that does not count."""
    times = []
    for _ in range(_REPEATS + 1):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _slowest(speed: float, device: str) -> float:
    """The least of all ranks' numbers."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return speed
    least: Tensor = torch.tensor(speed, dtype=torch.float64, device=device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return float(least)
