"""What happens to the server while `soak.py --live` asks it.

Versions and deltas come, one is damaged, a worker is killed; then it is reloaded often.
"""

import asyncio
import http.client
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil  # type: ignore[import-untyped]

from benchmarks._serving_model import NAME, VERSION
from benchmarks._serving_servers import SERVERS, Running
from benchmarks._soak_requests import Good
from benchmarks._soak_versions import Versions
from emberline.serving.triton.process import GroupProcess

_WORKER = "emberline.serving.workers.worker"
_MOST_WAIT_S = 60.0
"""A version or delta that is not answered by after so long is a failure."""
_LOOK_S = 0.25
_AFTER_S = 0.5
CUT_S = 5.0
"""For so long after a worker was killed a request may find its connection cut."""


@dataclass
class Live:
    """What was done to the server, and what came of it.

    Args:
        versions: what is published.
        pid: of the server's first process.
        port: for HTTP.
        seen: right answers by version and number of deltas.
        failures: whatever should not have been, in words.
        events: what was done, with the seconds from the start.
        killed_s: when a worker was killed, by `time.monotonic`; None before.
        kill_after: the worker is killed after this share of the time; 1 or more: as the last thing, and nothing waits for another to take its place.
    """

    versions: Versions
    pid: int
    port: int
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    killed_s: float | None = None
    kill_after: float = 0.5
    start_s: float = field(default_factory=time.monotonic)

    def judge(self, request: Good, headers: dict[str, str], body: bytes) -> bool:
        """Whether it is the right answer of one version."""
        found = self.versions.judge(request, headers, body)
        self.seen[found or "wrong"] += 1
        return bool(found)

    def excuses(self) -> bool:
        """Whether a connection may be cut now: a worker was just killed."""
        return self.killed_s is not None and time.monotonic() < self.killed_s + CUT_S

    async def change(self, seconds: float, switch_s: float) -> None:
        """Publish versions, each with a delta in half the time to the next, but for the third one, which is damaged; kill a worker.

        It goes on until the end, and at least to the damaged version.
        """
        loop = asyncio.get_running_loop()
        end, kill = loop.time() + seconds, loop.time() + seconds * self.kill_after
        damaged, last = VERSION + 3, VERSION + self.versions.count - 1
        for version in range(VERSION + 1, last + 1):
            began = loop.time()
            if version == damaged:
                await self._publish_damaged(version)
            else:
                await self._publish(version)
                await asyncio.sleep(max(0.0, switch_s / 2 - (loop.time() - began)))
                await asyncio.to_thread(self.versions.publish_delta, version)
                self._tell(f"delta 1 of version {version}")
                await self._wait(lambda key=f"{version}+1": self.seen[key] > 0, f"delta 1 of version {version} is answered by")  # type: ignore[misc]
            if self.killed_s is None and kill < loop.time() and self.kill_after < 1:
                await self._kill()
            await asyncio.sleep(max(0.0, switch_s - (loop.time() - began)))
            if loop.time() > end and version >= damaged:
                break
        if self.killed_s is None:
            await self._kill()
            await asyncio.sleep(_AFTER_S)
        await asyncio.sleep(max(0.0, end - loop.time()))

    async def _publish(self, version: int) -> None:
        await asyncio.to_thread(self.versions.publish, version)
        self._tell(f"version {version}")
        await self._wait(lambda: self.seen[f"{version}+0"] > 0, f"version {version} is answered by")

    async def _publish_damaged(self, version: int) -> None:
        before = await asyncio.to_thread(failed_updates, self.port)

        def is_refused() -> bool:
            return failed_updates(self.port) > before

        await asyncio.to_thread(self.versions.damage, version)
        await asyncio.to_thread(self.versions.publish, version)
        self._tell(f"version {version}, damaged")
        await self._wait(is_refused, f"version {version}, which is damaged, is refused")

    async def _kill(self) -> None:
        victim = worker_pids(self.pid)[0]
        count = len(worker_pids(self.pid))
        self.killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        self._tell("a worker is killed")

        def is_back() -> bool:
            found = worker_pids(self.pid)
            return len(found) == count and victim not in found

        await self._wait(is_back, "the killed worker is started again")

    async def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _MOST_WAIT_S
        while not await asyncio.to_thread(is_so):
            if time.monotonic() > end:
                self.failures.append(f"not within {_MOST_WAIT_S:g} s: {what}")
                return
            await asyncio.sleep(_LOOK_S / 5)

    def _tell(self, what: str) -> None:
        self.events.append((round(time.monotonic() - self.start_s, 1), what))
        print(f"  {self.events[-1][0]:>5.1f} s: {what}", flush=True)


def worker_pids(pid: int) -> list[int]:
    """The workers of a server, the oldest first."""
    found = []
    for child in psutil.Process(pid).children():
        try:
            if _WORKER in child.cmdline():
                found.append((child.create_time(), child.pid))
        except psutil.NoSuchProcess:
            continue
    return [child for _, child in sorted(found)]


def failed_updates(port: int) -> float:
    """How many attempts to serve what the models folder says have failed."""
    return metric(port, "emberline_model_update_failures_total")


def metric(port: int, name: str) -> float:
    """A metric's sum over all its labels; 0 where there is none."""
    lines = _get(port, "/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


class Reloaded(Protocol):
    """A server that is reloaded: `Running`, for one."""

    port: int

    def memory_mib(self) -> float:
        """Of all its processes."""


def reload_often(server: Reloaded, versions: Versions, served: Sequence[int], count: int) -> tuple[list[float], list[str]]:
    """Have the server go over from one version to another and back, so often; MiB after each time, and what went wrong."""
    memory, failures, end = [], [], time.monotonic() + _MOST_WAIT_S
    while metric(server.port, "emberline_workers_missing") and time.monotonic() < end:
        time.sleep(_LOOK_S)
    for number in range(count):
        version = served[number % len(served)]
        versions.pin(version)
        _post(server.port, f"/v2/repository/models/{NAME}/load")
        told = json.loads(_get(server.port, f"/v2/models/{NAME}"))["versions"]
        if told != [str(version)]:
            failures.append(f"reload {number}: versions {told}, not {version}")
        memory.append(server.memory_mib())
    return memory, failures


@contextmanager
def live_server(models: Path, workers: int) -> Iterator[Running]:
    """`emberline serve` with several workers, which looks often; none of its processes is left afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        port, grpc_port = free.getsockname()[1], other.getsockname()[1]
    command = ["serve", str(models), "--http-port", str(port), "--grpc-port", str(grpc_port), "--threads", "1", "--workers", str(workers)]
    polls = ["--version-poll", str(_LOOK_S), "--delta-poll", str(_LOOK_S)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.txt")
        process = GroupProcess([sys.executable, "-m", "emberline", *command, *polls], os.environ, log)
        try:
            yield Running(next(server for server in SERVERS if server.start == "embedded"), port, grpc_port, process, log)
        finally:
            process.stop(20)


def _get(port: int, path: str) -> str:
    return _ask(port, "GET", path)


def _post(port: int, path: str) -> str:
    return _ask(port, "POST", path)


def _ask(port: int, method: str, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_MOST_WAIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{method} {path}: status {answer.status}, {text[:300]}")
    return text
