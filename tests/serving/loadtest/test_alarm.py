import asyncio
import time
from pathlib import Path

import pytest

from emberline.serving.loadtest.alarm import Alarm


async def moments(alarm: Alarm) -> None:
    start_s = time.monotonic()
    for wait_s in (0.02, 0.0005, -1.0, 0.01):
        until_s = time.monotonic() + wait_s
        await alarm.wait_until(until_s)
        assert time.monotonic() >= until_s
    assert time.monotonic() - start_s >= 0.03


def test_it_never_rings_too_early() -> None:
    async def run() -> None:
        with Alarm() as alarm:
            await moments(alarm)
            number = alarm._file
            assert "timerfd" in str(Path(f"/proc/self/fd/{number}").readlink())
        assert not asyncio.get_running_loop().remove_reader(number)

    asyncio.run(run())


def test_without_a_timer_of_the_kernel_the_loops_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLibrary:
        def __init__(self, name: None) -> None:
            assert name is None

    monkeypatch.setattr("emberline.serving.loadtest.alarm.ctypes.CDLL", NoLibrary)

    async def run() -> None:
        with Alarm() as alarm:
            await moments(alarm)

    asyncio.run(run())


def test_a_wait_that_was_cancelled_does_not_ring_the_next_one() -> None:
    async def run() -> None:
        with Alarm() as alarm:
            waiting = asyncio.create_task(alarm.wait_until(time.monotonic() + 0.02))
            await asyncio.sleep(0)
            waiting.cancel()
            until_s = time.monotonic() + 0.1
            await alarm.wait_until(until_s)
            assert time.monotonic() >= until_s

    asyncio.run(run())
