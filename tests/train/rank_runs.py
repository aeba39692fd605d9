"""Processes that train together, as a launcher would start them, and what is left of them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.nursery import Script, environment, start_script
from tests.train.jobs import TIMEOUT_S, Job, free_port

TRAIN = ("-m", "emberline.train")
TORCHRUN = (str(Path(sys.executable).with_name("torchrun")),)


def start_forked(folder: Path, jobs: Sequence[Job]) -> Script:
    """A process that runs jobs of several ranks; see `forked_ranks.py`."""
    return start_script([str(Path(__file__).with_name("forked_ranks.py")), str(folder), json.dumps(jobs)])


def forked_results(script: Script, folder: Path, jobs: Sequence[Job]) -> list[list[tuple[int, str]]]:
    """For each job, the exit status of each rank and what it wrote."""
    status, printed = script.finish(TIMEOUT_S)
    assert status == 0, printed
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


def start_launcher(num_ranks: int, arguments: Sequence[str], *options: str) -> Script:
    """The same launcher in a forked process, whose ranks are forked too; see `forked_launcher.py`. Its children are its ranks, in their order."""
    own = [str(Path(__file__).with_name("forked_launcher.py")), "--nproc-per-node", str(num_ranks), "--master-port", str(free_port())]
    return start_script([*own, *options, *arguments])
