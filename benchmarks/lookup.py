"""Pooled lookups in tables that no cache holds, against fbgemm's table-batched kernel, a plain gather, and the memory itself; and small calls.

    python benchmarks/lookup.py [--quick] [--json PATH] [--rows N] [--threads N ...]

Four tables; 512 rows with 20 uniform ids in each, new ones each time. fbgemm has the same rows in the memory that it takes by itself, Emberline on
huge pages where the system has some. All forms answer alike, or nothing is timed; they take turns, and the best batch counts. `index_select` copies
the rows and pools nothing; the floor is a loop that only reads the lines of 64 bytes that the rows lie in.

A small call is one row with one id in each of 26 tables: what an engine's `lookup` takes in process, and a part of it.

Ratios are above 1 where Emberline is faster: `int8_vs_fbgemm` (dim 64), `engine_vs_gather` (fp32, dim 64; `engine_of_floor` is the floor's share of
our time), `fp32_vs_torch` (dim 64, pooled by both). `call_26_tables_us` is in microseconds. All are those of the first number of threads.

Rows that an engine would keep apart, so that they straddle fewer lines, are: then the kernel also reads them side by side.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._lookup_work import Case, Form, make_batches, make_forms, make_tables, write_small_model
from emberline.serving import Engine, PackedRequest
from emberline.serving.lookup import LOOKUPS

NUM_BATCHES = 31
"""So many that what a form reads was pushed out of the cache since another read it."""
SHAPES = (("int8", 64), ("int4", 64), ("fp16", 64), ("fp32", 64), ("int8", 16), ("fp32", 16), ("int8", 56))
TABLES, SMALL_ROWS, SMALL_DIM = 26, 1000, 16
CALLS = 20
"""In a row: few enough that other processes leave some rows of calls alone."""
OURS, TORCH, PEER, GATHER, FLOOR = (
    "emberline, kernel",
    "emberline, torch",
    "fbgemm, its own memory",
    "index_select of the rows",
    "reading their lines",
)
Best = dict[str, float]
"""Seconds by name."""


def check(forms: Sequence[Form]) -> None:
    """All forms that answer give the same."""
    want = forms[0].look_up(0)
    for form in forms[1:]:
        if form.answers:
            torch.testing.assert_close(form.look_up(0), want, rtol=1e-4, atol=1e-4)


def measure(forms: Sequence[Form], rounds: int) -> Best:
    """Seconds of each form's best batch; all take turns, and none gets a batch that was read lately: its rows would still be in the cache."""
    best: Best = {}
    for turn in range(rounds):
        for place, form in enumerate(forms):
            start = time.perf_counter()
            form.look_up((turn * len(forms) + place) % NUM_BATCHES)
            took = time.perf_counter() - start
            best[form.name] = min(took, best.get(form.name, took))
    return best


def measure_case(case: Case, threads: Sequence[int], rounds: int) -> dict[int, Best]:
    """The best times of all forms by threads, printed."""
    tables, batches = make_tables(case), make_batches(case, NUM_BATCHES)
    forms = make_forms(case, tables, batches)
    check(forms)
    found = {}
    for count in threads:
        torch.set_num_threads(count)
        found[count] = measure(forms, rounds)
        size_mb = case.tables * case.rows * case.pitch / 1e6
        apart = f", {case.pitch} apart" if case.pitch > case.row_bytes else ""
        print(f"\n{case.dtype}, dim {case.dim}, {case.row_bytes} bytes a row{apart}, {case.lines:.2f} lines; {size_mb:,.0f} MB; threads: {count}")
        print(f"{'form':<30}{'ns a row':>8}{'GB/s of rows':>14}{'kernel is':>12}")
        for name, took in found[count].items():
            times = f"{took / found[count][OURS]:.2f} x" if name != OURS else ""
            print(f"{name:<30}{took / case.num_ids * 1e9:>8.1f}{case.read_bytes / took / 1e9:>14.2f}{times:>12}")
    return found


def best_call(call: Callable[[], object], rounds: int) -> float:
    """Microseconds of a call, of many in a row; the best row counts."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - start) / CALLS)
    return best * 1e6


def measure_calls(engine: Engine, request: PackedRequest, rounds: int) -> tuple[float, float]:
    """Microseconds of an engine's answer, and of what its programs take for it."""
    return best_call(lambda: engine.lookup(request), rounds), best_call(lambda: engine.program_inputs(request), rounds)


def measure_small(rounds: int) -> float:
    """Microseconds of one row with one id in each of 26 tables by the best backend; all are printed."""
    torch.set_num_threads(1)
    request = PackedRequest(np.arange(TABLES, dtype=np.int64), np.ones(TABLES, np.int32))
    print(f"\none row, one id in each of {TABLES} tables of dim {SMALL_DIM}, in process, microseconds")
    print(f"{'backend':<28}{'Engine.lookup':>16}{'what programs take':>20}")
    took = {}
    with tempfile.TemporaryDirectory() as folder:
        write_small_model(Path(folder) / "1", TABLES, SMALL_ROWS, SMALL_DIM)
        for name in (name for name in LOOKUPS if name != "fused"):  # which is for CUDA
            took[name], part = measure_calls(Engine.open(Path(folder) / "1", lookup=name), request, rounds)
            print(f"{name:<28}{took[name]:>16.1f}{part:>20.1f}")
    return took["native"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Pooled lookups against fbgemm, a plain gather and the memory itself; and small calls.")
    parser.add_argument("--quick", action="store_true", help="tables of 300,000 rows, one thread, fewer rounds")
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--rows", type=int, help="rows of each table")
    parser.add_argument("--threads", type=int, nargs="+", help="threads to measure with (default: 1 and 2)")
    args = parser.parse_args()
    rows = args.rows or (300_000 if args.quick else 1_000_000)
    threads = args.threads or ([1] if args.quick else [1, 2])
    rounds = 30 if args.quick else 80
    found = {(dtype, dim): measure_case(Case(dtype=dtype, dim=dim, rows=rows), threads, rounds) for dtype, dim in SHAPES}
    narrow, wide = found["int8", 64][threads[0]], found["fp32", 64][threads[0]]
    figures = {
        "int8_vs_fbgemm": narrow[PEER] / narrow[OURS],
        "engine_vs_gather": wide[GATHER] / wide[OURS],
        "engine_of_floor": wide[FLOOR] / wide[OURS],
        "fp32_vs_torch": wide[TORCH] / wide[OURS],
    }
    small = measure_small(200 if args.quick else 1000)
    print("\n" + "; ".join(f"{name} {ratio:.2f}" for name, ratio in figures.items()) + f"; call_26_tables_us {small:.1f}")
    if args.json:
        args.json.write_text(json.dumps({"ratios": figures, "figures": {"call_26_tables_us": small}}, indent=1))


if __name__ == "__main__":
    main()
