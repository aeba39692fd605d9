"""Nanoseconds for each raw id that is turned into a row, against TorchRec's eval-mode remap, torch.searchsorted and a Python dict, in the same run.

    python benchmarks/remap.py [--quick] [--json PATH] [--ids N ...]

1, 10 and 50 million random ids; batches of 100,000, nine in ten known, uniform or Zipf-distributed; one thread and two. All forms get the same
batches, new ones each time, and take turns; the best batch counts. That they answer alike is checked first. TorchRec's module gets its ids as if it
had learned them; its build and that of the dict are told for completeness. Bytes count what a form keeps in memory.

The limit is measured in the same run: the home lines of the same ids, 64 bytes each, read in the same order by a loop that does nothing else, on one
thread. Ratios are above 1 where Emberline is faster, with uniform ids on one thread; `remap_10m_of_limit` is the limit's share of our time.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._remap_work import BATCH, Form, Ids, line_probes, make_forms, make_ids, make_queries

MILLION = 1_000_000
KINDS = ("uniform", "Zipf")
THREADS = (1, 2)
NUM_BATCHES = 24
"""Their lines take more room than a processor's cache has."""
MOST_DICT_IDS = 50 * MILLION
Best = dict[tuple[str, str, int], float]
"""Nanoseconds an id by form, kind and threads."""
LIMIT = "limit"


def check(forms: Sequence[Form], batch: Tensor) -> None:
    """All forms give the same rows."""
    want = forms[0].rows_of(batch)
    for form in forms[1:]:
        assert torch.equal(form.rows_of(batch), want), form.name


def measure(runs: dict[str, list[Callable[[int], object]]], rounds: int) -> dict[str, float]:
    """Nanoseconds an id of each name's best run and batch; all take turns.

    Calls of one name read the same memory, so each gets another batch: one that was just read is still in the cache.
    """
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(rounds):
        for name, calls in runs.items():
            for place, call in enumerate(calls):
                number = (turn + place * NUM_BATCHES // len(calls)) % NUM_BATCHES
                start = time.perf_counter()
                call(number)
                best[name] = min(best[name], (time.perf_counter() - start) * 1e9 / BATCH)
    return best


def measure_size(ids: Ids, forms: Sequence[Form], rounds: int) -> Best:
    """All forms and the limit, for one number of ids."""
    found: Best = {}
    for kind in KINDS:
        batches = make_queries(ids, kind, NUM_BATCHES)
        check(forms, batches[0])
        probes = line_probes(ids, batches)
        for threads in THREADS:
            torch.set_num_threads(threads)
            runs: dict[str, list[Callable[[int], object]]] = {form.name: [_ask(form, batches)] for form in forms}
            if threads == 1:
                runs[LIMIT] = list(probes)
            found |= {(name, kind, threads): best for name, best in measure(runs, rounds).items()}
    torch.set_num_threads(1)
    return found


def _ask(form: Form, batches: Sequence[Tensor]) -> Callable[[int], object]:
    return lambda number: form.rows_of(batches[number])


def report(ids: Ids, forms: Sequence[Form], best: Best) -> None:
    limits = [best[LIMIT, kind, 1] for kind in KINDS]
    print(f"\n{ids.num / MILLION:,.1f} million ids; limit: {limits[0]:.1f} ns a line for uniform ids, {limits[1]:.1f} for Zipf")
    print(f"{'':<28}{'uniform, ns an id':>22}{'Zipf, ns an id':>22}{'share of':>10}{'build,':>9}{'bytes':>8}")
    print(f"{'form':<28}" + f"{'1 thread':>12}{'2':>10}" * 2 + f"{'limit':>10}{'s':>9}{'an id':>8}")
    for form in forms:
        times = "".join(f"{best[form.name, kind, threads]:>{width}.1f}" for kind in KINDS for threads, width in zip(THREADS, (12, 10), strict=True))
        share = limits[0] / best[form.name, KINDS[0], 1]
        print(f"{form.name:<28}{times}{share:>10.0%}{form.build_s:>9.2f}{form.bytes_per_id:>8.1f}")


def ratios(num: int, forms: Sequence[Form], best: Best) -> dict[str, float]:
    """What the JSON holds, for one number of ids."""
    ours, peer = (best[form.name, KINDS[0], 1] for form in (forms[0], next(form for form in forms if form.name.startswith("TorchRec"))))
    label = f"{num / MILLION:g}m"
    return {f"remap_{label}_vs_torchrec": peer / ours, f"remap_{label}_of_limit": best[LIMIT, KINDS[0], 1] / ours}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of turning raw ids into rows, against TorchRec, torch.searchsorted and a dict.")
    parser.add_argument("--quick", action="store_true", help="1 and 10 million ids, fewer rounds, a dict of 1 million only")
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--ids", type=int, nargs="+", help="numbers of ids to measure instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    rounds = 24 if args.quick else 120
    print(f"batches of {BATCH:,} ids, nine in ten known, {NUM_BATCHES} of them; {rounds} rounds")
    found: dict[str, float] = {}
    for num in args.ids or ([MILLION, 10 * MILLION] if args.quick else [MILLION, 10 * MILLION, 50 * MILLION]):
        ids = make_ids(num)
        forms = make_forms(ids, with_dict=num <= (MILLION if args.quick else MOST_DICT_IDS))
        best = measure_size(ids, forms, rounds)
        report(ids, forms, best)
        found |= ratios(num, forms, best)
        del ids, forms
    print("\n" + "; ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()))
    if args.json:
        args.json.write_text(json.dumps({"ratios": found}, indent=1))


if __name__ == "__main__":
    main()
