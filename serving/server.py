"""The embedded server: HTTP and gRPC over one service, in one event loop."""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, cast

import grpc
import uvicorn
import uvloop
from prometheus_client import start_http_server

from emberline.errors import ConfigError, LaunchError
from emberline.serving.grpc.server import add_service, make_server
from emberline.serving.http.app import build_app
from emberline.serving.live.aside import unless
from emberline.serving.live.metrics import UpdateMetrics
from emberline.serving.live.updates import LiveUpdates
from emberline.serving.metrics import Metrics
from emberline.serving.repository import Repository
from emberline.serving.security.settings import warn_if_open
from emberline.serving.security.tls import Certificates
from emberline.serving.security.tokens import Tokens
from emberline.serving.service import Service
from emberline.serving.settings import ServerSettings
from emberline.serving.sockets import bind_socket, url_of
from emberline.serving.workers.peers import Peers

_log = logging.getLogger(__name__)
_KNOWN_UVICORN = "0.54."
"""The releases whose insides `http.direct` knows; pyproject.toml asks for them."""
_KEEP_ALIVE_S = 75
"""How long an idle HTTP connection stays open: longer than clients keep theirs, so that a request never meets a closing one."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that takes requests: where, and its service."""

    http_url: str
    grpc_url: str
    metrics_url: str
    service: Service


@dataclass(frozen=True)
class _Doors:
    """What callers must show, and what the server shows them."""

    tokens: Tokens | None
    certificates: Certificates | None

    @classmethod
    def of(cls, settings: ServerSettings) -> Self:
        security = settings.security
        tokens = None if security.token_file is None else Tokens(security.token_file)
        return cls(tokens, Certificates(security) if security.uses_tls else None)

    @property
    def ssl_factory(self) -> Callable[..., ssl.SSLContext] | None:
        """As uvicorn takes it."""
        certificates = self.certificates
        return None if certificates is None else lambda *_: certificates.http_context()


async def run_server(
    models_dir: Path | str,
    settings: ServerSettings,
    on_ready: Callable[[Running], None],
    stop: asyncio.Event,
    *,
    peers: Peers | None = None,
    versions: Mapping[str, int] | None = None,
) -> None:
    """Serve until `stop` is set, then finish what is in flight.

    Args:
        models_dir: see `Repository.open`.
        settings: where to listen, and limits.
        on_ready: called once, when both transports take requests; never where `stop` is set before the models are open.
        stop: new connections are refused once it is set; requests in flight have `settings.drain_s`.
        peers: where this is one of several processes that serve the same on the same ports.
        versions: see `Repository.open`.

    Raises:
        ArtifactError: a model cannot be loaded.
        ConfigError: a file of tokens or of TLS is wrong.
        LaunchError: a port is taken.
    """
    doors = _Doors.of(settings)
    if peers is None:
        warn_if_open(settings.host, settings.security)
    metrics = Metrics()
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(bind_socket(settings.host, settings.http_port, "HTTP", shared=peers is not None))
        grpc_server, grpc_port = make_server(
            settings.host, settings.grpc_port, settings.max_request_bytes, doors.certificates, shared=peers is not None
        )
        stack.push_async_callback(grpc_server.stop, 0)
        metrics_url = stack.enter_context(_metrics_port(settings, metrics))
        repository = await unless(stop, partial(Repository.open, models_dir, settings, metrics, versions), "open-models", Repository.close)
        if repository is None:
            return
        stack.push_async_callback(asyncio.to_thread, repository.close)
        http_url = url_of(settings.security.scheme("http"), settings.host, listener.getsockname()[1])
        running = Running(
            http_url=http_url,
            grpc_url=url_of(settings.security.scheme("grpc"), settings.host, grpc_port),
            metrics_url=metrics_url or f"{http_url}/metrics",
            service=Service(repository, settings, metrics, peers),
        )
        stack.push_async_callback(asyncio.to_thread, running.service.observer.close)
        if peers is None and settings.version_poll_s > 0:
            await stack.enter_async_context(_looking(running.service))
        await _serve(running, grpc_server, listener, doors, on_ready, stop)


@contextlib.asynccontextmanager
async def _looking(service: Service) -> AsyncIterator[None]:
    """Have new versions served while open."""
    settings = service.settings
    updates = LiveUpdates(service.repository.models_dir, service, UpdateMetrics(service.metrics.registry), settings.cache)
    task = asyncio.create_task(updates.run(settings.version_poll_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        await service.settle()


async def _serve(
    running: Running,
    grpc_server: grpc.aio.Server,
    listener: socket.socket,
    doors: _Doors,
    on_ready: Callable[[Running], None],
    stop: asyncio.Event,
) -> None:
    service = running.service
    config = uvicorn.Config(
        build_app(service, doors.tokens),
        loop="none",
        http=_connections(service, doors.tokens),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        ssl_context_factory=doors.ssl_factory,
        timeout_graceful_shutdown=max(1, round(service.settings.drain_s)),
    )
    http_server = _HttpServer(config)
    add_service(grpc_server, service, doors.tokens)
    http_task = asyncio.create_task(http_server.serve(sockets=[listener]))
    while not http_server.started and not http_task.done():
        await asyncio.sleep(0.005)
    await grpc_server.start()
    on_ready(running)
    stop_task = asyncio.create_task(stop.wait())
    await asyncio.wait({http_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
    stop_task.cancel()
    service.drain()
    http_server.should_exit = True
    await asyncio.gather(http_task, grpc_server.stop(service.settings.drain_s), service.settle())


def _connections(service: Service, tokens: Tokens | None) -> Literal["httptools"] | type[asyncio.Protocol]:
    """What answers HTTP connections: our own kind, which needs the insides of the uvicorn that it was made for; with another, uvicorn's."""
    if not uvicorn.__version__.startswith(_KNOWN_UVICORN):
        _log.warning("uvicorn is %s, not %sx: all requests go through FastAPI, which costs each some time", uvicorn.__version__, _KNOWN_UVICORN)
        return "httptools"
    from emberline.serving.http.direct import DirectProtocol, Starts
    from emberline.serving.http.plans import QuickAnswers

    quick = QuickAnswers(service)
    return cast("type[asyncio.Protocol]", partial(DirectProtocol, service=service, quick=quick, starts=Starts(), tokens=tokens))


class _HttpServer(uvicorn.Server):
    """Uvicorn without its signal handlers: whoever runs the server decides when it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _metrics_port(settings: ServerSettings, metrics: Metrics) -> Iterator[str]:
    """Serve /metrics on a port of its own while open; gives its URL, empty where no port is asked for."""
    if settings.metrics_port is None:
        yield ""
        return
    try:
        server, thread = start_http_server(settings.metrics_port, settings.host, registry=metrics.registry)
    except OSError as error:
        where = f"{settings.host}:{settings.metrics_port}"
        raise LaunchError(f"cannot listen on {where} for metrics: {error.strerror}; choose another --metrics-port") from None
    try:
        yield url_of("http", settings.host, server.server_port) + "/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class EmbeddedServer:
    """The embedded server in a thread of this process, for demos, notebooks and tests.

        with EmbeddedServer("models") as server:
            Client(server.http_url, model="movielens")

    Args:
        models_dir: see `Repository.open`.
        host: the address to bind.
        http_port: 0 takes a free port.
        grpc_port: 0 takes a free port.
        settings: the other settings; its host and ports are not used.

    Raises:
        ConfigError: the settings ask for several workers.
    """

    def __init__(
        self, models_dir: Path | str, *, host: str = "127.0.0.1", http_port: int = 0, grpc_port: int = 0, settings: ServerSettings | None = None
    ) -> None:
        if settings is not None and settings.workers != 1:
            raise ConfigError(f"EmbeddedServer is one process: workers is {settings.workers}; `emberline serve --workers` starts several")
        self._models_dir = models_dir
        self._settings = replace(settings or ServerSettings(), host=host, http_port=http_port, grpc_port=grpc_port)
        self._thread = threading.Thread(target=self._run, name="emberline-server", daemon=True)
        self._settled = threading.Event()
        self._running: Running | None = None
        self._error: Exception | None = None
        self._stop: Callable[[], object] = lambda: None

    @property
    def http_url(self) -> str:
        """Where HTTP is: `http://host:port`, https with TLS."""
        return self._up().http_url

    @property
    def grpc_url(self) -> str:
        """Where gRPC is: `grpc://host:port`, grpcs with TLS."""
        return self._up().grpc_url

    @property
    def metrics_url(self) -> str:
        """Where Prometheus scrapes."""
        return self._up().metrics_url

    @property
    def service(self) -> Service:
        """The service that answers."""
        return self._up().service

    def __enter__(self) -> Self:
        """Load the models and start; returns when requests are taken.

        Raises:
            ArtifactError: a model cannot be loaded.
            LaunchError: a port is taken.
        """
        self._thread.start()
        self._settled.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Finish what is in flight and stop."""
        self.stop()

    def stop(self) -> None:
        """Finish what is in flight and stop; a second call does nothing."""
        self._stop()
        self._thread.join()

    def _up(self) -> Running:
        assert self._running is not None, "the server is not running: use it in a with statement"
        return self._running

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits in __enter__
            self._error = error
            if self._running is not None:
                _log.error("the server ended", exc_info=error)
        finally:
            self._settled.set()

    async def _serve(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def stop_from_outside() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: there is nothing left to stop
                loop.call_soon_threadsafe(stop.set)

        def on_ready(running: Running) -> None:
            self._running, self._stop = running, stop_from_outside
            self._settled.set()

        await run_server(self._models_dir, self._settings, on_ready, stop)
