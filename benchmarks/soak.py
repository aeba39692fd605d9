"""A server under good, odd and malformed requests at once: no wrong answer, no good request refused, memory flat.

    python benchmarks/soak.py [--quick] [--json PATH] [--backend embedded|triton] [--protocol http|grpc|both] [--seconds N] [--connections N]
    python benchmarks/soak.py --live [--workers N] [--switch-every S] [--reloads N] [--quick] [--json PATH] ...

32 connections, for 60 seconds: each sends good requests of every form (binary tensors, JSON, compressed, plain rows; over gRPC raw and typed
contents, compressed, with an id; no rows, empty bags, bags of 300 ids, ids at both ends of 64 bits), and, one time in four, something malformed, or
half a request after which it hangs up. Good ones must get the sums of the tables' rows; malformed ones must be refused, with a status of 400 to 499
(over gRPC, a code that means the like) by the embedded server. Memory is that of all of the server's
processes; it grew if the last quarter of the time has more than the second, by 5 % and 4 MiB. The command ends with status 1 where anything failed.

With `--live` the embedded server has several workers, and meanwhile a new version comes every 5 seconds, whose answers are all different, with a
delta in between; one is damaged and must be refused; a worker is killed in the middle. Each answer must be, as a whole, that of the version which it
names, with or without its delta, and each version and delta must be answered by. A request whose connection the killed worker took along is asked
again, and counted. Then the server goes over from one version to another 50 times, without other load, and its memory must stay flat.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._serving_model import Data, write_model
from benchmarks._serving_servers import SERVERS, Running, end_on_sigterm, running
from benchmarks._soak_callers import Caller, GrpcCaller, HttpCaller
from benchmarks._soak_grpc import bad_calls, good_calls
from benchmarks._soak_live import Live, live_server, reload_often
from benchmarks._soak_requests import Bad, Good, bad_requests, good_requests
from benchmarks._soak_versions import Versions

TABLE_ROWS, LIVE_TABLE_ROWS = 20_000, 5_000
BAD_SHARE = 0.25
ANSWER_S = 60
PROTOCOLS = ("http", "grpc")
MORE_SHARE, MORE_MIB = 0.05, 4.0
CUT = b"UNAVAILABLE"
"""How gRPC tells of a connection that ended."""

Requests = tuple[list[Good], list[Bad]]
Judge = Callable[[Good, dict[str, str], bytes], bool]
"""Whether an answer, its headers and body, is right."""


@dataclass
class Report:
    """What came of it.

    Args:
        good: right answers, by the kind of the request.
        refused: malformed requests that were refused, by kind and status; 0: the connection was closed.
        failures: whatever should not have been, in words.
        cut: requests whose connection a killed worker took along; each was asked again.
        memory_mib: of the server, as time went on.
        reload_mib: of the server, after each of its reloads.
    """

    good: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    cut: int = 0
    memory_mib: list[float] = field(default_factory=list)
    reload_mib: list[float] = field(default_factory=list)

    @property
    def memory_from_to(self) -> tuple[float, float]:
        """Medians of the second and of the last quarter of the time."""
        return from_to(self.memory_mib)

    @property
    def memory_grew(self) -> bool:
        """Whether it grew by more than what allocators do."""
        return grew(self.memory_mib)


def from_to(memory_mib: Sequence[float]) -> tuple[float, float]:
    """Medians of the second and of the last quarter."""
    quarter = max(1, len(memory_mib) // 4)
    return statistics.median(memory_mib[quarter : 2 * quarter] or memory_mib), statistics.median(memory_mib[-quarter:])


def grew(memory_mib: Sequence[float]) -> bool:
    """Whether the last quarter has more than the second, by more than what allocators do."""
    start, end = from_to(memory_mib)
    return end > start * (1 + MORE_SHARE) + MORE_MIB


async def send_good(caller: Caller, request: Good, report: Report, judge: Judge, excuses: Callable[[], bool]) -> None:
    """One good request, which must get its right answer; it is asked again where its connection was cut and that may be."""
    while True:
        try:
            async with asyncio.timeout(ANSWER_S):
                status, headers, body = await caller.ask(request)
        except (OSError, EOFError, TimeoutError) as error:
            await caller.close()
            if excuses():
                report.cut += 1
                continue
            report.failures.append(f"{request.name}: {type(error).__name__} {error}")
            return
        if not (body.startswith(CUT) and status == 503 and excuses()):
            break
        report.cut += 1
        await caller.close()
    if status != 200:
        report.failures.append(f"{request.name}: status {status}, {body[:200]!r}")
    elif not judge(request, headers, body):
        report.failures.append(f"{request.name}: a wrong answer")
    else:
        report.good[request.name] += 1


async def send_bad(caller: Caller, request: Bad, highest: int, report: Report, excuses: Callable[[], bool]) -> None:
    """One malformed request, after which the caller's connection is not used again: what it left there is no good request's business."""
    status = 0
    try:
        async with asyncio.timeout(ANSWER_S):
            if request.hangs_up:
                await caller.leave(request)
            else:
                status, _, body = await caller.ask(request)
                if body.startswith(CUT) and status == 503 and excuses():
                    status = 0
                elif not 400 <= status <= highest:
                    report.failures.append(f"{request.name}: status {status}, {body[:200]!r}")
                elif b"Traceback" in body or b".py" in body:
                    report.failures.append(f"{request.name}: tells of the inside, {body[:200]!r}")
    except TimeoutError:
        report.failures.append(f"{request.name}: no answer")
    except (OSError, EOFError):
        pass  # closing the connection is an answer too
    await caller.close()
    report.refused[request.name, status] += 1


def is_right(request: Good, headers: dict[str, str], body: bytes) -> bool:
    """Whether it is the answer of the only version."""
    return request.is_right(headers, body)


async def soak(
    server: Running, requests: Mapping[str, Requests], *, connections: int, seconds: float, live: Live | None = None, switch_s: float = 5
) -> Report:
    """All connections at once, and a look at the memory ten times a quarter; with `live`, until all has happened to the server that is to."""
    report, end = Report(), asyncio.get_running_loop().time() + seconds
    highest = 499 if server.server.start == "embedded" else 599
    judge: Judge = is_right if live is None else live.judge
    excuses: Callable[[], bool] = (lambda: False) if live is None else live.excuses
    changing = None if live is None else asyncio.create_task(live.change(seconds, switch_s))

    def goes_on() -> bool:
        return asyncio.get_running_loop().time() < end if changing is None else not changing.done()

    async def call(seed: int) -> None:
        protocol = list(requests)[seed % len(requests)]
        caller: Caller = GrpcCaller(server.grpc_port) if protocol == "grpc" else HttpCaller(server.port)
        choose, (good, bad) = random.Random(seed), requests[protocol]
        try:
            while goes_on():
                if choose.random() < BAD_SHARE:
                    await send_bad(caller, choose.choice(bad), highest, report, excuses)
                else:
                    await send_good(caller, choose.choice(good), report, judge, excuses)
        finally:
            await caller.close()

    async def look() -> None:
        while goes_on():
            report.memory_mib.append(await asyncio.to_thread(server.memory_mib))
            await asyncio.sleep(seconds / 40)

    await asyncio.gather(look(), *[call(seed) for seed in range(connections)])
    if live is not None and changing is not None:
        await changing
        report.failures += live.failures
    return report


def run(backend: str, protocols: Sequence[str], *, connections: int, seconds: float) -> Report:
    """Start the server and soak it over these protocols at once, each by its share of the connections."""
    server = next(server for server in SERVERS if server.ours and server.start == backend)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        data = Data(write_model(models, TABLE_ROWS))
        requests = all_requests(data, backend, protocols)
        with running(server, models, data.draw(1, np.random.default_rng(2))) as found:
            return asyncio.run(soak(found, requests, connections=connections, seconds=seconds))


def all_requests(data: Data, backend: str, protocols: Sequence[str]) -> dict[str, Requests]:
    """Good and malformed ones, by protocol."""
    found: dict[str, Requests] = {
        "http": (good_requests(data, backend), bad_requests(data)),
        "grpc": (good_calls(data), bad_calls(data, backend)),
    }
    return {protocol: found[protocol] for protocol in protocols}


def run_live(
    protocols: Sequence[str],
    *,
    connections: int,
    seconds: float,
    switch_s: float,
    workers: int,
    reloads: int,
    table_rows: int = LIVE_TABLE_ROWS,
    kill_after: float = 0.5,
) -> tuple[Report, Live]:
    """Soak a server of several workers while versions and deltas come and a worker is killed; then reload it often."""
    with tempfile.TemporaryDirectory() as folder:
        models, drafts = Path(folder, "models"), Path(folder, "drafts")
        versions = Versions(models, drafts, table_rows, 1 + max(4, int(seconds / switch_s)))
        requests = all_requests(versions.data, "embedded", protocols)
        with live_server(models, workers) as server:
            server.wait(versions.data.draw(1, np.random.default_rng(2)))
            live = Live(versions, server.pid, server.port, kill_after=kill_after)
            report = asyncio.run(soak(server, requests, connections=connections, seconds=seconds, live=live, switch_s=switch_s))
            served = sorted(version for version in versions.answers if versions.folder(version).is_dir())[-2:]
            report.reload_mib, failures = reload_often(server, versions, served, reloads)
            report.failures += failures
    return report, live


def show_live(report: Report, live: Live) -> None:
    switched = sorted({int(key.partition("+")[0]) for key in live.seen if key != "wrong"})
    deltas = sum(key.endswith("+1") for key in live.seen)
    print(f"{'answers by':<28}{len(switched)} versions ({switched[0]} to {switched[-1]}), {deltas} of them before and after a delta")
    print(f"{'worker killed':<28}{report.cut} requests lost their connection, and were answered when asked again")
    if report.reload_mib:
        start, end = from_to(report.reload_mib)
        told = "it grew" if grew(report.reload_mib) else "flat"
        print(f"{f'memory over {len(report.reload_mib)} reloads':<28}{start:,.1f} MiB in the second quarter, {end:,.1f} in the last: {told}")


def show(report: Report) -> None:
    by_form = Counter[str]()
    for name, count in report.good.items():
        by_form[name.partition(",")[0]] += count
    print(f"{'right answers':<28}" + ", ".join(f"{count:,} {form}" for form, count in by_form.items()))
    by_status = Counter[int]()
    for (_, status), count in report.refused.items():
        by_status[status] += count
    print(f"{'malformed':<28}" + ", ".join(f"{count:,} {f'status {status}' if status else 'hung up'}" for status, count in sorted(by_status.items())))
    start, end = report.memory_from_to
    print(f"{'memory':<28}{start:,.1f} MiB in the second quarter, {end:,.1f} in the last: {'it grew' if report.memory_grew else 'flat'}")
    print(f"{'failures':<28}{len(report.failures)}")
    for text, count in Counter(report.failures).most_common(10):
        print(f"  {count:,} times: {text}")


def main() -> int:
    parser = argparse.ArgumentParser(description="A server under good, odd and malformed requests at once.")
    parser.add_argument("--quick", action="store_true", help="5 seconds; with --live a version a second, and 10 reloads")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--backend", choices=("embedded", "triton"), default="embedded")
    parser.add_argument("--protocol", choices=(*PROTOCOLS, "both"), default="both")
    parser.add_argument("--seconds", type=float, help="default: 60")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--live", action="store_true", help="versions and deltas come, a worker is killed, then it is reloaded often (embedded)")
    parser.add_argument("--workers", type=int, default=3, help="with --live; default: %(default)s")
    parser.add_argument("--switch-every", type=float, help="with --live: seconds from one version to the next; default: 5")
    parser.add_argument("--reloads", type=int, help="with --live, at the end; default: 50")
    options = parser.parse_args()
    if options.live and (options.backend != "embedded" or options.workers < 2):
        parser.error("--live is for the embedded server, with at least 2 workers")
    end_on_sigterm()
    seconds = options.seconds or (5.0 if options.quick else 60.0)
    told = f"live, {options.workers} workers" if options.live else options.backend
    print(f"{told}, {options.protocol}, {options.connections} connections, {seconds:g} s")
    protocols = PROTOCOLS if options.protocol == "both" else [options.protocol]
    live = None
    if options.live:
        switch_s = options.switch_every or (1.0 if options.quick else 5.0)
        reloads = (10 if options.quick else 50) if options.reloads is None else options.reloads
        report, live = run_live(
            protocols, connections=options.connections, seconds=seconds, switch_s=switch_s, workers=options.workers, reloads=reloads
        )
    else:
        report = run(options.backend, protocols, connections=options.connections, seconds=seconds)
    if live is not None:
        show_live(report, live)
    show(report)
    if options.json:
        options.json.write_text(json.dumps(figures(report, live), indent=1))
    return int(bool(report.failures) or report.memory_grew or (bool(report.reload_mib) and grew(report.reload_mib)))


def figures(report: Report, live: Live | None) -> dict[str, object]:
    """What `--json` writes."""
    start, end = report.memory_from_to
    ratios = {"soak_memory_flat": start / end}
    found: dict[str, object] = {"ratios": ratios, "failures": len(report.failures)}
    if live is not None:
        if report.reload_mib:
            start, end = from_to(report.reload_mib)
            ratios["reload_memory_flat"] = start / end
        found |= {"answers": dict(live.seen), "cut": report.cut, "events": live.events, "reload_mib": [round(mib, 1) for mib in report.reload_mib]}
    return found


if __name__ == "__main__":
    sys.exit(main())
