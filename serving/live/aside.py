"""Work that may take minutes and that nobody needs once the server is to stop, such as opening a model: nothing waits for it then.

Threads of the event loop's own pool, and those that are no daemons, hold up the end of a process until their work is done.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")
_PREFIX = "aside-"


class _Work(Generic[T]):
    """What is done, and what becomes of it where nobody waits any more."""

    def __init__(self, work: Callable[[], T], discard: Callable[[T], object]) -> None:
        self._work, self._discard = work, discard
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()
        self._lock = threading.Lock()
        self._is_wanted = True
        self._made: list[T] = []

    def run(self) -> None:
        """Do it, in a thread of its own."""
        try:
            made = self._work()
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits
            self._tell(partial(self._settle, self.future.set_exception, error))
            return
        with self._lock:
            if is_wanted := self._is_wanted:
                self._made.append(made)
        if is_wanted:
            self._tell(partial(self._settle, self.future.set_result, made))
        else:
            self._discard(made)

    def leave(self) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._is_wanted = False
            made, self._made = self._made, []
        for one in made:
            threading.Thread(target=self._discard, args=(one,), name=f"{_PREFIX}discard", daemon=True).start()

    def _settle(self, settle: Callable[[V], object], value: V) -> None:
        if not self.future.done():
            settle(value)

    def _tell(self, settle: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop has ended
            self.leave()


async def aside(work: Callable[[], T], name: str, discard: Callable[[T], object] = lambda _: None) -> T:
    """What `work` gives, done in a thread that nobody waits for at the end of the process.

    Args:
        work: may block.
        name: of the thread.
        discard: called with what `work` gave where the one who waited was cancelled meanwhile.
    """
    doing = _Work(work, discard)
    threading.Thread(target=doing.run, name=_PREFIX + name, daemon=True).start()
    try:
        return await doing.future
    except asyncio.CancelledError:
        doing.leave()
        raise


async def unless(stop: asyncio.Event, work: Callable[[], T], name: str, discard: Callable[[T], object]) -> T | None:
    """As `aside`; None as soon as `stop` is set."""
    working, stopping = asyncio.create_task(aside(work, name, discard)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()


def end_process(status: int) -> int:
    """The status; where work that nobody waits for is still being done, the process ends here and now, with that status.

    A thread that is inside a library's code when the interpreter is taken down may crash it.
    """
    if any(thread.name.startswith(_PREFIX) for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
