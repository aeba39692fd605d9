"""When requests start: at their moment whatever the answers do, or each after the answer before."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

from emberline.serving.loadtest.alarm import Alarm
from emberline.serving.loadtest.senders import Sender
from emberline.serving.loadtest.tally import Tally

_IN_A_ROW = 8
"""So many late requests are begun before answers that have come are looked at."""


async def open_loop(sender: Sender, tally: Tally, dues_s: Iterable[float], *, duration_s: float, timeout_s: float) -> None:
    """Begin each request when it is due; its latency counts from then, so that what waits behind a slow answer is seen.

    Args:
        sender: asks.
        tally: counts.
        dues_s: seconds after the start, ascending.
        duration_s: how long requests come.
        timeout_s: until a request is given up, from when it was due.
    """
    tasks: set[asyncio.Task[None]] = set()
    start_s = time.monotonic()
    tally.begin(start_s)

    async def ask(number: int, due_s: float) -> None:
        delay_s = time.monotonic() - start_s - due_s
        tally.ask(due_s, delay_s)
        kind, version = await sender.ask(number, max(timeout_s - delay_s, 1e-3))
        tally.end(due_s, time.monotonic() - start_s - due_s, kind, version)

    try:
        with Alarm() as alarm:
            late = 0
            for number, due_s in enumerate(dues_s):
                if start_s + due_s > time.monotonic():
                    await alarm.wait_until(start_s + due_s)
                    late = 0
                else:
                    late += 1
                    if late % _IN_A_ROW == 0:
                        await asyncio.sleep(0)
                task = asyncio.create_task(ask(number, due_s))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await alarm.wait_until(start_s + duration_s)
        while tasks:
            await asyncio.gather(*tasks)
    finally:
        await _end(tasks)
        tally.finish(min(duration_s, time.monotonic() - start_s))


async def closed_loop(sender: Sender, tally: Tally, *, callers: int, duration_s: float, timeout_s: float) -> None:
    """So many callers, each of which asks again as soon as it is answered: what the server can do at most.

    Args:
        sender: asks.
        tally: counts.
        callers: how many requests are under way at any time.
        duration_s: requests begin for so long.
        timeout_s: until a request is given up.
    """
    start_s = time.monotonic()
    tally.begin(start_s)

    async def call(number: int) -> None:
        while (began_s := time.monotonic() - start_s) < duration_s:
            tally.ask(began_s, 0.0)
            kind, version = await sender.ask(number, timeout_s)
            tally.end(began_s, time.monotonic() - start_s - began_s, kind, version)
            number += callers
            await asyncio.sleep(0)  # a sender that need not wait must not keep the others from their turn

    tasks = {asyncio.create_task(call(number)) for number in range(callers)}
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)
        tally.finish(min(duration_s, time.monotonic() - start_s))


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    for task in left:
        with suppress(asyncio.CancelledError):
            await task
