"""A clean stop: SIGTERM and SIGINT ask the job to end after the step under way; a second SIGINT ends it at once."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from emberline.train.sharding.process_group import Ranks

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


class SharedStop:
    """A stop that all ranks agree on: they look together, and hear whether one of them was asked to end.

    Args:
        own: of this process.
        ranks: with only one, its own request counts at once.
    """

    def __init__(self, own: StopRequest, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks
        self._agreed = False
        self._signal: int = 0

    def __bool__(self) -> bool:
        return self._agreed if self._ranks.world_size > 1 else bool(self._own)

    @property
    def signal(self) -> signal.Signals | None:
        """Which signal one of the ranks got."""
        if self._ranks.world_size == 1:
            return self._own.signal
        return signal.Signals(self._signal) if self._signal else None

    def look(self, numbers: Sequence[float] = ()) -> list[float]:
        """Look; all ranks must do it together. Returns the sums over the ranks of other numbers that they have to exchange anyway."""
        if self._ranks.world_size == 1:
            return list(numbers)
        found = self._ranks.gather([float(bool(self._own)), float(self._own.signal or 0), *numbers])
        self._agreed = self._agreed or bool(found[:, 0].any())
        self._signal = self._signal or int(found[:, 1].max())
        sums: list[float] = found[:, 2:].sum(axis=0).tolist()
        return sums


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
