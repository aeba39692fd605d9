"""Processes that train together, as a launcher would start them, and what is left of them."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 600
TRAIN = ("-m", "emberline.train")
TORCHRUN = (str(Path(sys.executable).with_name("torchrun")),)


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


def environment(**own: str) -> dict[str, str]:
    """The environment of this process, but for a launcher's variables; one thread each, as ranks share the machine."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    return {**kept, "OMP_NUM_THREADS": "1", **own}


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


def start_ranks(arguments: Sequence[str], world_size: int) -> list[subprocess.Popen[str]]:
    """Python processes with the variables that torchrun would set."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**launcher_variables(rank, world_size, port)),
        )
        for rank in range(world_size)
    ]


def start_forked(folder: Path, jobs: Sequence[Job]) -> subprocess.Popen[str]:
    """A process that runs jobs of several ranks; see `forked_ranks.py`."""
    script = str(Path(__file__).with_name("forked_ranks.py"))
    command = [sys.executable, "-W", "ignore", script, str(folder), json.dumps(jobs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), start_new_session=True)


def output_of_session(process: subprocess.Popen[str]) -> str:
    """What a process with a session of its own has written when it ends; nothing that it started goes on."""
    with process:
        try:
            return process.communicate(timeout=TIMEOUT_S)[0]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def forked_results(process: subprocess.Popen[str], folder: Path, jobs: Sequence[Job]) -> list[list[tuple[int, str]]]:
    """For each job, the exit status of each rank and what it wrote."""
    printed = output_of_session(process)
    assert process.returncode == 0, printed
    statuses = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    assert len(statuses) == len(jobs), printed
    return [[(status, (folder / f"{job}-{rank}.txt").read_text()) for rank, status in enumerate(ranks)] for job, ranks in enumerate(statuses)]


def run_forked(folder: Path, jobs: Sequence[Job]) -> list[list[str]]:
    """Run jobs of several ranks, all of which must end well; for each job what each rank wrote."""
    found = forked_results(start_forked(folder, jobs), folder, jobs)
    for job, ranks in zip(jobs, found, strict=True):
        assert [status for status, _ in ranks] == [0] * job.world_size, f"{job}: {ranks}"
    return [[output for _, output in ranks] for ranks in found]


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
