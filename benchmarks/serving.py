"""Emberline's servers beside others on the same artifact and requests, in the same run, and each beside a do-nothing model on the same server.

    python benchmarks/serving.py [--quick] [--json PATH] [--table-rows N] [--seconds N] [--threads N] [--only TITLE ...]

26 static tables and 2 ZCH tables of 1,000,000 ids, dim 16, fp32; a row has one id of each, and is answered with its 28 vectors, 1,792 bytes. The
same client asks all over HTTP: KServe v2 with binary tensors of Emberline and Triton, the same bytes of FastAPI, base64 in JSON of LitServe, which
reads nothing else. Answers are compared with the tables' rows before anything is timed. The peers:

- Triton's Python backend around TorchRec's eager modules, and around its int8 modules, traced and scripted; what Triton hands over at once is one
  batch;
- FastAPI (uvicorn, uvloop, httptools) and LitServe (its faster queue) around the eager modules.

For 1, 100 and 1,000 rows a request, on 1, 8 and 32 connections: rows a second, the latency that 50 and 99 of 100 answers keep, and the servers'
processor time for each row; `floor` is the median latency of the do-nothing model. Memory is that of all processes, shared pages counted once, with
1 and 4 workers (instances, processes; the embedded server is one process); 100 rows on 8 connections are measured with 4 workers too, and the better
one counts, on both sides. Client and servers share the machine's processors.

`rows_vs_best_peer_100x8` and `p99_vs_best_peer_100x8` are Emberline's better server against the best peer at 100 rows and 8 connections, above 1
where it is faster. `triton_over_floor_ms` is the median of one row on one connection above the do-nothing model's, the best of rounds that take
turns; `http_1row_8conn_per_s` the embedded server's requests of one row on 8 connections.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._serving_model import Data, write_model
from benchmarks._serving_servers import EMBEDDED, SERVERS, TRITON, Ids, Load, Running, Server, end_on_sigterm, running

ROWS, CONNECTIONS = (1, 100, 1000), (1, 8, 32)
MANY_WORKERS = 4
REQUESTS = {1: 512, 100: 64, 1000: 16}
"""How many different requests there are, by their rows."""
Cell = tuple[int, int]
"""Rows of a request, and connections."""


@dataclass
class Results:
    """What one server did.

    Args:
        loads: by cell.
        floors: the do-nothing model's, by cell.
        memory_mib: by workers.
        over_floor_ms: medians of one row on one connection above the do-nothing model's, of rounds that took turns.
        many: the cell of 100 rows and 8 connections with many workers.
    """

    loads: dict[Cell, Load] = field(default_factory=dict)
    floors: dict[Cell, Load] = field(default_factory=dict)
    memory_mib: dict[int, float] = field(default_factory=dict)
    over_floor_ms: list[float] = field(default_factory=list)
    many: Load | None = None

    def at_100x8(self) -> list[Load]:
        """The cell that the ratios are of, by workers."""
        return [load for load in (self.loads[100, 8], self.many) if load is not None]


def check(found: Running, data: Data, requests: Sequence[Ids]) -> None:
    """The server's answers are the tables' rows."""
    for ids in requests:
        worst = float(np.abs(found.ask(ids) - data.answer(ids)).max())
        assert worst <= found.server.bound, f"{found.server.title}: {worst} from the tables' rows"


def measure(server: Server, models: Path, data: Data, requests: dict[int, list[Ids]], options: argparse.Namespace) -> Results:
    """One server and its floor, both running, asked in turns."""
    results, probe = Results(), requests[1][0]
    with ExitStack() as stack:
        real = stack.enter_context(running(server, models, probe, threads=options.threads))
        check(real, data, [many[0] for many in requests.values()])
        results.memory_mib[1] = real.memory_mib()
        nothing = replace(server, title=f"nothing, {server.title}", start=server.floor, kind="nothing")
        floor = stack.enter_context(running(nothing, models, probe, threads=options.threads))
        for rows in ROWS:
            for connections in CONNECTIONS:
                for one, loads in ((real, results.loads), (floor, results.floors)):
                    one.load(requests[rows], connections, options.seconds / 4)
                    loads[rows, connections] = one.load(requests[rows], connections, options.seconds)
        for _ in range(options.rounds):
            found = [one.load(requests[1], 1, options.seconds / 2).ms(50) for one in (real, floor)]
            results.over_floor_ms.append(found[0] - found[1])
    if server.has_workers and not options.quick:
        with running(server, models, probe, workers=MANY_WORKERS, threads=options.threads) as many:
            check(many, data, requests[100][: 4 * MANY_WORKERS])
            many.load(requests[100], 8, options.seconds)
            results.many = many.load(requests[100], 8, options.seconds)
            results.memory_mib[MANY_WORKERS] = many.memory_mib()
    return results


def report(server: Server, results: Results) -> None:
    print(f"\n{server.title}")
    print(f"{'rows':>6}{'connections':>13}{'rows/s':>12}{'p50, ms':>10}{'p99, ms':>10}{'floor, ms':>11}{'CPU, us/row':>13}")
    for cell, load in results.loads.items():
        floor = results.floors[cell]
        numbers = f"{load.rows_per_s:>12,.0f}{load.ms(50):>10.3f}{load.ms(99):>10.3f}{floor.ms(50):>11.3f}{load.cpu_us_per_row:>13.2f}"
        print(f"{cell[0]:>6,}{cell[1]:>13}{numbers}")
    if results.many is not None:
        print(
            f"   100            8{results.many.rows_per_s:>12,.0f}{results.many.ms(50):>10.3f}{results.many.ms(99):>10.3f}   {MANY_WORKERS} workers"
        )
    memory = ", ".join(f"{mib:,.0f} MiB with {workers} worker{'s' * (workers > 1)}" for workers, mib in results.memory_mib.items())
    print(f"memory: {memory}")
    print(f"one row on one connection: {min(results.over_floor_ms):.3f} ms over the do-nothing model", flush=True)


def ratios(all_results: dict[str, Results]) -> dict[str, float]:
    """By the names that the docstring gives, of what was measured."""
    ours = [load for server in SERVERS if server.ours and server.title in all_results for load in all_results[server.title].at_100x8()]
    peers = [load for server in SERVERS if not server.ours and server.title in all_results for load in all_results[server.title].at_100x8()]
    best = max(ours, key=lambda load: load.rows_per_s)
    found = {
        "rows_vs_best_peer_100x8": best.rows_per_s / max(load.rows_per_s for load in peers),
        "p99_vs_best_peer_100x8": min(load.ms(99) for load in peers) / best.ms(99),
        "http_1row_8conn_per_s": all_results[EMBEDDED].loads[1, 8].requests_per_s,
    }
    if TRITON in all_results:
        found["triton_over_floor_ms"] = min(all_results[TRITON].over_floor_ms)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and memory of servers on the same artifact and requests.")
    parser.add_argument("--quick", action="store_true", help="tables of 50,000 rows, a short time for each, one worker")
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--table-rows", type=int, help="rows of each table; default: 1,000,000")
    parser.add_argument("--seconds", type=float, help="how long each is asked; default: 4")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each process; default: 1, the client takes a core")
    parser.add_argument("--only", action="append", help="a part of a server's title; may be given several times (no ratios then)")
    options = parser.parse_args()
    end_on_sigterm()
    options.rounds = 3 if options.quick else 5
    options.seconds = options.seconds or (0.4 if options.quick else 4.0)
    table_rows = options.table_rows or (50_000 if options.quick else 1_000_000)
    print(f"28 tables of {table_rows:,} x 16, {options.seconds:g} s each, {options.threads} thread{'s' * (options.threads > 1)} in each process")
    all_results: dict[str, Results] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        data, source = Data(write_model(models, table_rows)), np.random.default_rng(1)
        requests = {rows: [data.draw(rows, source) for _ in range(count)] for rows, count in REQUESTS.items()}
        for server in SERVERS:
            if options.only and not any(part in server.title for part in options.only):
                continue
            if server.missing:
                print(f"\n{server.title}\n  not installed: {server.package}")
                continue
            all_results[server.title] = measure(server, models, data, requests, options)
            report(server, all_results[server.title])
    if options.only:
        return
    found = ratios(all_results)
    print("\n" + "; ".join(f"{name} {ratio:,.2f}" for name, ratio in found.items()))
    if options.json:
        options.json.write_text(json.dumps({"ratios": found}, indent=1))


if __name__ == "__main__":
    main()
