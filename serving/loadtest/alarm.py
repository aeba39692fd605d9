"""Waiting for a moment more exactly than an event loop does, which wakes up to a millisecond too late."""

import asyncio
import ctypes
import os
import time
from types import TracebackType
from typing import Self

_MONOTONIC, _NONBLOCK_CLOEXEC, _ABSOLUTE = 1, 0o2004000, 1
_NS = 10**9


class _Setting(ctypes.Structure):
    """`struct itimerspec`: the period, and the first moment, in seconds and nanoseconds."""

    _fields_ = (("period_s", ctypes.c_long), ("period_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long))


class Alarm:
    """A timer of the kernel's (`timerfd` of Linux) in the running event loop; where there is none, the loop's own."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._file = self._library.timerfd_create(_MONOTONIC, _NONBLOCK_CLOEXEC) if hasattr(self._library, "timerfd_create") else -1
        self._loop = asyncio.get_running_loop()
        self._rings: asyncio.Future[None] | None = None
        if self._file >= 0:
            self._loop.add_reader(self._file, self._ring)

    def __enter__(self) -> Self:
        """It is ready as it is."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give the timer back."""
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)

    async def wait_until(self, moment_s: float) -> None:
        """Return as soon as `time.monotonic()` has come to this; one waits at a time."""
        if moment_s <= time.monotonic():
            return
        if self._file < 0:
            await asyncio.sleep(moment_s - time.monotonic())
            return
        rings = self._rings = self._loop.create_future()
        whole_s, part_ns = divmod(int(moment_s * _NS), _NS)
        setting = _Setting(0, 0, whole_s, part_ns)
        self._library.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(setting), None)
        await rings

    def _ring(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return
        if self._rings is not None and not self._rings.done():
            self._rings.set_result(None)
