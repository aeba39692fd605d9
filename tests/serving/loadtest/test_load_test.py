"""Load tests of servers that take a known time: what is measured is what they did."""

import asyncio
from typing import Any

import pytest

from emberline.serving.loadtest import load_test
from emberline.serving.loadtest.load_test import Load, run_load
from emberline.serving.loadtest.report import Report, too_slow
from emberline.serving.loadtest.senders import Prepared
from emberline.serving.loadtest.tally import Tally
from tests.serving.conftest import toy_schema
from tests.serving.loadtest.slow_server import Answer, SlowServer, slow_server

REQUESTS = [Prepared(f"body {number}".encode(), "/v2/models/slow/infer", {"X-Number": str(number)}) for number in range(3)]


def load(answer: Answer, *, rate: float | None, duration_s: float, **settings: Any) -> tuple[Tally, SlowServer]:
    steps: list[Tally] = []
    with slow_server(toy_schema(), answer) as server:
        made = Load(url=server.url, rates=(rate,), duration_s=duration_s, warm_up_s=0, pattern="constant", **settings)
        asyncio.run(run_load(made, REQUESTS, steps))
    return steps[0], server


def test_percentiles_are_those_of_the_servers_times() -> None:
    tally, server = load(lambda number: (0.3 if number % 10 == 3 else 0.02, 200), rate=200, duration_s=1.0)
    assert (tally.asked, tally.good, tally.errors, len(server.bodies)) == (200, 200, {}, 200)
    assert tally.under_way == 0
    assert 0.02 * 0.99 <= tally.latencies.quantile(0.5) < 0.3 <= tally.latencies.quantile(0.95)
    slow = sum(count for low_s, _, count in tally.latencies.buckets() if low_s >= 0.3 * 0.97)
    assert slow >= 20
    assert tally.versions == {"7": 200}
    assert [second.asked for second in tally.seconds] == [200]
    assert sorted(server.bodies) == sorted([b"body 0"] * 67 + [b"body 1"] * 67 + [b"body 2"] * 66)
    assert all("X-Number: " in head for head in server.heads)


def test_requests_behind_a_stall_are_late_by_all_of_it() -> None:
    stall_s, began = 0.8, list[float]()

    def stalls(number: int) -> tuple[float, int]:
        now = asyncio.get_running_loop().time()
        if number == 20:
            began.append(now)
        return (max(0.0, began[0] + stall_s - now) if began else 0.0), 200

    tally, _ = load(stalls, rate=100, duration_s=1.2)
    assert (tally.asked, tally.good) == (120, 120)
    waits = sum(count for low_s, _, count in tally.latencies.buckets() if low_s >= stall_s / 2)
    assert waits >= 0.4 * stall_s * 100  # every one that was due in the first half of the stall, about
    began.clear()
    closed, _ = load(stalls, rate=None, duration_s=1.2, connections=1)
    # a caller who waits for each answer sees one late answer only
    assert sum(count for low_s, _, count in closed.latencies.buckets() if low_s >= stall_s / 2) <= 2


def test_errors_are_counted_by_kind_and_give_no_latency() -> None:
    statuses = [200, 429, 503, 0, 400, 200, 500, 404, 401, 413]
    tally, server = load(lambda number: (0.0, statuses[number % 10]), rate=100, duration_s=1.0)
    assert tally.asked == len(server.bodies) == 100
    assert tally.errors == dict.fromkeys(
        ("overloaded", "unavailable", "cut", "bad_request", "internal", "not_found", "unauthenticated", "too_large"), 10
    )
    assert tally.good == tally.latencies.count == 20


def test_what_takes_too_long_and_what_cannot_be_reached() -> None:
    tally, _ = load(lambda number: (5.0 if number % 2 else 0.0, 200), rate=20, duration_s=0.5, timeout_s=1.5)
    assert (tally.good, tally.errors) == (5, {"deadline": 5})
    with slow_server(toy_schema(), lambda _: (0.0, 200)) as server:
        gone = server.url
    steps: list[Tally] = []
    asyncio.run(run_load(Load(url=gone, rates=(20.0,), duration_s=0.2, warm_up_s=0, pattern="constant"), REQUESTS, steps))
    assert (steps[0].asked, steps[0].errors) == (4, {"unreachable": 4})


def test_few_connections_make_requests_wait_which_counts() -> None:
    tally, _ = load(lambda _: (0.1, 200), rate=40, duration_s=0.5, connections=2)
    assert (tally.asked, tally.good) == (20, 20)
    assert tally.waited >= 10
    assert tally.latencies.quantile(0.99) >= 0.4  # 20 requests by twos take 1 s; the last is due after 0.475 s


def test_at_most_as_many_are_under_way_as_there_are_callers() -> None:
    tally, server = load(lambda _: (0.05, 200), rate=None, duration_s=0.4, connections=3)
    assert tally.asked == tally.good == len(server.bodies) <= 3 * 8
    assert tally.rate is None


def test_steps_and_warm_up() -> None:
    steps: list[Tally] = []
    told: list[str] = []
    with slow_server(toy_schema(), lambda _: (0.0, 200)) as server:
        made = Load(url=server.url, rates=(20.0, 40.0), duration_s=0.5, warm_up_s=1.2, pattern="constant")
        asyncio.run(run_load(made, REQUESTS, steps, told.append))
    assert [(step.rate, step.asked, step.good) for step in steps] == [(20.0, 10, 10), (40.0, 20, 20)]
    assert len(server.bodies) == 24 + 10 + 20
    assert told[0].startswith("    1 s at 20: ")


class Sluggish:
    """A sender that holds the event loop up, as a load test does that has too little of a CPU."""

    async def ask(self, number: int, timeout_s: float) -> tuple[str, str]:
        end = asyncio.get_running_loop().time() + 0.02
        while asyncio.get_running_loop().time() < end:
            pass
        return "", ""

    async def close(self) -> None:
        pass


@pytest.fixture
def sluggish(monkeypatch: pytest.MonkeyPatch) -> Tally:
    monkeypatch.setattr(load_test, "HttpSender", lambda *_: Sluggish())
    steps: list[Tally] = []
    asyncio.run(run_load(Load(url="http://x", rates=(200.0,), duration_s=0.25, warm_up_s=0, pattern="constant"), REQUESTS, steps))
    return steps[0]


def test_a_load_test_that_is_too_slow_tells_no_latencies(sluggish: Tally) -> None:
    assert (sluggish.asked, sluggish.good) == (50, 50)  # none is left out for being late
    assert too_slow(sluggish)
    report = Report(settings={}, steps=[sluggish], max_p99_s=1000.0)
    assert "not told" in report.to_text()
    assert "THE LOAD TEST WAS TOO SLOW" in report.to_text()
    told = report.to_dict()["steps"][0]
    assert (told["latency_ms"], told["histogram_ms"], told["by_second"][0]["p99_ms"]) == (None, [], None)
    assert told["load_test"]["was_too_slow"] is True
    assert told["load_test"]["p99_late_ms"] > 250
    assert report.broken() == ["200: the latency is not known, as the load test itself was too slow"]


def test_a_load_test_that_is_stopped_tells_what_it_has() -> None:
    steps: list[Tally] = []

    async def stop(url: str) -> None:
        made = Load(url=url, rates=(100.0, 200.0), duration_s=60.0, warm_up_s=0, pattern="constant")
        running = asyncio.create_task(run_load(made, REQUESTS, steps))
        while not steps or steps[0].asked < 30:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with slow_server(toy_schema(), lambda number: (0.0 if number < 20 else 50.0, 200)) as server:
        asyncio.run(stop(server.url))
    (step,) = steps
    assert (step.good, step.errors) == (20, {})
    assert step.under_way == step.asked - 20 >= 10
    text = Report(settings={}, steps=steps, is_interrupted=True).to_text()
    assert f"{step.under_way} requests were given up as it was stopped" in text
    assert text.endswith("It was stopped before its end.")
    assert step.took_s < 60
