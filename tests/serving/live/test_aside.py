"""Work that nobody waits for once it is not wanted any more."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from emberline.serving.live.aside import aside, end_process, unless
from tests.serving.conftest import make_toy


def test_what_was_done_and_what_went_wrong_comes_back() -> None:
    def fail() -> int:
        raise ValueError("no")

    async def run() -> None:
        here = threading.get_ident()
        assert await aside(threading.get_ident, "x") != here
        with pytest.raises(ValueError, match="no"):
            await aside(fail, "x")
        assert await unless(asyncio.Event(), lambda: 7, "x", print) == 7
        with pytest.raises(ValueError, match="no"):
            await unless(asyncio.Event(), fail, "x", print)

    asyncio.run(run())


@pytest.mark.parametrize("ends_early", [False, True])
def test_what_nobody_waits_for_is_discarded_and_holds_up_nothing(ends_early: bool) -> None:
    go, discarded = threading.Event(), list[int]()

    def work() -> int:
        assert go.wait(60)
        return 7

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, stop.set)
        assert await unless(stop, work, "held", discarded.append) is None
        if not ends_early:
            go.set()
            while not discarded:
                await asyncio.sleep(0.005)

    asyncio.run(run())  # ends though the work goes on
    go.set()
    end = time.monotonic() + 60
    while not discarded:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert discarded == [7]


def test_a_process_without_such_work_ends_as_usual() -> None:
    assert end_process(3) == 3


def test_a_server_that_is_told_to_stop_while_it_opens_models_stops_at_once(tmp_path: Path) -> None:
    """Opening is held up by a `served.json` that nobody writes to."""
    make_toy().write(tmp_path)
    fifo = tmp_path / "toy" / "served.json"
    os.mkfifo(fifo)
    command = [sys.executable, "-c", "import sys; from emberline.cli import main; sys.exit(main())", "serve", str(tmp_path)]
    with subprocess.Popen([*command, "--http-port=0", "--grpc-port=0"], stdout=subprocess.PIPE, text=True) as process:
        writer = None
        while writer is None:
            assert process.poll() is None
            try:
                writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # as soon as somebody reads
            except OSError:
                time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        os.close(writer)
        assert (process.returncode, out) == (0, "Stopped.\n")
