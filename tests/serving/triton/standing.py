"""The processes of a running Triton's models, made to stand still."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emberline.serving.triton.launcher import TritonServer


def stubs(server: TritonServer) -> list[int]:
    """The processes of the server's models."""
    assert server._process is not None
    tasks = Path(f"/proc/{server._process.pid}/task")
    return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]


@contextmanager
def held(server: TritonServer) -> Iterator[None]:
    """Models stand still meanwhile."""
    found = stubs(server)
    assert found
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in found:
            os.kill(pid, signal.SIGCONT)
