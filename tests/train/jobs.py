"""What several ranks do together, for those who start them and for the scripts that fork them."""

import socket
from collections.abc import Sequence
from typing import NamedTuple

TIMEOUT_S = 600


class Job(NamedTuple):
    """What several ranks do together.

    Args:
        world_size: ranks in all.
        arguments: of each, as `forked_ranks.py` knows them.
        local_world_size: ranks of each machine that they believe to be on; 0: there is one machine.
    """

    world_size: int
    arguments: Sequence[str]
    local_world_size: int = 0


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def launcher_variables(rank: int, world_size: int, port: int, local_world_size: int = 0) -> dict[str, str]:
    """The variables that torchrun would set, on machines of `local_world_size` ranks, or on one machine."""
    local = local_world_size or world_size
    numbers = {"RANK": rank, "LOCAL_RANK": rank % local, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": local, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}}
