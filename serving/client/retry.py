"""Asking a server again: after which errors, how often and when."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from emberline.errors import OverloadedError, UnavailableError

T = TypeVar("T")
RETRIES = 2
"""How often a client asks again unless it is told otherwise."""
_FIRST_WAIT_S, _MOST_WAIT_S = 0.2, 2.0
"""Longer than gRPC waits before it connects again, so that a retry finds it trying."""


async def ask_again(ask: Callable[[float], Awaitable[T]], *, retries: int, timeout_s: float) -> T:
    """The answer of `ask`, which is asked again where the server could not be reached, was stopping or had too much to do.

    A request changes nothing on the server, so asking twice does no harm. The wait doubles each time, and a quarter of it is left to chance, so that
    callers that failed together do not come back together.

    Args:
        ask: one attempt, given the seconds that it has.
        retries: attempts after the first.
        timeout_s: for all attempts and the waits between them.

    Raises:
        ServingError: of the last attempt; any other than `UnavailableError` and `OverloadedError` at once.
    """
    end, left_s = time.monotonic() + timeout_s, timeout_s
    for attempt in range(retries + 1):
        try:
            return await ask(left_s)
        except (UnavailableError, OverloadedError):
            wait_s = min(_FIRST_WAIT_S * 2**attempt, _MOST_WAIT_S) * random.uniform(0.75, 1)
            left_s = end - time.monotonic() - wait_s
            if attempt == retries or left_s <= 0:
                raise
        await asyncio.sleep(wait_s)
    raise AssertionError(retries)
