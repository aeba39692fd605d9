"""What one rank does for all."""

from collections.abc import Callable

import torch.distributed as dist

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
