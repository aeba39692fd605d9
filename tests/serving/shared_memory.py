"""Opens two artifacts whose tables are mapped, a small one and then another, and prints what the second costs this process, in bytes: `FIELDS`.

python tests/serving/shared_memory.py SMALL ARTIFACT TABLE
"""

import re
import sys
from pathlib import Path

import torch

from emberline.serving import Engine
from emberline.serving.warm_up import answer_sizes

FIELDS = ("rss", "pss", "anonymous")
"""Of the mapped file TABLE: its pages in memory, and these divided by the number of processes that have them; and more memory of its own than before.

Libraries do not count: how many others have them in memory changes as other tests come and go.
"""


def mapped_bytes(file: Path) -> tuple[int, int]:
    """The first two of `FIELDS`, of all places where this process has mapped a file."""
    rss, pss, is_it = 0, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            is_it = line.endswith(f" {file}")
        elif is_it and line.startswith("Rss:"):
            rss += 1024 * int(line.split()[1])
        elif is_it and line.startswith("Pss:"):
            pss += 1024 * int(line.split()[1])
    return rss, pss


def own_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def open_and_answer(path: str) -> Engine:
    """An engine that has touched every page of its tables."""
    engine = Engine.open(path, tables="mapped")
    for rows in engine.artifact.tables.values():
        rows.view(torch.uint8).amax()
    answer_sizes(engine, (1, 50))
    return engine


def main() -> None:
    torch.set_num_threads(1)
    small, path, table = sys.argv[1:]
    kept = [open_and_answer(small)]
    before = own_bytes()
    kept.append(open_and_answer(path))
    print(*mapped_bytes(Path(table)), own_bytes() - before)


if __name__ == "__main__":
    main()
