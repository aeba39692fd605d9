"""A server under good, odd and malformed requests at once: no wrong answer, no good request refused, memory flat.

    python benchmarks/soak.py [--quick] [--json PATH] [--backend embedded|triton] [--protocol http|grpc|both] [--seconds N] [--connections N]

32 connections, for 60 seconds: each sends good requests of every form (binary tensors, JSON, compressed, plain rows; over gRPC raw and typed
contents, compressed, with an id; no rows, empty bags, bags of 300 ids, ids at both ends of 64 bits), and, one time in four, something malformed, or
half a request after which it hangs up. Good ones must get the sums of the tables' rows; malformed ones must be refused, with a status of 400 to 499
(over gRPC, a code that means the like) by the embedded server. Memory is that of all of the server's
processes; it grew if the last quarter of the time has more than the second, by 5 % and 4 MiB. The command ends with status 1 where anything failed.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._serving_model import Data, write_model
from benchmarks._serving_servers import SERVERS, Running, end_on_sigterm, running
from benchmarks._soak_callers import Caller, GrpcCaller, HttpCaller
from benchmarks._soak_grpc import bad_calls, good_calls
from benchmarks._soak_requests import Bad, Good, bad_requests, good_requests

TABLE_ROWS = 20_000
BAD_SHARE = 0.25
ANSWER_S = 60
PROTOCOLS = ("http", "grpc")
MORE_SHARE, MORE_MIB = 0.05, 4.0

Requests = tuple[list[Good], list[Bad]]


@dataclass
class Report:
    """What came of it.

    Args:
        good: right answers, by the kind of the request.
        refused: malformed requests that were refused, by kind and status; 0: the connection was closed.
        failures: whatever should not have been, in words.
        memory_mib: of the server, as time went on.
    """

    good: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)

    @property
    def memory_from_to(self) -> tuple[float, float]:
        """Medians of the second and of the last quarter of the time."""
        quarter = max(1, len(self.memory_mib) // 4)
        return statistics.median(self.memory_mib[quarter : 2 * quarter] or self.memory_mib), statistics.median(self.memory_mib[-quarter:])

    @property
    def memory_grew(self) -> bool:
        """Whether it grew by more than what allocators do."""
        start, end = self.memory_from_to
        return end > start * (1 + MORE_SHARE) + MORE_MIB


async def send_good(caller: Caller, request: Good, report: Report) -> None:
    """One good request, which must get its right answer."""
    try:
        async with asyncio.timeout(ANSWER_S):
            status, headers, body = await caller.ask(request)
    except (OSError, EOFError, TimeoutError) as error:
        await caller.close()
        report.failures.append(f"{request.name}: {type(error).__name__} {error}")
        return
    if status != 200:
        report.failures.append(f"{request.name}: status {status}, {body[:200]!r}")
    elif not request.is_right(headers, body):
        report.failures.append(f"{request.name}: a wrong answer")
    else:
        report.good[request.name] += 1


async def send_bad(caller: Caller, request: Bad, highest: int, report: Report) -> None:
    """One malformed request, after which the caller's connection is not used again: what it left there is no good request's business."""
    status = 0
    try:
        async with asyncio.timeout(ANSWER_S):
            if request.hangs_up:
                await caller.leave(request)
            else:
                status, _, body = await caller.ask(request)
                if not 400 <= status <= highest:
                    report.failures.append(f"{request.name}: status {status}, {body[:200]!r}")
                elif b"Traceback" in body or b".py" in body:
                    report.failures.append(f"{request.name}: tells of the inside, {body[:200]!r}")
    except TimeoutError:
        report.failures.append(f"{request.name}: no answer")
    except (OSError, EOFError):
        pass  # closing the connection is an answer too
    await caller.close()
    report.refused[request.name, status] += 1


async def soak(server: Running, requests: Mapping[str, Requests], *, connections: int, seconds: float) -> Report:
    """All connections at once, and a look at the memory ten times a quarter."""
    report, end = Report(), asyncio.get_running_loop().time() + seconds
    highest = 499 if server.server.start == "embedded" else 599

    async def call(seed: int) -> None:
        protocol = list(requests)[seed % len(requests)]
        caller: Caller = GrpcCaller(server.grpc_port) if protocol == "grpc" else HttpCaller(server.port)
        choose, (good, bad) = random.Random(seed), requests[protocol]
        try:
            while asyncio.get_running_loop().time() < end:
                if choose.random() < BAD_SHARE:
                    await send_bad(caller, choose.choice(bad), highest, report)
                else:
                    await send_good(caller, choose.choice(good), report)
        finally:
            await caller.close()

    async def look() -> None:
        while asyncio.get_running_loop().time() < end:
            report.memory_mib.append(await asyncio.to_thread(server.memory_mib))
            await asyncio.sleep(seconds / 40)

    await asyncio.gather(look(), *[call(seed) for seed in range(connections)])
    return report


def run(backend: str, protocols: Sequence[str], *, connections: int, seconds: float) -> Report:
    """Start the server and soak it over these protocols at once, each by its share of the connections."""
    server = next(server for server in SERVERS if server.ours and server.start == backend)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        data = Data(write_model(models, TABLE_ROWS))
        all_requests: dict[str, Requests] = {
            "http": (good_requests(data, backend), bad_requests(data)),
            "grpc": (good_calls(data), bad_calls(data, backend)),
        }
        requests = {protocol: all_requests[protocol] for protocol in protocols}
        with running(server, models, data.draw(1, np.random.default_rng(2))) as found:
            return asyncio.run(soak(found, requests, connections=connections, seconds=seconds))


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
    parser.add_argument("--quick", action="store_true", help="5 seconds")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--backend", choices=("embedded", "triton"), default="embedded")
    parser.add_argument("--protocol", choices=(*PROTOCOLS, "both"), default="both")
    parser.add_argument("--seconds", type=float, help="default: 60")
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    end_on_sigterm()
    seconds = options.seconds or (5.0 if options.quick else 60.0)
    print(f"{options.backend}, {options.protocol}, {options.connections} connections, {seconds:g} s")
    protocols = PROTOCOLS if options.protocol == "both" else [options.protocol]
    report = run(options.backend, protocols, connections=options.connections, seconds=seconds)
    show(report)
    if options.json:
        start, end = report.memory_from_to
        options.json.write_text(json.dumps({"ratios": {"soak_memory_flat": start / end}, "failures": len(report.failures)}, indent=1))
    return int(bool(report.failures) or report.memory_grew)


if __name__ == "__main__":
    sys.exit(main())
