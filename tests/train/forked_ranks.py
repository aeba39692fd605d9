"""Several ranks at a time, forked from one process that has imported everything, as imports take longer than the runs.

    python forked_ranks.py FOLDER JOBS

JOBS is JSON: a list of [number of ranks, arguments, ranks of a machine]; see `Job` in jobs.py. Arguments are a script and its own, a folder
and cases of rank_cases.py, a folder and a check of rank_checks.py, or those of `emberline` where they begin with `train`. What rank R of job J
writes goes to FOLDER/J-R.txt; the exit statuses of each job's ranks are printed as a line of JSON.
"""

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import pytest
import torch

from emberline.cli import main as emberline

sys.path.insert(0, str(Path(__file__).parent))

from jobs import Job, free_port, launcher_variables  # type: ignore[import-not-found]
from rank_cases import run_cases  # type: ignore[import-not-found]
from rank_checks import CHECKS, run_check  # type: ignore[import-not-found]


def run_rank(arguments: list[str], variables: dict[str, str], output: Path) -> int:
    """One rank, in this process from now on; returns its exit status."""
    with output.open("wb") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    environment = pytest.MonkeyPatch()
    for name, value in variables.items():
        environment.setenv(name, value)
    try:
        if arguments[0] == "train":
            return emberline(arguments)
        if arguments[0].endswith(".py"):
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
            return 0
        if arguments[1] in CHECKS:
            run_check(Path(arguments[0]), arguments[1])
            return 0
        run_cases(Path(arguments[0]), arguments[1:])
    except BaseException:  # noqa: BLE001 - as a process would end
        traceback.print_exc()
        return 1
    return 0


def fork_ranks(job: Job, output: Path, name: str) -> list[int]:
    """The process ids of a job's ranks; what rank R writes goes to OUTPUT/NAME-R.txt."""
    port, children = free_port(), []
    for rank in range(job.world_size):
        child = os.fork()
        if child == 0:
            variables = launcher_variables(rank, job.world_size, port, job.local_world_size)
            status = run_rank(list(job.arguments), variables, output / f"{name}-{rank}.txt")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        children.append(child)
    return children


def main() -> None:
    """Run the jobs, one after the other."""
    torch.set_num_threads(1)
    folder, jobs = Path(sys.argv[1]), [Job(*job) for job in json.loads(sys.argv[2])]
    for place, job in enumerate(jobs):
        children = fork_ranks(job, folder, str(place))
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


if __name__ == "__main__":
    main()
