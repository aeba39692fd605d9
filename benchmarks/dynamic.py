"""Lookups and train steps a second of tables that grow, beside static tables of the same rows and the same ids, in the same run; and their memory.

    python benchmarks/dynamic.py [--quick] [--json PATH] [--keys N ...] [--rounds N] [--threads N]

1 and 10 million keys in 26 tables (one id of each in a row) or in one (26 ids in a row), 2,048 rows a batch, Zipf-distributed, float32. Tables that
grow get keys spread over all 64 bits and find their rows themselves; static ones get row numbers. A lookup is a forward in evaluation; a step is
forward, backward and update, given the gradients of what was looked up. `all known`: every id of a batch has a row already; `1 % new`: one in a
hundred was never seen, and gets a row (static tables get known ids there too). fbgemm's kernel is beside them where it has the optimiser.

All answer alike, before and after three steps, or nothing is timed. Forms take turns, with another batch each time; the best counts, the first are
left out. Ratios are the least of all cases: `lookup_vs_static`, `train_vs_static`, `train_new_vs_static`, above 1 where tables that grow are faster
than static ones; the aims are 0.7 and 0.5. `memory_vs_rows` is the most that a full table takes of a process's memory, in bytes of its rows and
their moments; `memory_of_aim` is 1.35 divided by it, above 1 where it takes less.
"""

import argparse
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._dynamic_work import (
    DYNAMIC,
    IDS_A_ROW,
    NUM_ROWS,
    OPTIMIZERS,
    STATIC,
    Batch,
    Case,
    Form,
    make_batches,
    make_forms,
    new_ids,
    resident_bytes,
)

MILLION = 1_000_000
ADAGRAD, ADAM = OPTIMIZERS
LOOKUP, KNOWN, NEW = "lookup", "all known", "1 % new"
WHAT = (LOOKUP, KNOWN, NEW)
MEMORY_AIM = 1.35
NUM_BATCHES, WARM_UP = 8, 2
Best = dict[tuple[str, str], float]
"""Seconds of a batch, by form and what is done."""


def cases(is_quick: bool, keys: int) -> list[Case]:
    """Of so many keys, made a multiple of the tables."""
    keys = max(1, keys // 26) * 26
    if is_quick:
        return [Case(keys, 26, 16, ADAGRAD), Case(keys, 1, 64, ADAGRAD), Case(keys, 26, 16, ADAM)]
    if keys > 2 * MILLION:  # Adam's moments of rows of 64 numbers would take 7.7 GB twice
        return [Case(keys, 26, 16, ADAGRAD), Case(keys, 1, 16, ADAGRAD), Case(keys, 1, 64, ADAGRAD), Case(keys, 26, 16, ADAM)]
    return [Case(keys, tables, dim, optimizer) for optimizer in (ADAGRAD, ADAM) for tables in (26, 1) for dim in (16, 64)]


def check(tables: int, optimizer: str) -> None:
    """All forms give the same numbers, before and after steps."""
    case = Case(26 * 200, tables, 16, optimizer)
    forms = make_forms(case, 0, start=0.25)
    batches = make_batches(case, 4)
    gradients = torch.randn(NUM_ROWS, case.dim * case.tables, generator=torch.Generator().manual_seed(1))
    for step, batch in enumerate(batches):
        want, *others = [form.look_up(form.ids(batch), case.offsets) for form in forms]
        for form, found in zip(forms[1:], others, strict=True):
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4, msg=lambda text: f"{form.name}, {case}, step {step}: {text}")  # noqa: B023
        for form in forms:
            form.learn(form.ids(batch), case.offsets, gradients)


def measure(case: Case, rounds: int) -> Best:
    """Each form's best batch; they take turns."""
    turns = WARM_UP + rounds
    forms = make_forms(case, new_ids(turns))
    gradients = torch.randn(NUM_ROWS, case.dim * case.tables) * 1e-3
    known, offsets = make_batches(case, NUM_BATCHES), case.offsets
    best: Best = {(form.name, what): float("inf") for form in forms for what in WHAT}
    for what in WHAT:
        for turn in range(turns):
            batches = make_batches(case, 1, new_ids(turn)) if what == NEW else known
            for place, form in enumerate(forms):
                batch = batches[(turn + place * NUM_BATCHES // len(forms)) % len(batches)]
                spent = _seconds(form, what, batch, offsets, gradients)
                if turn >= WARM_UP:
                    best[form.name, what] = min(best[form.name, what], spent)
    return best


def _seconds(form: Form, what: str, batch: Batch, offsets: torch.Tensor, gradients: torch.Tensor) -> float:
    ids = batch.with_new if what == NEW and form.grows else form.ids(batch)
    start = time.perf_counter()
    if what == LOOKUP:
        form.look_up(ids, offsets)
    else:
        form.learn(ids, offsets, gradients)
    return time.perf_counter() - start


def memory(measured: Sequence[Case]) -> dict[Case, float]:
    """Bytes of a full table that grows, in those of its rows and moments; each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        found = pool.map(resident_bytes, measured, chunksize=1)
    return {case: taken / (case.keys * case.row_bytes) for case, taken in zip(measured, found, strict=True)}


def report(case: Case, best: Best, share: float | None) -> None:
    taken = "" if share is None else f"; memory {share:.2f} times rows and moments ({case.row_bytes * share:.0f} bytes a key)"
    print(f"\n{case}{taken}")
    print(f"{'':<20}{'lookups, million/s':>20}{'steps/s, all known':>20}{'steps/s, 1 % new':>20}")
    for name in dict.fromkeys(name for name, _ in best):
        lookups = NUM_ROWS * IDS_A_ROW / best[name, LOOKUP] / MILLION
        print(f"{name:<20}{lookups:>20.2f}{1 / best[name, KNOWN]:>20.1f}{1 / best[name, NEW]:>20.1f}")
    print(f"{'grows, of static':<20}" + "".join(f"{_ratio(best, what):>20.2f}" for what in WHAT), flush=True)


def _ratio(best: Best, what: str) -> float:
    return best[STATIC, what] / best[DYNAMIC, what]


def ratios(found: dict[Case, Best], shares: dict[Case, float]) -> dict[str, float]:
    names = {"lookup_vs_static": LOOKUP, "train_vs_static": KNOWN, "train_new_vs_static": NEW}
    least = {name: min(_ratio(best, what) for best in found.values()) for name, what in names.items()}
    most = max(shares.values())
    return {**least, "memory_vs_rows": most, "memory_of_aim": MEMORY_AIM / most}


def main() -> None:
    parser = argparse.ArgumentParser(description="Lookups and train steps a second of tables that grow, beside static tables.")
    parser.add_argument("--quick", action="store_true", help="1 million keys, three cases, the memory of one, fewer rounds")
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--keys", type=int, nargs="+", help="numbers of keys to measure instead")
    parser.add_argument("--rounds", type=int, help="how often each form gets a batch")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch; default: one for each core")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    rounds = args.rounds or (8 if args.quick else 30)
    print(f"batches of {NUM_ROWS:,} rows with {IDS_A_ROW} ids; {rounds} rounds, {args.threads} threads")
    for tables in (26, 1):
        for optimizer in OPTIMIZERS:
            check(tables, optimizer)
    measured = [case for keys in args.keys or ([MILLION] if args.quick else [MILLION, 10 * MILLION]) for case in cases(args.quick, keys)]
    sized = [case for case in measured if case.keys < 2 * MILLION or case.dim == 16]
    shares = memory(sized[:1] if args.quick else sized)
    found: dict[Case, Best] = {}
    for case in measured:
        found[case] = measure(case, rounds)
        report(case, found[case], shares.get(case))
    told = ratios(found, shares)
    print("\n" + "; ".join(f"{name} {ratio:.2f}" for name, ratio in told.items()))
    if args.json:
        args.json.write_text(json.dumps({"ratios": told}, indent=1))


if __name__ == "__main__":
    main()
