"""Trains, and ends as SIGKILL ends a process, in the midst of writing an increment.

killed_increments.py CONFIG FOLDER
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from emberline.train.checkpoint import increment_writer
from emberline.train.config import load_config
from emberline.train.job import run_training

TIMEOUT_S = 120
WRITE = vars(increment_writer)["save_file"]


def write(tensors: Any, path: Path) -> None:
    """Half of a file, and no more, for the increment that leads to step 12."""
    WRITE(tensors, path)
    if path.parent.name.endswith("-12"):
        os.truncate(path, path.stat().st_size // 2)
        deadline = time.monotonic() + TIMEOUT_S
        while not (path.parents[2] / "step-7" / "manifest.json").is_file() and time.monotonic() < deadline:  # another thread writes it
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    vars(increment_writer)["save_file"] = write
    run_training(load_config(sys.argv[1]), Path(sys.argv[2]))
