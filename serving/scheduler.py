"""Micro-batching: requests of all connections wait in one queue for each model, and a thread answers as many at once as came meanwhile.

Nothing waits for company: an idle model starts on a lone request at once, and what arrives while a batch runs becomes the next batch. So merging
adds no wait of its own, and a batch is bounded in rows and bytes, which bounds how long the next one waits.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from emberline.errors import DeadlineError, OverloadedError, ServingError, UnavailableError
from emberline.serving.observe.context import BATCH, CURRENT, RequestContext, note_rows

_log = logging.getLogger(__name__)
_CLOSE_S = 10.0
Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """How much of a model's requests is merged, and how much may wait.

    Args:
        max_batch_rows: a batch takes requests while its rows stay within this, and always at least one.
        max_batch_bytes: and while their bytes stay within this.
        max_waiting: requests in the queue beyond which further ones are refused.
        max_waiting_bytes: bytes of requests in the queue beyond which further ones are refused.
    """

    max_batch_rows: int
    max_waiting: int
    max_batch_bytes: int = 1 << 23
    max_waiting_bytes: int = 1 << 29


@dataclass(eq=False, slots=True)
class Job(Generic[Q, A]):
    """One request on its way: `deadline` is on the monotonic clock, `future` belongs to the loop that waits for the answer.

    `counted` is false for what no caller asked for, such as a look whether the model is alive; `asked_by` is the caller's request, where known.
    """

    request: Q
    num_rows: int
    num_bytes: int
    deadline: float
    future: asyncio.Future[A]
    counted: bool = True
    asked_by: RequestContext | None = field(default_factory=CURRENT.get)
    queued_at: float = field(default_factory=time.monotonic)


class BatchReport(NamedTuple):
    """What one batch was: requests and rows, the seconds that its requests waited in all, those that it took, and whether it was in a queue."""

    num_requests: int
    num_rows: int
    waited_s: float
    took_s: float
    was_queued: bool = True


class BatchScheduler(Generic[Q, A]):
    """The queue and the thread of one model.

    Args:
        name: names the thread.
        answer: answers many requests at once, in order, with an error in the place of each that it refuses.
        limits: of batches and of the queue.
        report: called in the thread after each batch.
    """

    def __init__(
        self,
        name: str,
        answer: Callable[[list[Q]], Sequence[A | ServingError]],
        limits: QueueLimits,
        *,
        report: Callable[[BatchReport], None] = lambda _: None,
    ) -> None:
        self._answer = answer
        self._limits = limits
        self._report = report
        self._queue: SimpleQueue[Job[Q, A] | None] = SimpleQueue()
        self._held: Job[Q, A] | None = None
        self._lock = threading.Lock()
        self._waiting = self._waiting_bytes = 0
        self._closed = False
        self._started: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"model-{name}", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, those of the running batch not counted."""
        return self._waiting

    @property
    def is_alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    @property
    def busy_s(self) -> float:
        """How long the running batch has taken so far; 0 where none runs."""
        started = self._started
        return 0.0 if started is None else time.monotonic() - started

    async def ask(self, request: Q, num_rows: int, timeout_s: float, *, num_bytes: int = 0, counted: bool = True) -> A:
        """Queue one request and wait for its answer.

        Args:
            request: what `answer` gets.
            num_rows: its rows, as limits count them.
            timeout_s: a request that still waits when this is over is never computed; nor is one whose caller was cancelled.
            num_bytes: its size, as limits count it.
            counted: whether reports tell of it.

        Raises:
            ServingError: the engine refused the request.
            OverloadedError: the queue is full.
            UnavailableError: the scheduler is closed.
            DeadlineError: the time was up first.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        if counted:
            note_rows(num_rows)
        self._submit(Job(request, num_rows, num_bytes, time.monotonic() + timeout_s, future, counted))
        timer = loop.call_later(timeout_s, _expire, future, timeout_s)
        try:
            return await future
        finally:
            timer.cancel()

    def answer_here(self, request: Q, num_rows: int) -> tuple[A, float]:
        """Answer one request in the thread that asks, beside whatever the scheduler's own thread does: for what is done before that would wake up.

        Returns:
            The answer, and the seconds that it took.

        Raises:
            ServingError: the engine refused it.
            UnavailableError: the scheduler is closed.
        """
        if self._closed:
            raise _closed()
        started = time.perf_counter()
        (result,) = self._try([request])
        took = time.perf_counter() - started
        self._report(BatchReport(1, num_rows, 0.0, took, was_queued=False))
        if isinstance(result, ServingError):
            raise result
        return result, took

    def close(self) -> None:
        """Answer what is queued, refuse what comes, and end the thread; a batch that hangs is waited for only a while."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            # What answered and counted holds this in turn: without them its memory goes with the last who uses it, and not some time later.
            self._answer, self._report = _answer_nothing, lambda _: None

    def _submit(self, job: Job[Q, A]) -> None:
        limits = self._limits
        with self._lock:
            if self._closed:
                raise _closed()
            if self._waiting >= limits.max_waiting:
                raise OverloadedError(f"{limits.max_waiting} requests wait already, the most that may; try again later")
            if self._waiting_bytes and self._waiting_bytes + job.num_bytes > limits.max_waiting_bytes:
                raise OverloadedError(f"{self._waiting_bytes} bytes of requests wait already; {limits.max_waiting_bytes} may; try again later")
            self._waiting += 1
            self._waiting_bytes += job.num_bytes
            self._queue.put(job)

    def _run(self) -> None:
        while jobs := self._take():
            self._answer_all(jobs)

    def _take(self) -> list[Job[Q, A]]:
        """The next batch; empty only when the scheduler is closed and all is answered."""
        job, self._held = self._held or self._queue.get(), None
        jobs: list[Job[Q, A]] = []
        rows = size = 0
        while job is not None:
            rows, size = rows + job.num_rows, size + job.num_bytes
            if jobs and (rows > self._limits.max_batch_rows or size > self._limits.max_batch_bytes):
                self._held = job
                break
            jobs.append(job)
            if self._queue.empty():
                break
            job = self._queue.get()
        else:
            if jobs:  # the end came after them: it is for the next look
                self._queue.put(None)
        with self._lock:
            self._waiting -= len(jobs)
            self._waiting_bytes -= sum(job.num_bytes for job in jobs)
        return jobs

    def _answer_all(self, jobs: list[Job[Q, A]]) -> None:
        started = self._started = time.monotonic()
        live = [job for job in jobs if job.deadline > started and not job.future.done()]
        late = [job for job in jobs if job.deadline <= started]
        results: list[A | ServingError] = []
        BATCH.set([job.asked_by for job in live])
        if live:
            results.extend(self._try([job.request for job in live]))
            counted = [job for job in live if job.counted]
            if counted:
                waited = sum(started - job.queued_at for job in counted)
                self._report(BatchReport(len(counted), sum(job.num_rows for job in counted), waited, time.monotonic() - started))
        results.extend(DeadlineError("the deadline passed while the request waited for its turn") for _ in late)
        _deliver(live + late, results)
        self._started = None

    def _try(self, requests: list[Q]) -> Sequence[A | ServingError]:
        try:
            results = self._answer(requests)
            assert len(results) == len(requests)
            return results
        except Exception as error:  # noqa: BLE001 - whatever it is, every caller must hear and the thread must live
            _log.error("a batch of %d requests failed", len(requests), exc_info=error)
            failure = error if isinstance(error, ServingError) else ServingError("the model failed on this request; the server's log says why")
            return [failure for _ in requests]


def _answer_nothing(requests: Sequence[object]) -> Sequence[ServingError]:
    return [_closed() for _ in requests]


def _closed() -> UnavailableError:
    return UnavailableError("the model is being stopped; ask again elsewhere or later")


def _expire(future: asyncio.Future[A], timeout_s: float) -> None:
    if not future.done():
        future.set_exception(DeadlineError(f"no answer within the {timeout_s:g} s that this request had"))


def _deliver(jobs: list[Job[Q, A]], results: Sequence[A | ServingError]) -> None:
    """Hand results to the loops that wait: one wake-up for each loop."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[A], A | ServingError]]] = defaultdict(list)
    for job, result in zip(jobs, results, strict=True):
        by_loop[job.future.get_loop()].append((job.future, result))
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
