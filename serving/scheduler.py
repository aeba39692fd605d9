"""Micro-batching: requests of all connections wait in one queue for each model, and a thread answers as many at once as came meanwhile.

Nothing waits for company: an idle model starts on a lone request at once, and what arrives while a batch runs becomes the next batch.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from emberline.errors import DeadlineError, OverloadedError, ServingError, UnavailableError

_log = logging.getLogger(__name__)
_CLOSE_S = 10.0
Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(eq=False, slots=True)
class Job(Generic[Q, A]):
    """One request on its way: `deadline` is on the monotonic clock, `future` belongs to the loop that waits for the answer."""

    request: Q
    num_rows: int
    deadline: float
    future: asyncio.Future[A]
    queued_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch was: its requests and rows, the seconds that its requests waited in all, and the seconds that it took."""

    num_requests: int
    num_rows: int
    waited_s: float
    took_s: float


class BatchScheduler(Generic[Q, A]):
    """The queue and the thread of one model.

    Args:
        name: names the thread.
        answer: answers many requests at once, in order, with an error in the place of each that it refuses.
        max_batch_rows: a batch takes requests while its rows stay within this, and always at least one.
        max_waiting: requests in the queue beyond which `submit` refuses.
        report: called in the thread after each batch.
    """

    def __init__(
        self,
        name: str,
        answer: Callable[[list[Q]], Sequence[A | ServingError]],
        *,
        max_batch_rows: int,
        max_waiting: int,
        report: Callable[[BatchReport], None] = lambda _: None,
    ) -> None:
        self._answer = answer
        self._max_batch_rows = max_batch_rows
        self._max_waiting = max_waiting
        self._report = report
        self._queue: deque[Job[Q, A]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"model-{name}", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, those of the running batch not counted."""
        return len(self._queue)

    async def ask(self, request: Q, num_rows: int, timeout_s: float) -> A:
        """Queue one request and wait for its answer.

        Raises:
            ServingError: the engine refused the request.
            OverloadedError: the queue is full.
            UnavailableError: the scheduler is closed.
            DeadlineError: the time was up first; a request that still waits then is never computed.
        """
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._submit(Job(request, num_rows, time.monotonic() + timeout_s, future))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise DeadlineError(f"no answer within the {timeout_s:g} s that this request had") from None

    def close(self) -> None:
        """Answer what is queued, refuse what comes, and end the thread; a batch that hangs is waited for only a while."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_S)

    def _submit(self, job: Job[Q, A]) -> None:
        with self._changed:
            if self._closed:
                raise UnavailableError("the server is stopping; ask again elsewhere or later")
            if len(self._queue) >= self._max_waiting:
                raise OverloadedError(f"{self._max_waiting} requests wait already, the most that may; try again later")
            self._queue.append(job)
            self._changed.notify()

    def _run(self) -> None:
        while jobs := self._take():
            self._answer_all(jobs)

    def _take(self) -> list[Job[Q, A]]:
        """The next batch; empty only when the scheduler is closed and all is answered."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            jobs: list[Job[Q, A]] = []
            rows = 0
            while self._queue and (not jobs or rows + self._queue[0].num_rows <= self._max_batch_rows):
                job = self._queue.popleft()
                jobs.append(job)
                rows += job.num_rows
            return jobs

    def _answer_all(self, jobs: list[Job[Q, A]]) -> None:
        started = time.monotonic()
        live = [job for job in jobs if job.deadline > started and not job.future.done()]
        late = [job for job in jobs if job.deadline <= started]
        results: list[A | ServingError] = []
        if live:
            results.extend(self._try([job.request for job in live]))
            waited = sum(started - job.queued_at for job in live)
            self._report(BatchReport(len(live), sum(job.num_rows for job in live), waited, time.monotonic() - started))
        results.extend(DeadlineError("the deadline passed while the request waited for its turn") for _ in late)
        _deliver(live + late, results)

    def _try(self, requests: list[Q]) -> Sequence[A | ServingError]:
        try:
            results = self._answer(requests)
            assert len(results) == len(requests)
            return results
        except Exception as error:  # noqa: BLE001 - whatever it is, every caller must hear and the thread must live
            _log.error("a batch of %d requests failed", len(requests), exc_info=error)
            failure = error if isinstance(error, ServingError) else ServingError("the model failed on this request; the server's log says why")
            return [failure for _ in requests]


def _deliver(jobs: list[Job[Q, A]], results: Sequence[A | ServingError]) -> None:
    """Hand results to the loops that wait: one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[A], A | ServingError]]] = {}
    for job, result in zip(jobs, results, strict=True):
        by_loop.setdefault(job.future.get_loop(), []).append((job.future, result))
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, pairs)
        except RuntimeError:
            _log.debug("%d answers came after their server had stopped", len(pairs))


def _settle(pairs: list[tuple[asyncio.Future[A], A | ServingError]]) -> None:
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, ServingError):
            future.set_exception(result)
        else:
            future.set_result(result)
