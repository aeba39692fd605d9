"""Writes an increment in processes that die before one change of the disk after the other, and on a disk that takes no more than small files.

    killed_increments.py FOLDER

FOLDER/run has step-20 and increments from 10 to 30. A line tells of each process how it ended, and what is there of increments and drafts.
"""

import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynamic_files import NOTES, state_of  # type: ignore[import-not-found]

from emberline.errors import CheckpointError
from emberline.train.checkpoint.apply_increments import apply_increments
from emberline.train.checkpoint.expire import expire_ids
from emberline.train.checkpoint.increment_writer import IncrementWriter, Stretch, drop_after
from emberline.train.checkpoint.increments import TableChanges
from emberline.train.checkpoint.verify_increments import verify_increments

CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")
NONE = state_of([]).keys


def write(run: Path) -> None:
    """The increment from 30 to 40, as a run does that was taken up at step 30."""
    drop_after(run, 30)
    with IncrementWriter(run) as writer:
        stretch = Stretch(run="r", base=30, base_mark="m30", step=40, mark="m40", times=())
        writer.write(stretch, {"t": NOTES}, {"t": TableChanges(state_of(range(100)), NONE, 40)})


def dying(run: Path, number: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Dies before the change of that number in a run's folder; names without a folder are those of files that are being deleted."""
    count = 0

    def look(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        paths = [str(arg) for arg in args[:2] if isinstance(arg, str | Path)]
        is_write = event == "open" and bool(paths) and str(run) in paths[0] and args[1] not in (None, "r", "rb")
        if is_write or (event in CHANGES and any(str(run) in path or "/" not in path for path in paths)):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    return look


def forked(work: Callable[[], object]) -> tuple[int, str]:
    """The exit status of a child process, and what error of ours it had."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
        except CheckpointError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def listed(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "increments").iterdir())


def killed(run: Path, number: int) -> None:
    sys.addaudithook(dying(run, number))
    write(run)


def on_a_full_disk(work: Callable[[], object]) -> None:
    """No file may have more than 2,000 bytes; the system says so by an error, as where there is no room."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    work()


def main(folder: Path) -> None:
    number, status = 0, -signal.SIGKILL
    while status:
        number += 1
        run = folder / f"killed-{number}"
        shutil.copytree(folder / "run", run)
        status, _ = forked(lambda run=run, number=number: killed(run, number))  # type: ignore[misc]
        after, problems = listed(run), verify_increments(run).problems
        forked(lambda run=run: write(run))  # type: ignore[misc]
        print(json.dumps(["killed", status, after, problems, listed(run), verify_increments(run).problems]), flush=True)
    run = folder / "full"
    shutil.copytree(folder / "run", run)
    print(json.dumps(["full", *forked(lambda: on_a_full_disk(lambda: write(run))), listed(run)]), flush=True)
    for name, work in (
        ("apply", lambda output: apply_increments(run / "step-20", [run / "increments"], output, lambda line: None)),
        ("expire", lambda output: expire_ids(run / "step-20", output, lambda line: None, before_step=1)),
    ):
        output = folder / name
        print(json.dumps([name, *forked(lambda work=work, output=output: on_a_full_disk(lambda: work(output))), output.exists()]), flush=True)  # type: ignore[misc]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
