"""Runs of several ranks, killed at random moments and taken up again, on as many ranks or others.

    killed_ranks.py FOLDER SEED STARTS

STARTS is JSON: a list of [run, number of ranks, moment, who is killed: "one" or "all"], one after the other. Each begins FOLDER/RUN, or goes on with
it, by R.config beside it for R ranks. Moments:

    any       in the first steps; or, where all are killed, before them (else it is the launcher that must end the others)
    save      while a checkpoint is being written
    saved     soon after a checkpoint of this start
    never     nobody is killed, and all end well

Prints a line of JSON for each kill: which, who was killed, how all ended, whether a checkpoint was left half written, and the newest whole one. Ranks
are forked from one process that has imported everything, as imports take longer than the runs.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from emberline.train.checkpoint import store

sys.path.insert(0, str(Path(__file__).parent))

from forked_ranks import fork_ranks  # type: ignore[import-not-found]
from jobs import TIMEOUT_S, Job  # type: ignore[import-not-found]

MOST_STEPS, START_S = 4, 0.5
"""Moments of the kind `any` are within so many steps, or so many seconds of the start."""


def wait_for(is_so: Callable[[], bool], children: list[int]) -> bool:
    """Until it is so, or no rank runs any more; returns whether it is so."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline
        if all(os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) for child in children):
            return False
        time.sleep(0.001)
    return True


def end_of(children: list[int]) -> list[int]:
    """The exit statuses of all ranks, which must end by themselves."""
    deadline = time.monotonic() + TIMEOUT_S
    statuses: dict[int, int] = {}
    while len(statuses) < len(children) and time.monotonic() < deadline:
        for child in children:
            if child not in statuses and (found := os.waitpid(child, os.WNOHANG))[0]:
                statuses[child] = os.waitstatus_to_exitcode(found[1])
        time.sleep(0.005)
    for child in children:
        if child not in statuses:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert len(statuses) == len(children), "ranks go on without one that was killed"
    return [statuses[child] for child in children]


def is_writing(run: Path) -> bool:
    """Whether a checkpoint is being written."""
    return any(path.name.startswith(store.draft_path(run, 0).name[:-1]) for path in run.glob(".*"))


def last_words(run: Path) -> str:
    """The log, which changes with each step."""
    path = run / "metrics.jsonl"
    return path.read_text() if path.exists() else ""


def wait_for_moment(run: Path, moment: str, who: str, children: list[int], chance: random.Random) -> bool:
    """Returns whether there is somebody to kill at it."""
    steps, said = store.list_steps(run), last_words(run)
    if (moment, who) == ("any", "all") and chance.random() < 0.5:
        time.sleep(chance.random() * START_S)
        return True
    if not wait_for(lambda: last_words(run) != said, children):
        return False
    if moment == "any":
        until = last_words(run).count("\n") + chance.randrange(MOST_STEPS)
        runs = wait_for(lambda: last_words(run).count("\n") >= until, children)
    else:
        runs = wait_for(lambda: is_writing(run) if moment == "save" else store.list_steps(run) != steps, children)
    time.sleep(chance.random() * 0.01)
    return runs


def start(folder: Path, place: int, run: str, num_ranks: int, moment: str, who: str, chance: random.Random) -> None:
    """One start of a run."""
    output = folder / run
    arguments = ["train", "--config", str(output.with_name(f"{num_ranks}.config")), "--output", str(output), "--resume"]
    children = fork_ranks(Job(num_ranks, arguments), folder, f"{run}-{place}")
    if moment == "never":
        statuses = end_of(children)
        assert statuses == [0] * num_ranks, statuses
        return
    killed = list(range(num_ranks)) if who == "all" else [chance.randrange(num_ranks)]
    killed = killed if wait_for_moment(output, moment, who, children, chance) else []
    for rank in killed:
        os.kill(children[rank], signal.SIGKILL)
    news = {"run": run, "ranks": num_ranks, "moment": moment, "killed": killed, "statuses": end_of(children)}
    steps = store.list_steps(output)
    print(json.dumps({**news, "half": is_writing(output), "step": steps[-1] if steps else 0}), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    folder, chance = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    for place, (run, num_ranks, moment, who) in enumerate(json.loads(sys.argv[3])):
        start(folder, place, run, num_ranks, moment, who, chance)


if __name__ == "__main__":
    main()
