"""The group of training processes. This is the one module that reads torchrun's environment variables."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from emberline.errors import ConfigError

RENDEZVOUS_TIMEOUT = timedelta(minutes=5)
"""How long ranks wait for others that were not started yet."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for another that is busy by itself, as with a slow file; one that ended is noticed at once."""
_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NO_RUN_ID = "none"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ranks:
    """The number of the process that asks, how many there are, and small talk among them, which is on the CPU whatever the model is on.

    Args:
        rank: from 0.
        world_size: ranks in all.
        local_rank: this process's number on its machine.
        local_world_size: ranks of each machine.
        device: what this rank's part of the model is on.
        launch: a name of the launch, the same on all its ranks and after restarts; empty without a launcher.
        restarts: how often the launcher has started all ranks anew.
        store: what all ranks can write to and read from while the launch lasts.
        hosts_store: whether the store ends with this process.
        group: of all ranks, on the CPU, for small talk; None for one rank.
    """

    rank: int
    world_size: int
    local_rank: int = 0
    local_world_size: int = 1
    device: torch.device = field(default=torch.device("cpu"))
    launch: str = field(default="", compare=False)
    restarts: int = field(default=0, compare=False)
    store: Store | None = field(default=None, compare=False, repr=False)
    hosts_store: bool = field(default=False, compare=False)
    group: dist.ProcessGroup | None = field(default=None, compare=False, repr=False)

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for all: it logs, and writes what is written once."""
        return self.rank == 0

    def gather(self, numbers: Sequence[float]) -> Floats:
        """The numbers of all ranks, float64 [world size, N], the same on all ranks. All call it together, with as many numbers, one at least."""
        assert len(numbers), "without a number, ranks would not wait for each other"
        own = torch.tensor(list(numbers), dtype=torch.float64)
        if self.group is None:
            return own.unsqueeze(0).numpy()
        found = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(found, own, group=self.group)
        return torch.stack(found).numpy()

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Sums over the ranks, added up in their order: the same bits on all of them."""
        total: list[float] = self.gather(numbers).sum(axis=0).tolist()
        return total

    def of_first(self, numbers: Sequence[float]) -> list[float]:
        """What rank 0 gave; others give as many numbers, which don't count."""
        own = torch.tensor(list(numbers), dtype=torch.float64)
        if self.group is not None:
            dist.broadcast(own, 0, group=self.group)
        return own.tolist()

    def to_first(self, numbers: Floats) -> Iterator[Floats]:
        """On rank 0: what each of the other ranks gave, any length, one after the other; on others nothing. All must go through it to its end."""
        lengths = self.gather([len(numbers)])[:, 0].astype(int)
        if not self.is_first:
            dist.send(torch.from_numpy(numbers.astype(np.float64)), 0, group=self.group)
            return
        for rank in range(1, self.world_size):
            found = torch.empty(int(lengths[rank]), dtype=torch.float64)
            dist.recv(found, rank, group=self.group)
            yield found.numpy()


ALONE = Ranks(0, 1)
"""One process, in no group."""


@contextmanager
def process_group(device: str = "cpu") -> Iterator[Ranks]:
    """Be part of a process group while the body runs.

    Under torchrun, the group is the one that it describes. Otherwise this process makes a group of its own, in memory: no port is opened and
    no environment variable is read or set. A group that there is already is used as it is, and left as it is.

    Args:
        device: `cpu` (gloo) or `cuda` (NCCL, and gloo for what is on the CPU): then each rank has the device of its number on its machine.

    Raises:
        ConfigError: there are fewer CUDA devices than ranks on this machine.
    """
    own = _device(device)
    if dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()
        yield _ranks(dist.get_rank(), dist.get_world_size(), own, store)
        return
    if is_launched():
        found, rank, world_size = next(rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))
        store = PrefixStore(f"start {_number('TORCHELASTIC_RESTART_COUNT', 0)}", found)  # the launcher's store may outlive a start
    else:
        store, rank, world_size = HashStore(), 0, 1
    backend = "gloo" if own.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT)
    try:
        yield _ranks(rank, world_size, own, store)
    finally:
        dist.destroy_process_group()


def is_launched() -> bool:
    """Whether a launcher such as torchrun started this process."""
    return all(name in os.environ for name in _TORCHRUN_VARIABLES)


def num_ranks() -> tuple[int, int]:
    """Ranks in all, and ranks of each machine: of the process group, else as the launcher says, else one."""
    world_size = dist.get_world_size() if dist.is_initialized() else _number("WORLD_SIZE", 1)
    return world_size, _number("LOCAL_WORLD_SIZE", world_size)


def _ranks(rank: int, world_size: int, device: torch.device, store: Store) -> Ranks:
    ranks = Ranks(
        rank,
        world_size,
        local_rank=_number("LOCAL_RANK", rank),
        local_world_size=_number("LOCAL_WORLD_SIZE", world_size),
        device=device,
        launch=_launch(),
        restarts=_number("TORCHELASTIC_RESTART_COUNT", 0),
        store=store,
        hosts_store=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        group=dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if world_size > 1 else None,
    )
    ranks.gather([rank])  # none goes on, and perhaps ends, while others still connect
    return ranks


def _device(kind: str) -> torch.device:
    """The device of this rank, made the current one."""
    if kind == "cpu":
        return torch.device("cpu")
    local_rank, local_world_size, count = _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", 1), torch.cuda.device_count()
    if local_world_size > count:
        found = f"this machine has {count} CUDA device{'s' * (count != 1)}" if count else "PyTorch finds no CUDA device on this machine"
        raise ConfigError(f"{local_world_size} rank{'s' * (local_world_size != 1)}, but {found}; use --nproc-per-node {count or 1} or --device cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _launch() -> str:
    """The run id of torchrun; where it gave none, the launcher's process: it outlives restarts."""
    if not is_launched():
        return ""
    run = os.environ.get("TORCHELASTIC_RUN_ID", _NO_RUN_ID)
    return run if run != _NO_RUN_ID else f"process {os.getppid()}"


def _number(name: str, default: int) -> int:
    """A number of torchrun's; the default without a launcher."""
    return int(os.environ[name]) if is_launched() and name in os.environ else default
