"""Start a real Triton Inference Server over a models folder, wait until it answers, and leave nothing behind when it stops."""

import http.client
import itertools
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from emberline.errors import LaunchError
from emberline.serving.triton.install import TritonInstall, find_triton
from emberline.serving.triton.process import GroupProcess
from emberline.serving.triton.repository import write_repository
from emberline.serving.triton.settings import DEFAULTS, TritonSettings
from emberline.storage import Place

SHM = Path("/dev/shm")
SHM_BYTES_PER_INSTANCE = 16 << 20
"""What each instance takes in shared memory at its start; it grows with the largest batch."""
_LOG_TAIL_LINES = 12
_COUNTER = itertools.count()


class TritonServer:
    """A Triton server over every model of a folder, for the length of a `with` block.

    Args:
        models_dir: holds `<name>/<version>/` artifacts, here or behind a URL; of each the version that is served.
        host: the address that HTTP, gRPC and metrics bind.
        http_port: 0 takes a free port.
        grpc_port: 0 takes a free port.
        metrics_port: 0 takes a free port.
        settings: how the models are served.
        ready_timeout_s: how long the models may take to load.
        stop_timeout_s: how long requests in flight may take when it stops.
        show_log: let Triton write its log where this process writes, instead of keeping it for the error message.
    """

    def __init__(
        self,
        models_dir: Place,
        *,
        host: str = "127.0.0.1",
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        settings: TritonSettings = DEFAULTS,
        ready_timeout_s: float = 120.0,
        stop_timeout_s: float = 10.0,
        show_log: bool = False,
    ) -> None:
        self.host = host
        self.http_port, self.grpc_port, self.metrics_port = _free_ports(host, (http_port, grpc_port, metrics_port))
        self.models: Sequence[str] = ()
        self.asked_to_end = threading.Event()
        self._models_dir = models_dir
        self._settings = settings
        self._ready_timeout_s = ready_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._show_log = show_log
        self._process: GroupProcess | None = None
        self._folder: Path | None = None
        self._shm_prefix = f"emberline_{os.getpid()}_{next(_COUNTER)}"

    def __enter__(self) -> Self:
        """Start it, and wait until every model is ready, or `asked_to_end` is set.

        Raises:
            MissingDependencyError: Triton is not installed.
            ArtifactError: there is no model to serve.
            LaunchError: it ended or was not ready in time; the message holds the errors of its log.
        """
        try:
            self._start()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop it."""
        self.stop()

    def poll(self) -> int | None:
        """The exit code where it has ended by itself; None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """End the server and all of its processes, and remove its folder and shared memory."""
        if self._process is not None:
            self._process.stop(self._stop_timeout_s)
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        for path in SHM.glob(f"{self._shm_prefix}*"):
            path.unlink(missing_ok=True)

    def log_tail(self) -> str:
        """The errors in its log, and its last lines, for an error message."""
        path = None if self._folder is None else self._folder / "log.txt"
        if path is None or not path.is_file():
            return "Its log is above."
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip() and line[0] not in "|+"]
        errors = [line for line in lines[:-_LOG_TAIL_LINES] if re.match(r"E\d{4} ", line)]
        return "\n".join(["Its log:", *errors[-_LOG_TAIL_LINES:], "...", *lines[-_LOG_TAIL_LINES:]])

    def _start(self) -> None:
        install = find_triton()
        self._folder = Path(tempfile.mkdtemp(prefix="emberline-triton-"))
        self.models = write_repository(self._models_dir, self._folder / "repository", self._settings)
        check_shared_memory(SHM, SHM_BYTES_PER_INSTANCE * self._settings.instances * len(self.models))
        command = self._command(install, self._folder)
        self._process = GroupProcess(command, install.environment(os.environ), None if self._show_log else self._folder / "log.txt")

    def _command(self, install: TritonInstall, folder: Path) -> list[str]:
        command = [str(install.program), f"--model-repository={folder / 'repository'}", "--disable-auto-complete-config", "--exit-timeout-secs=5"]
        backends = install.assemble_backends(folder / "backends")
        if backends is not None:
            command.append(f"--backend-directory={backends}")
        for name, port in (("http", self.http_port), ("grpc", self.grpc_port), ("metrics", self.metrics_port)):
            command += [f"--{name}-address={self.host}", f"--{name}-port={port}"]
        command.append(f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}")
        command.append(f"--backend-config=python,shm-default-byte-size={SHM_BYTES_PER_INSTANCE}")
        return command

    def _wait_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + self._ready_timeout_s
        while not self._is_ready() and not self.asked_to_end.is_set():
            code = self._process.poll()
            if code is not None:
                raise LaunchError(f"Triton ended with exit code {code} before it was ready. {self.log_tail()}")
            if time.monotonic() > end:
                raise LaunchError(f"Triton was not ready after {self._ready_timeout_s:g} s. {self.log_tail()}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        with suppress(OSError, http.client.HTTPException), closing(http.client.HTTPConnection(host, self.http_port, timeout=5)) as connection:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        return False


def serve_triton(
    models_dir: Place,
    *,
    host: str = "127.0.0.1",
    http_port: int = 8000,
    grpc_port: int = 8001,
    metrics_port: int = 8002,
    settings: TritonSettings = DEFAULTS,
) -> int:
    """Serve until the process is asked to end (SIGTERM or SIGINT): requests in flight are finished first. Call it from the main thread.

    Returns:
        0 after such an end.

    Raises:
        LaunchError: Triton did not start, or ended by itself.
        MissingDependencyError: Triton is not installed.
        ArtifactError: there is no model to serve.
    """
    server = TritonServer(
        models_dir,
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        settings=settings,
        show_log=True,
    )
    with _on_signals(server.asked_to_end.set), server:
        print(f"serving {', '.join(server.models)} on http {host}:{server.http_port}, grpc {host}:{server.grpc_port}", flush=True)
        while not server.asked_to_end.wait(0.2):
            if (code := server.poll()) is not None:
                raise LaunchError(f"Triton ended by itself with exit code {code}; its log is above")
    return 0


def check_shared_memory(folder: Path, need: int) -> None:
    """Triton's processes talk through shared memory: make sure that what they take at the start is there.

    Args:
        folder: where shared memory is mounted.
        need: bytes.

    Raises:
        LaunchError: there is less.
    """
    free = shutil.disk_usage(folder).free
    if free < need:
        raise LaunchError(
            f"{folder} has {free >> 20} MiB free, but the model instances need {need >> 20} MiB of shared memory to start:"
            f" make it larger (docker run --shm-size={2 * need >> 20}m), or serve fewer models or instances"
        )


@contextmanager
def _on_signals(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` when the process gets SIGTERM or SIGINT; the handlers that were there come back afterwards."""

    def handle(number: int, frame: FrameType | None) -> None:
        action()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_ports(host: str, wanted: Sequence[int]) -> list[int]:
    """The ports wanted; for each 0, a free one of its own."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as first, socket.socket(family) as second, socket.socket(family) as third:
        ports = []
        for port, holder in zip(wanted, (first, second, third), strict=True):
            if port == 0:
                holder.bind((host, 0))
                port = holder.getsockname()[1]
            ports.append(port)
    return ports
