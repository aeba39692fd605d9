"""A load test from beginning to end."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from emberline.serving.loadtest.arrivals import arrivals
from emberline.serving.loadtest.loops import closed_loop, open_loop
from emberline.serving.loadtest.senders import GrpcSender, HttpSender, Prepared, Sender
from emberline.serving.loadtest.tally import Tally
from emberline.serving.security.access import NO_ACCESS, Access

CALLERS, HTTP_CONNECTIONS, GRPC_CONNECTIONS = 8, 256, 8
"""How many connections there are unless that is given: at `max`, and at most at a rate."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What load to make.

    Args:
        url: of the server.
        rates: requests a second, one step each; None: as many as are answered.
        duration_s: of each step.
        warm_up_s: before the first one, at its rate; it is not counted.
        pattern: when requests are due: see `arrivals`.
        connections: None for the usual number.
        timeout_s: until a request is given up, from when it was due.
        seed: of chance.
        access: what the server is shown, and whom to trust.
    """

    url: str
    rates: tuple[float | None, ...]
    duration_s: float = 10.0
    warm_up_s: float = 1.0
    pattern: str = "poisson"
    connections: int | None = None
    timeout_s: float = 10.0
    seed: int = 0
    access: Access = field(default=NO_ACCESS, repr=False)


def _silent(_: str) -> None: ...


async def run_load(load: Load, requests: list[Prepared], steps: list[Tally], tell: Callable[[str], None] = _silent) -> None:
    """Make the load; it may be cancelled, and leaves what was measured.

    Args:
        load: what to make.
        requests: what to send, in turns.
        steps: gets a tally for each step that was begun.
        tell: is told every second how it goes.
    """
    is_http, source = load.url.startswith("http"), np.random.default_rng(load.seed)
    for number, rate in enumerate(load.rates):
        connections = load.connections or (CALLERS if rate is None else HTTP_CONNECTIONS if is_http else GRPC_CONNECTIONS)
        sender: Sender = (HttpSender if is_http else GrpcSender)(load.url, requests, load.access, connections)
        try:
            for is_warm_up in (True, False) if number == 0 and load.warm_up_s else (False,):
                tally = Tally(rate, connections if is_http else 0)
                if not is_warm_up:
                    steps.append(tally)
                await _step(load, sender, tally, source, connections, load.warm_up_s if is_warm_up else load.duration_s, tell)
        finally:
            await sender.close()


async def _step(
    load: Load, sender: Sender, tally: Tally, source: np.random.Generator, connections: int, duration_s: float, tell: Callable[[str], None]
) -> None:
    telling = asyncio.create_task(_tell(tally, tell))
    try:
        if tally.rate is None:
            await closed_loop(sender, tally, callers=connections, duration_s=duration_s, timeout_s=load.timeout_s)
        else:
            dues_s = arrivals(load.pattern, tally.rate, duration_s, source)
            await open_loop(sender, tally, dues_s, duration_s=duration_s, timeout_s=load.timeout_s)
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling


async def _tell(tally: Tally, tell: Callable[[str], None]) -> None:
    """How it goes, once a second."""
    rate, before = "max" if tally.rate is None else f"{tally.rate:,g}", 0
    second = 0
    while True:
        await asyncio.sleep(1)
        second += 1
        failed = sum(tally.errors.values())
        tell(f"{second:>5} s at {rate}: {tally.asked - before:,} begun, {tally.under_way:,} under way, {failed:,} failed so far")
        before = tally.asked


def to_stderr(line: str) -> None:
    """Progress, for a person."""
    print(line, file=sys.stderr, flush=True)
