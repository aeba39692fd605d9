"""Seconds until an artifact is ready, milliseconds until a delta is in, and what a second worker costs in memory.

    python benchmarks/opening.py [--quick] [--json PATH] [--threads N] [--mib N]

An artifact of 26 tables and 2 zero-collision ones, 1 GiB of rows of 64 bytes, which lies in the system's cache of files. Opening is all of it: every
byte is compared with the manifest, maps of raw ids are taken in, the golden sample is replayed, and requests of 1, 100 and 4,096 rows, with ids and
without, are answered. The floors are measured in the same run: the digests of the same bytes by as many threads, and, of private memory, reading
them. Beside times by the clock stand those of the processor, of all threads, which say more on a machine that does other work.
The delta changes 1 % of the rows of every table, spread evenly; adding it ends when all requests see it and nothing is left of it beside the tables.
A second worker opens the artifact beside a first one, and both have read every row: what only it holds in memory, less what it held with a model of a
thousandth of the size, is what it costs.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._opening_work import write_delta
from benchmarks._serving_model import DIM, FEATURES, write_model
from emberline.cpus import usable_cpus
from emberline.digests import PIECE_BYTES, PiecesDigest
from emberline.memory import aligned_memory

ROW_BYTES = 4 * DIM
MEMORIES = ("private", "mapped")
Ask = Callable[..., dict[str, float]]


@contextmanager
def worker(threads: int) -> Iterator[Ask]:
    """A process that does what it is asked; ended at the end."""
    command = [sys.executable, str(Path(__file__).with_name("_opening_work.py")), str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def ask(**order: Any) -> dict[str, float]:
            orders.write(json.dumps(order) + "\n")
            orders.flush()
            answer: dict[str, float] = json.loads(answers.readline())
            return answer

        try:
            yield ask
        finally:
            orders.close()


def floors(root: Path, threads: int) -> dict[str, float]:
    """Seconds for both digests of every file of an artifact, and for reading them into new memory on huge pages: the best of three."""
    paths = sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size, reverse=True)

    def sha256(path: Path) -> None:
        with path.open("rb") as stream:
            hashlib.file_digest(stream, "sha256")

    def xxh3(path: Path) -> None:
        digest = PiecesDigest()
        with path.open("rb", buffering=0) as stream:
            while block := stream.read(PIECE_BYTES):
                digest.update(block)

    def read(path: Path) -> None:
        with path.open("rb", buffering=0) as stream:
            stream.readinto(np.frombuffer(aligned_memory(path.stat().st_size), np.uint8).data)

    found = {}
    with ThreadPoolExecutor(threads) as pool:
        for name, work in (("sha256 of all bytes", sha256), ("XXH3", xxh3), ("reading them into new memory", read)):
            times = []
            for _ in range(3):
                start = time.perf_counter()
                list(pool.map(work, paths))
                times.append(time.perf_counter() - start)
            found[name] = min(times)
    return found


def measure_openings(small: Path, root: Path, delta: Path, rounds: int, threads: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of each round, by memory and what was done; the memories take turns, each round in a process that opened a small model before."""
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for memory in MEMORIES:
            with worker(threads) as ask:
                ask(open=str(small), tables=memory, verify=True)
                for name, verify in (("open", True), ("open, sizes only", False)):
                    told = ask(open=str(root), tables=memory, verify=verify)
                    found.setdefault((memory, name), []).append(told["seconds"])
                    found.setdefault((memory, f"{name}, cpu"), []).append(told["cpu"])
                    found.setdefault((memory, "huge"), []).append(told["huge"] / told["bytes"])
                told = ask(delta=str(delta))
                found.setdefault((memory, "delta"), []).append(told["seconds"])
                found.setdefault((memory, "delta, cpu"), []).append(told["cpu"])
    return found


def measure_second(small: Path, root: Path, memory: str, threads: int) -> float:
    """What a second worker costs, as a share of the tables' bytes."""
    with worker(threads) as first, worker(threads) as second:
        first(open=str(root), tables=memory, verify=True)
        first(memory=True)
        second(open=str(small), tables=memory, verify=True)
        before = second(memory=True)["own"]
        size = second(open=str(root), tables=memory, verify=True)["bytes"]
        return (second(memory=True)["own"] - before) / size


def report(found: dict[tuple[str, str], list[float]], floor: dict[str, float], shares: dict[str, float]) -> None:
    print(", ".join(f"{name} {seconds:.2f} s" for name, seconds in floor.items()))
    print(f"{'':<10}{'ready, s':>20}{'sizes only, s':>20}{'delta, ms':>20}{'on huge':>9}{'second worker':>15}")
    print(f"{'tables':<10}" + f"{'best':>11}{'median':>9}" * 3 + f"{'pages':>9}{'of tables':>15}")
    for memory in MEMORIES:
        cells = ""
        for name, unit, digits in (("open", 1, 2), ("open, sizes only", 1, 2), ("delta", 1000, 0)):
            times = np.array(found[memory, name]) * unit
            cells += f"{times.min():>11.{digits}f}{np.median(times):>9.{digits}f}"
        processor = ", ".join(f"{name} {min(found[memory, f'{name}, cpu']):.3f}" for name in ("open", "open, sizes only", "delta"))
        print(f"{memory:<10}{cells}{np.median(found[memory, 'huge']):>9.0%}{shares[memory]:>15.1%}; processor, s: {processor}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time until an artifact is ready and a delta is in, and memory of a second worker.")
    parser.add_argument("--quick", action="store_true", help="two rounds instead of five")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="threads of torch's operators (default: %(default)s)")
    parser.add_argument("--mib", type=int, default=1024, help="size of the tables (default: %(default)s)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the folder is removed then too
    folder, table_rows = Path(tempfile.mkdtemp(prefix="emberline-opening-")), (args.mib << 20) // (ROW_BYTES * len(FEATURES))
    try:
        root = write_model(folder / "large", table_rows)
        small = write_model(folder / "small", table_rows // 1000)
        delta = write_delta(root, 0.01)
        os.sync()
        floor = floors(root, args.threads)
        found = measure_openings(small, root, delta, 2 if args.quick else 5, args.threads)
        shares = {memory: measure_second(small, root, memory, args.threads) for memory in MEMORIES}
    finally:
        shutil.rmtree(folder)
    report(found, floor, shares)
    figures = {
        "ready_1gib_s": min(found["private", "open"]),
        "mapped_1gib_s": min(found["mapped", "open"]),
        "delta_1pct_ms": 1000 * min(found["private", "delta"]),
        "delta_1pct_mapped_ms": 1000 * min(found["mapped", "delta"]),
        "second_worker_share": shares["mapped"],
        "huge_page_share": min(found["private", "huge"]),
    }
    print("\n" + "; ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    if args.json:
        args.json.write_text(json.dumps({"ratios": {}, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
