"""Milliseconds and memory of the whole embedding work of a model, against plain TorchRec modules with the same tables, in the same run.

    python benchmarks/embedding.py [--quick] [--json PATH] [--threads N]

26 id features (tables of 200,000 x 16, 1 to 3 ids a row, Zipf-distributed), 13 numbers as AutoDis vectors (16 wide, 20 channels), one sequence of
three ids (0 to 50 steps, tables of 200,000 x 16), 2,048 rows: `forward` in eval mode without gradients, `step` = forward, backward and optimiser.
Both sides have the same weights and get new batch objects over the same ids each time; that they answer alike, before and after two steps, is checked
first. By itself a form is trained by torch's dense Adagrad, under DistributedModelParallel (world size 1, gloo) its tables by fused Adagrad.

Calls alternate between the forms. Memory is the peak of the resident set of a process of its own that builds one form and runs it, less what it had
after imports and data. Ratios are above 1 where Emberline is faster: against the better plain form.
"""

import argparse
import json
import logging
import multiprocessing
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._embedding_forms import Form, emberline, plain, set_weights
from benchmarks._embedding_work import DIM, IDS, NUM_ROWS, RAW, STEPS, TABLE_ROWS, make_rows
from emberline.train.sharding import process_group

BUILDERS = {"emberline": emberline, "plain TorchRec": plain}
PLACES = {"unsharded": False, "DMP": True}
FORMS = [(name, place) for place in PLACES for name in BUILDERS]
NUM_BATCHES = 4
TABLES_MB = (len(IDS) + len(STEPS)) * TABLE_ROWS * DIM * 4 / 1e6
Times = dict[tuple[str, str], list[float]]


def build(name: str, place: str) -> Form:
    form = BUILDERS[name](PLACES[place])
    set_weights(form)
    return form


def check(forms: dict[tuple[str, str], Form]) -> None:
    """All forms give the same numbers: each of them fresh; on average after two steps, since Adagrad makes whole steps of rounding near zero."""
    rows = make_rows(100)
    for steps in (0, 2):
        for form in forms.values():
            for _ in range(steps):
                form.step(form.prepare(rows), rows.gradients)
        first, *others = [form.forward(form.prepare(rows)) for form in forms.values()]
        for key, found in zip(list(forms)[1:], others, strict=True):
            differences = [(one - other).abs() for one, other in zip(first, found, strict=True)]
            worst = max(float(difference.mean() if steps else difference.max()) for difference in differences)
            assert worst <= (1e-6 if steps else 1e-5), (key, steps, worst)


def measure(forms: dict[tuple[str, str], Form], rounds: int, num_calls: Callable[[str], int], what: str) -> Times:
    """Seconds of each call, the forms taking turns."""
    rows = [make_rows(seed) for seed in range(NUM_BATCHES)]
    times: Times = {key: [] for key in forms}
    for turn in range(rounds):
        for key, form in forms.items():
            form.model.train(what == "step")
            for call in range(num_calls(key[1])):
                row = rows[(turn + call) % NUM_BATCHES]
                batch = form.prepare(row)
                start = time.perf_counter()
                if what == "step":
                    form.step(batch, row.gradients)
                else:
                    form.forward(batch)
                times[key].append(time.perf_counter() - start)
    return times


def peak_mb(form: tuple[str, str], what: str, threads: int) -> float:
    """Peak of the resident set, less that before the form was built; run in a process of its own."""
    _set_up(threads)
    rows = [make_rows(seed) for seed in range(NUM_BATCHES)]
    with process_group():
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident_mb("VmRSS")
        built = build(*form)
        for call in range(2 * NUM_BATCHES):
            row = rows[call % NUM_BATCHES]
            batch = built.prepare(row)
            built.forward(batch) if what == "forward" else built.step(batch, row.gradients)
        return _resident_mb("VmHWM") - before


def _set_up(threads: int) -> None:
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    logging.getLogger("torch.fx").setLevel(logging.ERROR)


def _resident_mb(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def memory(threads: int) -> dict[tuple[str, str, str], float]:
    """Peaks of all forms, each in a new process."""
    context = multiprocessing.get_context("spawn")
    cases = [(key, what) for key in FORMS for what in ("forward", "step")]
    with context.Pool(1, maxtasksperchild=1) as pool:
        found = pool.starmap(peak_mb, [(key, what, threads) for key, what in cases], chunksize=1)
    return {(*key, what): peak for (key, what), peak in zip(cases, found, strict=True)}


def ratios(forward: Times, step: Times) -> dict[str, float]:
    """The better form of each side, by the best call; training under DMP against the better plain form."""

    def best(times: Times, name: str) -> float:
        return min(min(times[name, place]) for place in PLACES)

    return {
        "forward_vs_torchrec": best(forward, "plain TorchRec") / best(forward, "emberline"),
        "train_vs_torchrec_dmp": best(step, "plain TorchRec") / min(step["emberline", "DMP"]),
    }


def report(forward: Times, step: Times, peaks: dict[tuple[str, str, str], float]) -> None:
    print(f"{'':<28}{'forward, ms':>18}{'step, ms':>20}{'peak memory, MB':>20}")
    print(f"{'form':<28}{'best':>9}{'median':>9}{'best':>11}{'median':>9}{'forward':>11}{'step':>9}")
    for name, place in FORMS:
        key = (name, place)
        numbers = [f"{1000 * of(times[key]):.1f}" for times in (forward, step) for of in (min, statistics.median)]
        memories = [f"{peaks[(*key, what)]:,.0f}" if peaks else "-" for what in ("forward", "step")]
        columns = "".join(f"{text:>{width}}" for text, width in zip([*numbers, *memories], (9, 9, 11, 9, 11, 9), strict=True))
        print(f"{f'{name}, {place}':<28}{columns}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of a model's embedding work, against plain TorchRec modules.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no memory")
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch; default: one for each core")
    args = parser.parse_args()
    _set_up(args.threads)
    rounds = 3 if args.quick else 20
    work = f"{len(IDS)} ids, {len(RAW)} numbers with AutoDis, a sequence of {len(STEPS)} ids, {NUM_ROWS} rows; tables {TABLES_MB:,.0f} MB"
    print(f"{work}; {args.threads} threads; rounds: {3 * rounds} of forward, {rounds} of steps")
    peaks = {} if args.quick else memory(args.threads)
    with process_group():
        forms = {key: build(*key) for key in FORMS}
        check(forms)
        forward = measure(forms, 3 * rounds, lambda place: 4, "forward")
        step = measure(forms, rounds, lambda place: 3 if place == "DMP" else 1, "step")
    report(forward, step, peaks)
    found = ratios(forward, step)
    print("; ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()))
    if args.json:
        args.json.write_text(json.dumps({"ratios": found}, indent=1))


if __name__ == "__main__":
    main()
