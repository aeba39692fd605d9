"""Scripts in processes of their own, forked from one that has imported everything once: imports take longer than most of the scripts.

`start_script` asks for one; the nursery itself is this file, run as a script. It ends when the process that started it does.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from select import POLLIN, poll
from time import monotonic
from typing import Any

_MOST_BYTES = 2**16
"""Of one request."""


@dataclass(frozen=True)
class Script:
    """A script that runs, in a session of its own.

    Args:
        process: its id, and that of its process group.
        output: a descriptor to read from: what it and all that it starts write.
        status: a descriptor to read from: its exit status, as a line, when it ends. Where nobody has it open any more, all is killed.
    """

    process: int
    output: int
    status: int

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return not _readable(self.status, 0)

    def children(self) -> list[int]:
        """The process ids of those that it forked and that run, in their order."""
        return [int(child) for child in Path(f"/proc/{self.process}/task/{self.process}/children").read_text().split()]

    def finish(self, timeout_s: float) -> tuple[int, str]:
        """Its exit status and what was written, when all that holds its output has ended; nothing that it started goes on."""
        deadline, written = monotonic() + timeout_s, bytearray()
        try:
            while (left := deadline - monotonic()) > 0 and _readable(self.output, left):
                chunk = os.read(self.output, _MOST_BYTES)
                if not chunk:
                    return int(_line(self.status)), written.decode(errors="replace")
                written += chunk
            raise TimeoutError(f"no end in {timeout_s} s: {written[-_MOST_BYTES:].decode(errors='replace')}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process, signal.SIGKILL)
            _line(self.status)
            os.close(self.output)
            os.close(self.status)


def start_script(arguments: Sequence[str]) -> Script:
    """Start a Python script.

    Args:
        arguments: its path, and its own. It finds the modules of its folder, and those of tests/train; has one thread for each kernel, and
            gets the environment that this process had when the first script was started.
    """
    output, of_script = os.pipe()
    status, of_watcher = os.pipe()
    request = json.dumps({"arguments": list(arguments), "folder": str(Path.cwd())}).encode()
    assert len(request) < _MOST_BYTES
    socket.send_fds(_nursery(), [request], [of_script, of_watcher])
    os.close(of_script)
    os.close(of_watcher)
    process = _line(status)
    assert process, "the nursery has ended; it wrote why to the standard error of this process"
    return Script(int(process), output, status)


def environment() -> dict[str, str]:
    """The environment of this process, but for a launcher's variables; one thread each, as scripts share the machine."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    return {**kept, "OMP_NUM_THREADS": "1"}


@cache
def _nursery() -> socket.socket:
    """Where requests are sent."""
    own, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(given):
        command = [sys.executable, "-W", "ignore", __file__, str(given.fileno())]
        process = subprocess.Popen(command, env=environment(), pass_fds=[given.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
    atexit.register(_end, own, process)
    return own


def _end(own: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    own.close()
    process.wait()


def _readable(descriptor: int, timeout_s: float) -> bool:
    """Whether there is something to read, or the other side is gone, before so long."""
    waiting = poll()
    waiting.register(descriptor, POLLIN)
    return bool(waiting.poll(timeout_s * 1000))


def _line(descriptor: int) -> bytes:
    """Up to the next end of a line; empty where the other side is gone."""
    found = b""
    while not found.endswith(b"\n") and (one := os.read(descriptor, 1)):
        found += one
    return found


def _serve(requests: socket.socket) -> None:
    """Fork a process for each request, until nobody is left who could ask."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(request: dict[str, Any], output: int, status: int) -> None:
    """Fork the script, and tell how it ends; this process ends with it, and it ends when nobody is left who could be told."""
    child = os.fork()
    if child == 0:
        _run(request, output, status)
    os.close(output)
    waiting = poll()
    waiting.register(os.pidfd_open(child), POLLIN)
    waiting.register(status, 0)  # an error: nobody reads it
    if status in dict(waiting.poll()):
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(BrokenPipeError):
        os.write(status, f"{code}\n".encode())
    os._exit(0)


def _run(request: dict[str, Any], output: int, status: int) -> None:
    """The script, as Python would run it; first it tells its process id."""
    os.setsid()
    os.write(status, f"{os.getpid()}\n".encode())
    os.close(status)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as Python does
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    sys.path[0] = str(Path(__file__).parent / "train")
    import forked_ranks  # type: ignore[import-not-found]  # noqa: F401

    import emberline.export.export  # noqa: F401

    gc.collect()
    gc.freeze()  # what a collection in a fork looks at would be copied
    _serve(requests)


if __name__ == "__main__":
    main()
