"""Start a real Triton Inference Server over a models folder, wait until it answers, and leave nothing behind when it stops."""

import itertools
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from emberline.errors import EmberlineError, LaunchError
from emberline.serving.triton.control import TritonControl
from emberline.serving.triton.install import TritonInstall, find_triton
from emberline.serving.triton.ports import Ports
from emberline.serving.triton.process import GroupProcess
from emberline.serving.triton.repository import write_repository
from emberline.serving.triton.scratch import SHM, Owner, remove_leftovers, remove_shared_memory
from emberline.serving.triton.settings import DEFAULTS, TritonSettings
from emberline.serving.triton.updates import TritonUpdates, listed
from emberline.storage import Place

SHM_BYTES_PER_INSTANCE = 16 << 20
"""What each instance takes in shared memory at its start; it grows with the largest batch."""
_LOG_TAIL_LINES = 12
_COUNTER = itertools.count()
_ATTEMPTS = 3
"""Starts with free ports, where another process takes that of metrics before Triton binds it."""
_POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
_EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")


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
        self._ports = Ports(host, (http_port, grpc_port, metrics_port))
        self.models: Mapping[str, int] = {}
        self.asked_to_end = threading.Event()
        self._models_dir = models_dir
        self._settings = settings
        self._ready_timeout_s = ready_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._show_log = show_log
        self._process: GroupProcess | None = None
        self._folder: Path | None = None
        self._owner = Owner.of(os.getpid())
        self._shm_prefix = f"{self._owner.shm_prefix}{next(_COUNTER)}_"

    def __enter__(self) -> Self:
        """Start it, and wait until every model is ready, or `asked_to_end` is set.

        Raises:
            MissingDependencyError: Triton is not installed.
            ArtifactError: there is no model to serve.
            LaunchError: it ended or was not ready in time; the message holds the errors of its log.
        """
        remove_leftovers()
        for attempt in range(_ATTEMPTS):
            try:
                self._start()
                self._wait_ready()
                return self
            except BaseException as error:
                self.stop()
                if attempt + 1 == _ATTEMPTS or not (isinstance(error, LaunchError) and self._ports.lost_metrics()):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop it."""
        self.stop()

    @property
    def http_port(self) -> int:
        """The port of KServe v2 over HTTP; 0 where a free one is wanted and it never started."""
        return self._ports.chosen[0]

    @property
    def grpc_port(self) -> int:
        """The port of KServe v2 over gRPC; 0 where a free one is wanted and it never started."""
        return self._ports.chosen[1]

    @property
    def metrics_port(self) -> int:
        """The port of /metrics over HTTP; 0 where a free one is wanted and it never started."""
        return self._ports.chosen[2]

    def poll(self) -> int | None:
        """The exit code where it has ended by itself; None while it runs."""
        return None if self._process is None else self._process.poll()

    def refresh(self, *, again: Collection[str] = (), unload_gone: bool = True) -> Mapping[str, int]:
        """Look into the models' folder again: load what is new, go over to the versions that are served now, and unload what is gone.

        A version answers until the one that takes its place is ready. Nothing changes for models that stay as they are.

        Args:
            again: models that are loaded again though their versions' numbers are the same.
            unload_gone: whether models that are gone from the folder are unloaded.

        Returns:
            The models, and the version of each.

        Raises:
            ArtifactError: a model in the folder is damaged, or there is none: everything stays as it was.
            LaunchError: Triton did not load one, and goes on with what it has of that model.
            OSError: Triton cannot be reached.
        """
        assert self._folder is not None, "it runs"
        before, repository = self.models, self._folder / "repository"
        self.models = write_repository(self._models_dir, repository, self._settings)
        gone = before.keys() - self.models.keys()
        if not unload_gone:
            self.models, gone = {**before, **self.models}, set()
        for name in gone:
            shutil.rmtree(repository / name)
        for name in again:
            with suppress(FileNotFoundError):
                os.utime(repository / name / "config.pbtxt")  # Triton takes a file for a new one by the time of its last change
        control = self._control(self._ready_timeout_s)
        if self._settings.model_control:
            states = control.states()
            new = [name for name, version in self.models.items() if name in again or states.get((name, str(version)), ("", ""))[0] != "READY"]
            problems = [control.unload(name) for name in gone] + [control.load(name) for name in new]
            if found := [problem for problem in problems if problem]:
                raise LaunchError(f"Triton did not take what is new: {'; '.join(found)}")
        self._wait_changed(control, gone)
        return self.models

    def stop(self) -> None:
        """End the server and all of its processes, and remove its folder and shared memory."""
        if self._process is not None:
            self._process.stop(self._stop_timeout_s)
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self._ports.let_go()
        remove_shared_memory(self._shm_prefix)

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
        self._folder = self._owner.make_folder()
        self.models = write_repository(self._models_dir, self._folder / "repository", self._settings)
        check_shared_memory(SHM, SHM_BYTES_PER_INSTANCE * self._settings.instances * len(self.models))
        sharing = self._ports.take()
        command = self._command(install, self._folder) + sharing
        self._process = GroupProcess(command, install.environment(os.environ), None if self._show_log else self._folder / "log.txt")

    def _command(self, install: TritonInstall, folder: Path) -> list[str]:
        command = [str(install.program), f"--model-repository={folder / 'repository'}", "--disable-auto-complete-config", "--exit-timeout-secs=5"]
        command += _EXPLICIT if self._settings.model_control else _POLL
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
        with suppress(OSError):
            return self._control(5).is_ready()
        return False

    def _wait_changed(self, control: TritonControl, gone: Collection[str]) -> None:
        """Wait until Triton serves `models`, and none of those that are gone."""
        end = time.monotonic() + self._ready_timeout_s
        while not self.asked_to_end.is_set():
            states = control.states()
            served = {place for place, (state, _) in states.items() if state == "READY"}
            missing = [(name, str(version)) for name, version in self.models.items() if (name, str(version)) not in served]
            for place in missing:
                state, reason = states.get(place, ("", ""))
                if state == "UNAVAILABLE" and reason not in ("", "unloaded"):
                    raise LaunchError(f"Triton did not load {place[0]}, version {place[1]}: {reason}")
            if not missing and not any(name in gone for name, _ in served):
                return
            if time.monotonic() > end:
                raise LaunchError(f"Triton did not take what is new within {self._ready_timeout_s:g} s. {self.log_tail()}")
            time.sleep(0.1)

    def _control(self, timeout_s: float) -> TritonControl:
        return TritonControl("127.0.0.1" if self.host == "0.0.0.0" else self.host, self.http_port, timeout_s)


def serve_triton(
    models_dir: Place,
    *,
    host: str = "127.0.0.1",
    http_port: int = 8000,
    grpc_port: int = 8001,
    metrics_port: int = 8002,
    settings: TritonSettings = DEFAULTS,
    version_poll_s: float = 0.0,
) -> int:
    """Serve until the process is asked to end (SIGTERM or SIGINT): requests in flight are finished first. Call it from the main thread.

    SIGHUP has it look into the folder again, as `TritonUpdates.refresh` does; what is wrong there is printed, and the rest goes on. Every
    `version_poll_s` seconds, unless that is 0, it looks by itself, as `TritonUpdates` does.

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
    look_again = threading.Event()
    actions = {signal.SIGTERM: server.asked_to_end.set, signal.SIGINT: server.asked_to_end.set, signal.SIGHUP: look_again.set}
    with _on_signals(actions), server:
        if not server.asked_to_end.is_set():
            print(f"serving {listed(server.models)} on http {host}:{server.http_port}, grpc {host}:{server.grpc_port}", flush=True)
        updates = TritonUpdates(models_dir, server, partial(print, flush=True))
        next_look = time.monotonic() + version_poll_s
        while not server.asked_to_end.wait(0.2):
            if (code := server.poll()) is not None:
                raise LaunchError(f"Triton ended by itself with exit code {code}; its log is above")
            if look_again.is_set():
                look_again.clear()
                try:
                    print(f"serving {listed(updates.refresh())}", flush=True)
                except (EmberlineError, OSError) as error:
                    print(f"not all that is new is served: {error}", flush=True)
            if version_poll_s and time.monotonic() >= next_look:
                updates.look()
                next_look = time.monotonic() + version_poll_s
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
def _on_signals(actions: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Call the action of each signal that the process gets; the handlers that were there come back afterwards."""

    def handle(number: int, frame: FrameType | None) -> None:
        actions[signal.Signals(number)]()

    before = {number: signal.signal(number, handle) for number in actions}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
