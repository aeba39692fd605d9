"""Processes that train together, as a launcher would start them, and what is left of them."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TIMEOUT_S = 300
TRAIN = ("-m", "emberline.train")
TORCHRUN = (str(Path(sys.executable).with_name("torchrun")),)


def environment(**own: str) -> dict[str, str]:
    """The environment of this process, but for a launcher's variables; one thread each, as ranks share the machine."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    return {**kept, "OMP_NUM_THREADS": "1", **own}


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start_ranks(arguments: Sequence[str], world_size: int, extra: Mapping[str, str] | None = None) -> list[subprocess.Popen[str]]:
    """Python processes with the variables that torchrun would set."""
    shared = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**shared, RANK=str(rank), LOCAL_RANK=str(rank), **(extra or {})),
        )
        for rank in range(world_size)
    ]


def outputs_of(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """What each has written, when all have ended; those that have not by then are killed, and the test fails."""
    try:
        return [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def start_torchrun(num_ranks: int, arguments: Sequence[str], *options: str) -> subprocess.Popen[str]:
    """A launcher with its ranks, in a process group of its own."""
    command = [*TORCHRUN, "--nproc-per-node", str(num_ranks), "--master-port", str(free_port()), *options, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), start_new_session=True)


def ranks_below(launcher: int) -> list[int]:
    """The process ids of a launcher's ranks, in their order."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(child) for child in children if b"RANK=" in _environment_of(child)]


def _environment_of(process: str) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""
