"""A clean stop: SIGTERM and SIGINT ask the job to end after the step under way; a second SIGINT ends it at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_EXIT_BASE = 128


class StopRequest:
    """Whether a signal asked for an end, and which."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_status(self) -> int:
        """What a process that a signal ended returns by convention: 143 for SIGTERM, 130 for SIGINT; 0 where there was none."""
        return _EXIT_BASE + self.signal if self.signal is not None else 0


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Note SIGTERM and SIGINT while the body runs, instead of dying of them. Only a process's main thread may use it."""
    request = StopRequest()

    def note(number: int, _frame: FrameType | None) -> None:
        if request.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number)

    before: dict[signal.Signals, Any] = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
