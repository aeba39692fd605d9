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
1 and 4 workers (instances, processes); 100 rows on 8 connections are measured with 4 workers too, and the better one counts, on both sides. Client
and servers share the machine's processors. What the figures at the end are is told in `_serving_figures.py`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._serving_figures import CONNECTIONS, MANY_WORKERS, ROWS, Results, figures, report
from benchmarks._serving_gather import engine_vs_gather
from benchmarks._serving_model import NAME, VERSION, Data, write_model
from benchmarks._serving_servers import SERVERS, Ids, Running, Server, end_on_sigterm, running, started

REQUESTS = {1: 512, 100: 64, 1000: 16}
"""How many different requests there are, by their rows."""
_WARM_SHARE = 0.25
"""Each window comes after one of this part of its length that is not counted."""
_START_S = {True: 6.0, False: 20.0}
"""What starting one server and its floor takes, about, of small tables and of large ones."""


def check(found: Running, data: Data, requests: Sequence[Ids]) -> None:
    """The server's answers are the tables' rows."""
    for ids in requests:
        worst = float(np.abs(found.ask(ids) - data.answer(ids)).max())
        assert worst <= found.server.bound, f"{found.server.title}: {worst} from the tables' rows"


class Floors:
    """Do-nothing models, one on each kind of server; one goes on until another is asked for, as servers that follow each other have the same."""

    def __init__(self, models: Path, threads: int) -> None:
        self._models, self._threads = models, threads
        self._open, self._of = ExitStack(), ""
        self._found: Running | None = None

    def start(self, server: Server) -> Running:
        """The do-nothing model of a server, which may still be on its way up."""
        if self._found is None or self._of != server.floor:
            self.close()
            nothing = replace(server, title=f"nothing, {server.floor}", start=server.floor, kind="nothing")
            self._of, self._found = server.floor, self._open.enter_context(started(nothing, self._models, threads=self._threads))
        return self._found

    def close(self) -> None:
        """End the one that goes on."""
        self._open.close()
        self._found = None


def measure(server: Server, models: Path, data: Data, requests: dict[int, list[Ids]], floors: Floors, options: argparse.Namespace) -> Results:
    """One server and its floor, both running, asked in turns."""
    results, probe = Results(), requests[1][0]
    with started(server, models, threads=options.threads) as real:
        floor = floors.start(server)
        real.wait(probe)
        floor.wait(probe)
        check(real, data, [many[0] for many in requests.values()])
        results.memory_mib[1] = real.memory_mib()
        for rows in ROWS:
            for connections in CONNECTIONS:
                for one, loads in ((real, results.loads), (floor, results.floors)):
                    one.load(requests[rows], connections, options.seconds * _WARM_SHARE)
                    loads[rows, connections] = one.load(requests[rows], connections, options.seconds)
        for _ in range(options.rounds):
            found = [one.load(requests[1], 1, options.seconds / 2).ms(50) for one in (real, floor)]
            results.over_floor_ms.append(found[0] - found[1])
    if not options.quick:
        with running(server, models, probe, workers=MANY_WORKERS, threads=options.threads) as many:
            check(many, data, requests[100][: 4 * MANY_WORKERS])
            many.load(requests[100], 8, options.seconds)
            results.many = many.load(requests[100], 8, options.seconds)
            results.memory_mib[MANY_WORKERS] = many.memory_mib()
    return results


def expected_s(servers: Sequence[Server], options: argparse.Namespace) -> float:
    """How long measuring them takes, about."""
    windows = 2 * len(ROWS) * len(CONNECTIONS) * (1 + _WARM_SHARE) + options.rounds + (0 if options.quick else 2)
    starts = 1 if options.quick else 2
    seconds: float = len(servers) * (windows * options.seconds + starts * _START_S[options.table_rows <= 100_000])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and memory of servers on the same artifact and requests.")
    parser.add_argument("--quick", action="store_true", help="tables of 50,000 rows, a short time for each, one worker")
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--table-rows", type=int, help="rows of each table; default: 1,000,000")
    parser.add_argument("--seconds", type=float, help="how long each is asked; default: 4")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each process; default: 1, the client takes a core")
    parser.add_argument("--only", action="append", help="a part of a server's title; may be given several times (no comparison then)")
    options = parser.parse_args()
    end_on_sigterm()
    options.rounds = 3 if options.quick else 5
    options.seconds = options.seconds or (0.4 if options.quick else 4.0)
    options.table_rows = options.table_rows or (50_000 if options.quick else 1_000_000)
    wanted = [server for server in SERVERS if not options.only or any(part in server.title for part in options.only)]
    servers = [server for server in wanted if not server.missing]
    for server in wanted:
        if server.missing:
            print(f"{server.title}: not measured, {server.package} is not installed")
    print(f"28 tables of {options.table_rows:,} x 16, {options.seconds:g} s each, {options.threads} threads in each process")
    print(f"servers: {len(servers)}; minutes that it takes on a quiet machine, about: {expected_s(servers, options) / 60:.1f}", flush=True)
    began, all_results = time.monotonic(), dict[str, Results]()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        models = Path(folder)
        data, source = Data(write_model(models, options.table_rows)), np.random.default_rng(1)
        requests = {rows: [data.draw(rows, source) for _ in range(count)] for rows, count in REQUESTS.items()}
        floors = Floors(models, options.threads)
        stack.callback(floors.close)
        for server in servers:
            all_results[server.title] = measure(server, models, data, requests, floors, options)
            report(server, all_results[server.title])
        floors.close()
        engine_us, gather_us = engine_vs_gather(models / NAME / str(VERSION), data, requests[1000], 2 * options.seconds)
    print(f"\n1,000 rows in process: engine {engine_us:,.0f} us, gather {gather_us:,.0f} us")
    found = figures(all_results) | {"engine_vs_gather": gather_us / engine_us}
    print("; ".join(f"{name} {ratio:,.2f}" for name, ratio in found.items()))
    print(f"took {(time.monotonic() - began) / 60:.1f} minutes")
    if options.json and not options.only:
        options.json.write_text(json.dumps({"ratios": found}, indent=1))


if __name__ == "__main__":
    main()
