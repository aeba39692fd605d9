"""Opens two artifacts, a small one and then another, and tells what the second costs this process; until its standard input ends.

python -m tests.serving.shared_memory SMALL ARTIFACT MEMORY
"""

import sys
from pathlib import Path

import torch

from emberline.serving import Engine
from emberline.serving.warm_up import answer_sizes

FIELDS = ("Pss", "Private_Clean", "Private_Dirty", "Rss")
"""What the system counts for a process, in this order: `Pss` has each page divided by the number of processes that share it."""


def own_memory() -> list[int]:
    """Bytes of each of `FIELDS`."""
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()]
    found = {line[0]: 1024 * int(line[1]) for line in lines if line[-1] == "kB"}
    return [found[f"{field}:"] for field in FIELDS]


def open_and_answer(path: str, memory: str) -> Engine:
    engine = Engine.open(path, tables=memory)
    for rows in engine.artifact.tables.values():
        rows.view(torch.uint8).amax()  # touches every page
    answer_sizes(engine, (1, 50))
    return engine


def main() -> None:
    torch.set_num_threads(1)
    small, path, memory = sys.argv[1:]
    kept = [open_and_answer(small, memory)]
    before = own_memory()
    kept.append(open_and_answer(path, memory))
    print("ready", flush=True)
    while sys.stdin.readline():
        print(*(now - then for now, then in zip(own_memory(), before, strict=True)), flush=True)


if __name__ == "__main__":
    main()
