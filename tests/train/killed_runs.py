"""Runs a training several times, each in a process that ends as SIGKILL ends it, at an exact moment.

    python killed_runs.py CONFIG FOLDER MOMENT...

Each moment's run writes to FOLDER/MOMENT. Prints a line for each: the moment, and how its process ended (-9: killed). The processes are forked
from one that has imported everything, as imports take longer than the runs.
"""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from emberline.train import job, job_run
from emberline.train.checkpoint import run_state, store
from emberline.train.config import load_config

SAVING = threading.Event()
TIMEOUT_S = 120


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _wrap(holder: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function by one that is handed the function and its arguments."""
    before = getattr(holder, name)
    setattr(holder, name, lambda *args, **kwargs: wrapper(before, *args, **kwargs))


def after_step(before: Callable[..., None], run: Any, trained: Any) -> None:
    before(run, trained)
    if run.step == 21:
        run.saver.wait()
        _kill()


def after_later_step(before: Callable[..., None], run: Any, trained: Any) -> None:
    before(run, trained)
    if run.step == 27:
        assert SAVING.wait(TIMEOUT_S)
        _kill()


def slow_save(before: Callable[..., None], directory: Path, *args: Any) -> None:
    before(directory, *args)
    if "step-24" in str(directory):
        SAVING.set()
        threading.Event().wait(TIMEOUT_S)


def in_save(before: Callable[..., None], directory: Path, *args: Any) -> None:
    before(directory, *args)
    if "step-24" in str(directory):
        _kill()


def before_rename(before: Callable[..., None], root: Path, data: Mapping[str, Any]) -> None:
    before(root, data)
    if data["step"] == 16:
        _kill()


def in_pruning(before: Callable[..., None], path: Path, *args: Any, **kwargs: Any) -> None:
    if "removed-step-8" in str(path) and Path(path).exists():
        _kill()
    before(path, *args, **kwargs)


MOMENTS: Mapping[str, list[tuple[Any, str, Callable[..., None]]]] = {
    "step": [(job_run.TrainingRun, "_after_step", after_step)],
    "save": [(run_state, "save_tensors", in_save)],
    "beside": [(run_state, "save_tensors", slow_save), (job_run.TrainingRun, "_after_step", after_later_step)],
    "rename": [(store, "write_manifest", before_rename)],
    "prune": [(shutil, "rmtree", in_pruning)],
}


def main() -> None:
    config, folder, moments = load_config(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    for moment in moments:
        process = os.fork()
        if process == 0:
            for place in MOMENTS[moment]:
                _wrap(*place)
            job.run_training(config, folder / moment)
            os._exit(0)
        print(moment, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
