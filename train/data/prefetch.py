"""A generator that runs on a thread of its own, a few items ahead."""

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
_WAIT_S = 0.05


class Prefetch(Generic[T]):
    """Iterate `items` on a background thread, at most `depth` items ahead of the consumer.

    An error in `items` is raised to the consumer after the items before it. `close` (or leaving a `with`) stops the thread and waits for it;
    `items` is closed on that thread.

    Args:
        items: a fresh generator that nothing else reads.
        depth: items that may wait, at least 1.
    """

    def __init__(self, items: Iterator[T], depth: int = 2) -> None:
        assert depth >= 1
        self._items = items
        self._queue: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(depth)
        self._stop = threading.Event()
        self._finished = False
        self._thread = threading.Thread(target=self._run, name="emberline-prefetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            for item in self._items:
                if not self._put((item,)):
                    break
        except BaseException as error:  # noqa: BLE001 - raised again where the items are consumed
            end = error
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
        self._put(end)

    def _put(self, entry: tuple[T] | BaseException | None) -> bool:
        """Wait for room; False where the consumer is gone."""
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=_WAIT_S)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._finished:
            raise StopIteration
        entry = self._queue.get()
        if isinstance(entry, tuple):
            return entry[0]
        self._finished = True
        self._thread.join()
        if entry is not None:
            raise entry
        raise StopIteration

    def close(self) -> None:
        """Stop the thread and wait for it; items that wait are dropped."""
        self._finished = True
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
