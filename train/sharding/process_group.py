"""The group of training processes. This is the one module that reads torchrun's environment variables."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from emberline.errors import ConfigError

_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """The number of the process that asks, and how many there are."""

    rank: int
    world_size: int


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Be part of a process group while the body runs.

    Under torchrun, the group is the one that it describes. Otherwise this process makes a group of its own, in memory: no port is opened and
    no environment variable is read or set. A group that there is already is used as it is, and left as it is.

    Raises:
        ConfigError: torchrun started more than one process, which is not supported yet.
    """
    if dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    if all(name in os.environ for name in _TORCHRUN_VARIABLES):
        world_size = int(os.environ["WORLD_SIZE"])
        if world_size > 1:
            raise ConfigError(f"training on {world_size} processes is not supported yet; use torchrun --nproc-per-node 1, or emberline train")
        dist.init_process_group("gloo", init_method="env://")
    else:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
