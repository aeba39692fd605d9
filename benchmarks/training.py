"""Rows a second of a whole training job, against a plain TorchRec script on the same model, in the same run; and what checkpoints cost it.

    python benchmarks/training.py [--quick] [--json PATH] [--table-rows N] [--rounds N] [--threads N]

DLRM on data in the shape of Criteo's: 26 tables of 1,000,000 x 16, 13 numbers, batches of 4,096 rows on each process, row-wise Adagrad for the
tables, Adam for the rest. `emberline` is the whole job: it reads parquet, hashes, shuffles, checks and logs. The plain script has its batches in
memory; unsharded, its tables have dense gradients, under DMP they are in fbgemm's fused kernels.

Each form runs in processes of its own, the forms taking turns. Rows a second are those of all processes, by the best window of steps. Ratios are
above 1 where Emberline is faster; that of DMP is the lesser of those of one and two processes. `async_stall_share` is how long an asynchronous save
keeps training waiting, as a share of a synchronous one.
"""

import argparse
import json
import logging
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._training_work import BATCH_ROWS, NUM_TABLES, emberline, plain, stalls, write_config, write_data

OURS, WHOLE, DMP = "emberline", "plain TorchRec, unsharded", "plain TorchRec, DMP"
FORMS = [(OURS, 1), (WHOLE, 1), (DMP, 1), (OURS, 2), (DMP, 2)]
WINDOW, WHOLE_WINDOW = 5, 1
Speeds = dict[tuple[str, int], list[float]]


def run(work: Callable[..., Any], arguments: tuple[Any, ...], ranks: int, threads: int) -> Any:
    """What rank 0 of new processes answers."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        own = [context.Process(target=_rank, args=(rank, ranks, folder, threads, answers, work, arguments)) for rank in range(ranks)]
        for process in own:
            process.start()
        for process in own:
            process.join()
        assert [process.exitcode for process in own] == [0] * ranks
        return answers.get()


def _rank(rank: int, ranks: int, folder: str, threads: int, answers: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo", store=FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    answer = work(*arguments)
    dist.barrier()
    if rank == 0:
        answers.put(answer)
        answers.close()
        answers.join_thread()
    dist.destroy_process_group()


def measure(folder: Path, table_rows: int, rounds: int, windows: int, total_threads: int) -> Speeds:
    """Rows a second of each window, the forms taking turns."""
    config = write_config(folder, table_rows, (windows + 1) * WINDOW, WINDOW)
    speeds: Speeds = {form: [] for form in FORMS}
    for _ in range(rounds):
        for name, ranks in FORMS:
            threads = max(1, total_threads // ranks)
            if name == OURS:
                output = folder / "run"
                found = run(emberline, (config, output), ranks, threads)
                shutil.rmtree(output)
            else:
                found = run(plain, (table_rows, name == DMP, windows, WINDOW if name == DMP else WHOLE_WINDOW), ranks, threads)
            speeds[name, ranks] += found
            print(f"  {name}, {ranks} process{'es' * (ranks > 1)}: {max(found):,.0f} rows/s", flush=True)
    return speeds


def ratios(speeds: Speeds, stall: dict[str, Any]) -> dict[str, float]:
    best = {form: max(found) for form, found in speeds.items()}
    return {
        "train_vs_torchrec_unsharded": best[OURS, 1] / best[WHOLE, 1],
        "train_vs_torchrec_dmp": min(best[OURS, ranks] / best[DMP, ranks] for ranks in (1, 2)),
        "async_stall_share": min(stall["async"]) / min(stall["sync"]),
    }


def report(speeds: Speeds, stall: dict[str, Any]) -> None:
    print(f"{'':<28}{'processes':>10}{'best, rows/s':>16}{'median':>12}")
    for (name, ranks), found in speeds.items():
        print(f"{name:<28}{ranks:>10}{max(found):>16,.0f}{statistics.median(found):>12,.0f}")
    size, sync, asynchronous = stall["bytes"] / 1e6, min(stall["sync"]), min(stall["async"])
    print(
        f"checkpoint of {size:,.0f} MB: training waits {sync:.2f} s for a synchronous save ({size / sync:,.0f} MB/s), {asynchronous:.2f} s otherwise"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows a second of training, against a plain TorchRec script.")
    parser.add_argument("--quick", action="store_true", help="tables of 100,000 rows, one round")
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--table-rows", type=int, help="rows of each table")
    parser.add_argument("--rounds", type=int, help="how often each form runs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch, in all processes; default: one for each core")
    args = parser.parse_args()
    table_rows = args.table_rows or (100_000 if args.quick else 1_000_000)
    rounds, windows, saves = args.rounds or (1 if args.quick else 3), 3 if args.quick else 5, 1 if args.quick else 2
    print(f"{NUM_TABLES} tables of {table_rows:,} rows, batches of {BATCH_ROWS:,} rows, {rounds} rounds, {args.threads} threads")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "train.parquet", 40 * BATCH_ROWS)
        speeds = measure(folder, table_rows, rounds, windows, args.threads)
        stall = run(stalls, (folder / "pipeline.pbtxt", folder / "saves", saves), 1, args.threads)
    report(speeds, stall)
    found = ratios(speeds, stall)
    print("; ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()))
    if args.json:
        args.json.write_text(json.dumps({"ratios": found}, indent=1))


if __name__ == "__main__":
    main()
