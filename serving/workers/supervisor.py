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
from emberline.errors import EmberlineError, LaunchError, UnavailableError
from emberline.serving.live.identity import Identity
from emberline.serving.settings import ServerSettings
from emberline.serving.sockets import bind_socket
from emberline.serving.tables import PRIVATE
from emberline.serving.workers.channel import Channel
from emberline.serving.workers.scrapes import metrics_port
from emberline.serving.workers.setup import Setup
from emberline.storage import Place

_log = logging.getLogger(__name__)
_ASK_S = 5.0
"""How long workers have to answer what is asked of all of them; loading a model takes as long as it takes."""
_PAUSE_S, _MOST_PAUSE_S = 0.2, 10.0
_GRACE_S = 10.0


@dataclass(frozen=True)
class Up:
    """A server of several workers that takes requests: where, and the models that it serves."""

    http_port: int
    grpc_port: int
    metrics_port: int | None
    models: Sequence[dict[str, Any]]


class _Worker:
    """One process, while it is there."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.channel: Channel | None = None
        self.models: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()

    @property
    def came_up(self) -> bool:
        """Whether it ever served."""
        return self.models.done() and not self.models.cancelled() and self.models.exception() is None

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return self.came_up and self.process.returncode is None


class Supervisor:
    """The workers of one server.

    Args:
        models: see `Repository.open`.
        settings: with at least two workers.
    """

    def __init__(self, models: Place, settings: ServerSettings) -> None:
        self._models, self._settings = models, settings
        self._workers: dict[int, _Worker] = {}
        self._versions: dict[str, int] | None = None
        """What is served, by model: a worker that is started again serves the same."""
        self._changing = asyncio.Lock()
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
        async with contextlib.AsyncExitStack() as stack:
            ports = [stack.enter_context(_reserve(settings.host, port, what)) for port, what in self._ports()]
            http_port, grpc_port = (port.getsockname()[1] for port in ports)
            threads = settings.num_threads or max(1, usable_cpus() // settings.workers)
            self._settings = replace(settings, http_port=http_port, grpc_port=grpc_port, metrics_port=None, num_threads=threads)
            scraped = await stack.enter_async_context(
                metrics_port(settings.host, settings.metrics_port, self._scrape, shared_tables=settings.tables != PRIVATE)
            )
            stack.push_async_callback(self._end)
            started = await asyncio.gather(*[self._start(number) for number in range(settings.workers)])
            found = await self._all_up(started, stop)
            if found is None:
                return
            self._versions = {model["name"]: model["version"] for model in found}
            for number in range(settings.workers):
                stack.callback(asyncio.create_task(self._keep(number, stop)).cancel)
            on_ready(Up(http_port, grpc_port, scraped, found))
            await stop.wait()

    def _ports(self) -> list[tuple[int, str]]:
        return [(self._settings.http_port, "HTTP"), (self._settings.grpc_port, "gRPC")]

    async def _all_up(self, workers: Sequence[_Worker], stop: asyncio.Event) -> list[dict[str, Any]] | None:
        """The models that they serve; None where it is to stop before they do."""
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
        return (await ready)[0]

    async def _start(self, number: int) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "emberline.serving.workers.worker", str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])
        worker = self._workers[number] = _Worker(process)

        async def answer(what: str, value: Any) -> Any:
            return await self._answer(worker, what, value)

        worker.channel = await Channel.open(ours, answer)
        watching = asyncio.create_task(self._watch(worker))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return worker

    async def _watch(self, worker: _Worker) -> None:
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
            worker = self._workers[number]
            status = await worker.process.wait()
            if stop.is_set():
                return
            pause = _PAUSE_S if worker.came_up else min(2 * pause, _MOST_PAUSE_S)
            _log.error("worker %d ended with status %d; it is started again", number, status)
            while self._workers[number] is worker:
                await asyncio.sleep(pause)
                try:
                    await self._start(number)
                except OSError as error:  # no process or no file can be had now
                    pause = min(2 * pause, _MOST_PAUSE_S)
                    _log.error("worker %d cannot be started: %s; it is tried again", number, error)
            with contextlib.suppress(EmberlineError):
                await self._workers[number].models

    async def _end(self) -> None:
        """Let all workers finish; end those that take too long."""
        left = [worker.process for worker in self._workers.values() if worker.process.returncode is None]
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

    async def _answer(self, worker: _Worker, what: str, value: Any) -> Any:
        """Answer what a worker asks."""
        if what == "setup":
            return Setup(self._models, self._settings, self._versions).to_dict()
        if what in ("up", "down"):
            if worker.models.done():
                return None
            if what == "up":
                worker.models.set_result(value)
            else:
                worker.models.set_exception(getattr(errors, value["kind"])(value["message"]))
            return None
        if what == "all":
            answers = await self._ask_all(value["what"], value["value"])
            found = [answer for answer in answers if not isinstance(answer, BaseException)]
            return {"answers": found, "missing": self._settings.workers - len(found)}
        async with self._changing:
            await (self._load(value) if what == "load" else self._unload(value))
        return None

    async def _ask_all(self, what: str, value: Any, timeout_s: float | None = _ASK_S) -> list[Any]:
        """The answer of each worker that is up, or its error."""

        async def ask(channel: Channel) -> Any:
            async with asyncio.timeout(timeout_s):
                return await channel.ask(what, value)

        channels = [worker.channel for worker in self._workers.values() if worker.is_up and worker.channel is not None]
        return await asyncio.gather(*[ask(channel) for channel in channels], return_exceptions=True)

    async def _load(self, name: str) -> None:
        """All open the model, and then all serve it."""
        self._require_all()
        answers = await self._ask_all("open", name, None)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        opened = [Identity(*answer) for answer in answers if not isinstance(answer, BaseException)]
        if failed or len(set(opened)) != 1 or len(opened) != self._settings.workers:
            await self._ask_all("drop", name)
            raise failed[0] if failed else UnavailableError(f"the workers opened different versions of {name!r}; ask again")
        assert self._versions is not None
        self._versions[name] = opened[0].version
        await self._ask_all("serve", name, None)

    async def _unload(self, name: str) -> None:
        self._require_all()
        assert self._versions is not None
        self._versions.pop(name, None)  # first: a worker that ends meanwhile is started again without it
        answers = await self._ask_all("unload", name, None)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _require_all(self) -> None:
        if not all(worker.is_up for worker in self._workers.values()):
            raise UnavailableError("a worker is being started again; ask later")

    async def _scrape(self) -> list[str]:
        return [answer for answer in await self._ask_all("metrics", None) if isinstance(answer, str)]


def _reserve(host: str, port: int, protocol: str) -> socket.socket:
    """A socket that keeps a port for the workers, and takes no connections: nobody else has it."""
    with bind_socket(host, port, protocol) as free:
        number = free.getsockname()[1]
    return bind_socket(host, number, protocol, shared=True)
