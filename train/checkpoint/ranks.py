"""What one rank does for all, and what all tell each other."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from emberline.errors import CheckpointError


def from_first_rank(work: Callable[[], object], group: dist.ProcessGroup | None = None) -> None:
    """Let rank 0 do something, while the others wait for how it went. All ranks must call it together; one process alone just does it.

    Args:
        work: what rank 0 does.
        group: of all ranks, on the CPU; None: the default one.

    Raises:
        CheckpointError: on all ranks, what `work` raised on the first.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        work()
        return
    problem: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            work()
        except CheckpointError as error:
            problem = [str(error)]
    dist.broadcast_object_list(problem, src=0, group=group)
    if problem[0] is not None:
        raise CheckpointError(problem[0])


def of_all_ranks(own: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """The tensor of each rank, all of one shape and type, in the order of the ranks. All ranks must call it together; one alone has its own.

    Args:
        own: of this rank, on the CPU.
        group: of all ranks, on the CPU; None: the default one.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1 or not own.numel():
        return [own]
    found = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own.contiguous(), group=group)
    return found


def spread_text(counts: Sequence[int]) -> str:
    """How many of something ranks have, for people: the least and the most."""
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
