"""Starts the processes that serve, and keeps them going until it is told to stop."""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emberline import errors
from emberline.cpus import usable_cpus
from emberline.errors import EmberlineError, LaunchError
from emberline.serving.live.metrics import UpdateMetrics
from emberline.serving.live.updates import LiveUpdates
from emberline.serving.security.settings import warn_if_open
from emberline.serving.settings import ServerSettings
from emberline.serving.sockets import bind_socket
from emberline.serving.tables import PRIVATE
from emberline.serving.workers.channel import Channel
from emberline.serving.workers.scrapes import metrics_port
from emberline.serving.workers.setup import Setup
from emberline.serving.workers.shared_models import SharedModels
from emberline.serving.workers.team import Team, Worker
from emberline.storage import Place

_log = logging.getLogger(__name__)
_PAUSE_S, _MOST_PAUSE_S = 0.2, 10.0
_GRACE_S = 10.0


@dataclass(frozen=True)
class Up:
    """A server of several workers that takes requests: where, and the models that it serves."""

    http_port: int
    grpc_port: int
    metrics_port: int | None
    models: Sequence[dict[str, Any]]


class Supervisor:
    """The workers of one server.

    Args:
        models: see `Repository.open`.
        settings: with at least two workers.
    """

    def __init__(self, models: Place, settings: ServerSettings) -> None:
        self._models, self._settings = models, settings
        self._team = Team(settings.workers)
        self._shared = SharedModels(self._team)
        self._started = False
        """Whether all of them have served: what they serve is known."""
        self._watching: set[asyncio.Task[None]] = set()

    async def run(self, on_ready: Callable[[Up], None], stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let the workers finish what is in flight.

        Args:
            on_ready: called once, when all workers take requests.
            stop: see above.

        Raises:
            EmberlineError: a worker cannot start: its own error.
        """
        settings = self._settings
        warn_if_open(settings.host, settings.security)
        async with contextlib.AsyncExitStack() as stack:
            ports = [stack.enter_context(_reserve(settings.host, port, what)) for port, what in self._ports()]
            http_port, grpc_port = (port.getsockname()[1] for port in ports)
            threads = settings.num_threads or max(1, usable_cpus() // settings.workers)
            self._settings = replace(settings, http_port=http_port, grpc_port=grpc_port, metrics_port=None, num_threads=threads)
            scraped = await stack.enter_async_context(
                metrics_port(settings.host, settings.metrics_port, self._team.metrics, shared_tables=settings.tables != PRIVATE)
            )
            stack.push_async_callback(self._end)
            started = await asyncio.gather(*[self._start(number) for number in range(settings.workers)])
            found = await self._all_up(started, stop)
            if found is None:
                return
            await self._shared.start(found)
            self._started = True
            for number in range(settings.workers):
                stack.callback(asyncio.create_task(self._keep(number, stop)).cancel)
            if settings.version_poll_s > 0:
                updates = LiveUpdates(self._models, self._shared, UpdateMetrics(self._team.registry), settings.cache)
                stack.callback(asyncio.create_task(updates.run(settings.version_poll_s)).cancel)
            on_ready(Up(http_port, grpc_port, scraped, found[0]))
            await stop.wait()

    def _ports(self) -> list[tuple[int, str]]:
        return [(self._settings.http_port, "HTTP"), (self._settings.grpc_port, "gRPC")]

    async def _all_up(self, workers: Sequence[Worker], stop: asyncio.Event) -> list[list[dict[str, Any]]] | None:
        """The models that each serves; None where it is to stop before they do."""
        stopping = asyncio.create_task(stop.wait())
        ready: asyncio.Future[list[list[dict[str, Any]]]] = asyncio.gather(*[worker.models for worker in workers])
        waiting: set[asyncio.Future[Any]] = {ready, stopping}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ready.done():
            ready.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ready
            return None
        return await ready

    async def _start(self, number: int) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "emberline.serving.workers.worker", str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])
        worker = self._team.workers[number] = Worker(process)

        async def answer(what: str, value: Any) -> Any:
            return await self._answer(worker, what, value)

        worker.channel = await Channel.open(ours, answer)
        watching = asyncio.create_task(self._watch(worker))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return worker

    async def _watch(self, worker: Worker) -> None:
        status = await worker.process.wait()
        if worker.channel is not None:
            await worker.channel.closed()
            worker.channel.close()
        if not worker.models.done():
            worker.models.set_exception(LaunchError(f"a worker ended with status {status} before it was ready; the log says why"))

    async def _keep(self, number: int, stop: asyncio.Event) -> None:
        """Start a worker again whenever it has ended."""
        pause = _PAUSE_S
        while True:
            worker = self._team.workers[number]
            status = await worker.process.wait()
            if stop.is_set():
                return
            pause = _PAUSE_S if worker.came_up else min(2 * pause, _MOST_PAUSE_S)
            _log.error("worker %d ended with status %d; it is started again", number, status)
            while self._team.workers[number] is worker:
                await asyncio.sleep(pause)
                try:
                    await self._start(number)
                except OSError as error:  # no process or no file can be had now
                    pause = min(2 * pause, _MOST_PAUSE_S)
                    _log.error("worker %d cannot be started: %s; it is tried again", number, error)
            with contextlib.suppress(EmberlineError):
                await self._team.workers[number].models

    async def _end(self) -> None:
        """Let all workers finish; end those that take too long."""
        left = [worker.process for worker in self._team.workers.values() if worker.process.returncode is None]
        for process in left:
            process.terminate()
        if left:
            _, late = await asyncio.wait([asyncio.create_task(process.wait()) for process in left], timeout=self._settings.drain_s + _GRACE_S)
            if late:
                _log.error("%d workers did not end in time", len(late))
                for process in left:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                await asyncio.wait(late)

    async def _answer(self, worker: Worker, what: str, value: Any) -> Any:
        """Answer what a worker asks."""
        if what == "setup":
            async with self._shared.changing:
                versions = self._shared.versions if self._started else None
                return Setup(self._models, self._settings, versions).to_dict()
        if what in ("up", "down"):
            if worker.models.done():
                return None
            if what == "up":
                worker.models.set_result(value)  # from now on it hears of each change; what was told before, it is told here
                return dict(self._shared.reasons)
            worker.models.set_exception(getattr(errors, value["kind"])(value["message"]))
            return None
        if what == "all":
            return await self._ask_all(value["what"], value["value"])
        await (self._shared.load(value) if what == "load" else self._shared.unload(value))
        return None

    async def _ask_all(self, what: str, value: Any) -> dict[str, Any]:
        """What the workers answer that do, and how many do not."""
        if what == "metrics":
            return {"answers": list(await self._team.metrics()), "missing": 0}
        answers = await self._team.ask_all(what, value)
        found = [answer for answer in answers if not isinstance(answer, BaseException)]
        return {"answers": found, "missing": self._team.size - len(found)}


def _reserve(host: str, port: int, protocol: str) -> socket.socket:
    """A socket that keeps a port for the workers, and takes no connections: nobody else has it."""
    with bind_socket(host, port, protocol) as free:
        number = free.getsockname()[1]
    return bind_socket(host, number, protocol, shared=True)
