"""The queue of one model: nothing is lost, mixed up, kept waiting without need, or computed too late."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from emberline.errors import DeadlineError, OverloadedError, RequestError, ServingError, UnavailableError
from emberline.serving.scheduler import BatchReport, BatchScheduler, QueueLimits

Doubler = BatchScheduler[int, int]
LIMITS = QueueLimits(max_batch_rows=10, max_waiting=6, max_batch_bytes=100, max_waiting_bytes=300)


class Gate:
    """Doubles numbers; while it is shut, a batch waits."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Semaphore(0)
        self.batches: list[list[int]] = []

    def __call__(self, numbers: list[int]) -> list[int | ServingError]:
        self.entered.release()
        assert self.open.wait(60)
        self.batches.append(numbers)
        return [RequestError(f"{number} is negative") if number < 0 else number * 2 for number in numbers]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def doubler(gate: Gate) -> Iterator[Doubler]:
    scheduler: Doubler = BatchScheduler("test", gate, LIMITS)
    yield scheduler
    gate.open.set()
    scheduler.close()


async def ask(doubler: Doubler, number: int, rows: int = 1, timeout_s: float = 5) -> int | ServingError:
    try:
        return await doubler.ask(number, rows, timeout_s)
    except ServingError as error:
        return error


async def queue_behind_a_batch(gate: Gate, doubler: Doubler, numbers: list[int], rows: int = 1) -> list[int | ServingError]:
    """One batch is stuck; the numbers queue behind it; then it goes on."""
    gate.open.clear()
    first = asyncio.create_task(ask(doubler, 0))
    await asyncio.to_thread(gate.entered.acquire)
    rest = [asyncio.create_task(ask(doubler, number, rows)) for number in numbers]
    await asyncio.sleep(0.02)
    gate.open.set()
    return (await asyncio.gather(first, *rest))[1:]


def test_a_lone_request_is_a_batch_of_its_own(gate: Gate, doubler: Doubler) -> None:
    assert asyncio.run(ask(doubler, 21)) == 42
    assert gate.batches == [[21]]


def test_what_came_meanwhile_is_one_batch_in_order(gate: Gate, doubler: Doubler) -> None:
    assert asyncio.run(queue_behind_a_batch(gate, doubler, [1, 2, 3, 4, 5])) == [2, 4, 6, 8, 10]
    assert gate.batches == [[0], [1, 2, 3, 4, 5]]


def test_a_batch_stays_within_its_rows_and_a_larger_request_goes_alone(gate: Gate, doubler: Doubler) -> None:
    async def run() -> None:
        await queue_behind_a_batch(gate, doubler, [1, 2, 3, 4, 5], rows=4)
        assert await ask(doubler, 9, rows=1000) == 18

    asyncio.run(run())
    assert gate.batches == [[0], [1, 2], [3, 4], [5], [9]]


def test_a_bad_request_fails_alone(gate: Gate, doubler: Doubler) -> None:
    one, bad, two = asyncio.run(queue_behind_a_batch(gate, doubler, [1, -1, 2]))
    assert (one, two) == (2, 4)
    assert isinstance(bad, RequestError)
    assert str(bad) == "-1 is negative"


def test_a_full_queue_refuses_at_once(gate: Gate, doubler: Doubler) -> None:
    answers = asyncio.run(queue_behind_a_batch(gate, doubler, list(range(1, 9))))
    assert answers[:6] == [2, 4, 6, 8, 10, 12]
    assert [type(answer) for answer in answers[6:]] == [OverloadedError] * 2


def test_an_expired_request_is_never_computed(gate: Gate, doubler: Doubler) -> None:
    async def run() -> int | ServingError:
        gate.open.clear()
        first = asyncio.create_task(ask(doubler, 0))
        await asyncio.to_thread(gate.entered.acquire)
        late = await ask(doubler, 1, timeout_s=0.05)
        gate.open.set()
        await first
        assert await ask(doubler, 2) == 4
        return late

    late = asyncio.run(run())
    assert isinstance(late, DeadlineError)
    assert gate.batches == [[0], [2]]


def test_a_caller_that_left_is_not_computed(gate: Gate, doubler: Doubler) -> None:
    async def run() -> None:
        gate.open.clear()
        first = asyncio.create_task(ask(doubler, 0))
        await asyncio.to_thread(gate.entered.acquire)
        gone = asyncio.create_task(ask(doubler, 1))
        await asyncio.sleep(0.02)
        gone.cancel()
        await asyncio.sleep(0.02)
        gate.open.set()
        await first
        await ask(doubler, 2)

    asyncio.run(run())
    assert gate.batches == [[0], [2]]


def test_a_failure_reaches_every_caller_and_the_thread_lives(gate: Gate) -> None:
    fail = [True]

    def answer(numbers: list[int]) -> list[int | ServingError]:
        if fail.pop() if fail else False:
            raise ValueError("/secret")
        return gate(numbers)

    scheduler: Doubler = BatchScheduler("test", answer, LIMITS)
    first = asyncio.run(ask(scheduler, 1))
    assert type(first) is ServingError
    assert "secret" not in str(first)
    assert asyncio.run(ask(scheduler, 2)) == 4
    scheduler.close()


def test_closing_answers_what_waits_and_refuses_what_comes(gate: Gate, doubler: Doubler) -> None:
    async def run() -> list[int | ServingError]:
        gate.open.clear()
        asked = [asyncio.create_task(ask(doubler, number)) for number in range(3)]
        await asyncio.to_thread(gate.entered.acquire)
        closing = asyncio.create_task(asyncio.to_thread(doubler.close))
        await asyncio.sleep(0.02)
        gate.open.set()
        answers = await asyncio.gather(*asked)
        await closing
        return [*answers, await ask(doubler, 9)]

    *answers, refused = asyncio.run(run())
    assert answers == [0, 2, 4]
    assert isinstance(refused, UnavailableError)


def test_each_caller_gets_its_own_answer_from_many_loops(gate: Gate, doubler: Doubler) -> None:
    async def many(start: int) -> list[int]:
        found = []
        for number in range(start, start + 50):
            found.append(await doubler.ask(number, 1, 5))
        return found

    results: dict[int, list[int]] = {}
    threads = [threading.Thread(target=lambda start=start: results.update({start: asyncio.run(many(start))})) for start in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {start: [2 * number for number in range(start, start + 50)] for start in (0, 100, 200, 300)}


def test_batches_are_reported(gate: Gate) -> None:
    reports: list[BatchReport] = []
    scheduler: Doubler = BatchScheduler("test", gate, LIMITS, report=reports.append)
    started = time.monotonic()
    asyncio.run(queue_behind_a_batch(gate, scheduler, [1, 2], rows=3))
    took_s = time.monotonic() - started
    scheduler.close()
    assert [(report.num_requests, report.num_rows) for report in reports] == [(1, 1), (2, 6)]
    assert all(0 <= report.took_s <= took_s for report in reports)
    assert 0 < reports[1].waited_s <= 2 * took_s


def queued_bytes(gate: Gate, doubler: Doubler, sizes: list[int]) -> list[int | ServingError]:
    """Requests of so many bytes queue behind a batch that is stuck."""

    async def one(number: int, size: int) -> int | ServingError:
        try:
            return await doubler.ask(number, 1, 5, num_bytes=size)
        except ServingError as error:
            return error

    async def run() -> list[int | ServingError]:
        gate.open.clear()
        first = asyncio.create_task(one(0, 0))
        await asyncio.to_thread(gate.entered.acquire)
        rest = [asyncio.create_task(one(number, size)) for number, size in enumerate(sizes, 1)]
        await asyncio.sleep(0.02)
        gate.open.set()
        return (await asyncio.gather(first, *rest))[1:]

    return asyncio.run(run())


def test_a_batch_stays_within_its_bytes_and_a_larger_request_goes_alone(gate: Gate, doubler: Doubler) -> None:
    assert queued_bytes(gate, doubler, [60, 40, 1, 150]) == [2, 4, 6, 8]
    assert gate.batches == [[0], [1, 2], [3], [4]]


def test_bytes_that_wait_are_bounded_but_one_request_is_always_taken(gate: Gate, doubler: Doubler) -> None:
    found = queued_bytes(gate, doubler, [200, 101, 100, 1])
    assert [type(answer) for answer in found] == [int, OverloadedError, int, OverloadedError]
    assert "200 bytes of requests wait already; 300 may" in str(found[1])
    assert queued_bytes(gate, doubler, [5000]) == [2]
    assert doubler.num_waiting == 0


def test_how_long_a_batch_runs_is_told(gate: Gate, doubler: Doubler) -> None:
    async def run() -> float:
        gate.open.clear()
        asked = asyncio.create_task(ask(doubler, 1))
        await asyncio.to_thread(gate.entered.acquire)
        await asyncio.sleep(0.03)
        busy_s = doubler.busy_s
        gate.open.set()
        await asked
        return busy_s

    assert doubler.busy_s == 0
    assert 0.03 <= asyncio.run(run()) < 5
    doubler.close()
    assert (doubler.busy_s, doubler.is_alive) == (0, False)


def test_what_nobody_asked_for_is_not_reported(gate: Gate) -> None:
    reports: list[BatchReport] = []
    scheduler: Doubler = BatchScheduler("test", gate, LIMITS, report=reports.append)
    assert asyncio.run(scheduler.ask(3, 1, 5, counted=False)) == 6
    scheduler.close()
    assert reports == []
