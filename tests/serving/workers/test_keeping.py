"""How workers that ended are started again: processes that end at once, and a clock that is not waited for."""

import asyncio

import pytest

from emberline.errors import LaunchError
from emberline.serving.settings import ServerSettings
from emberline.serving.workers.supervisor import Supervisor, Up
from emberline.serving.workers.team import Worker


class Ended:
    """A process that has ended."""

    returncode = -9

    async def wait(self) -> int:
        return self.returncode


def worker(came_up: bool) -> Worker:
    made = Worker(Ended())  # type: ignore[arg-type]
    if came_up:
        made.models.set_result([])
    else:
        made.models.set_exception(LaunchError("it cannot start"))
    return made


def pauses(monkeypatch: pytest.MonkeyPatch, outcomes: list[bool | OSError]) -> list[float]:
    """How long it is waited before each start: of a worker that came up, of one that did not, or that could not be started at all."""
    found: list[float] = []

    async def run() -> None:
        supervisor, stop = Supervisor("models", ServerSettings(workers=2)), asyncio.Event()
        supervisor._team.workers[0] = worker(True)
        left = iter(outcomes)

        async def sleep(seconds: float) -> None:
            found.append(seconds)

        async def start(number: int) -> Worker:
            outcome = next(left, None)
            if isinstance(outcome, OSError):
                raise outcome
            if outcome is None:
                stop.set()
            supervisor._team.workers[number] = worker(bool(outcome))
            return supervisor._team.workers[number]

        monkeypatch.setattr(supervisor, "_start", start)
        monkeypatch.setattr("emberline.serving.workers.supervisor.asyncio.sleep", sleep)
        await supervisor._keep(0, stop)

    asyncio.run(run())
    return found


def test_one_that_served_is_started_again_soon_and_one_that_cannot_start_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses(monkeypatch, [True] * 4) == [0.2] * 5
    assert pauses(monkeypatch, [False] * 7) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert pauses(monkeypatch, [False, False, True, False]) == [0.2, 0.4, 0.8, 0.2, 0.4]


def test_a_start_for_which_the_system_has_no_room_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert pauses(monkeypatch, [OSError("no process"), OSError("no file"), True]) == [0.2, 0.4, 0.8, 0.2]
    assert [record.getMessage().partition(":")[2] for record in caplog.records if "cannot be started" in record.getMessage()] == [
        " no process; it is tried again",
        " no file; it is tried again",
    ]


def test_nothing_is_started_again_once_the_server_ends_for_any_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Running(Ended):
        returncode = None  # type: ignore[assignment]

        def __init__(self) -> None:
            self.end = asyncio.Event()

        async def wait(self) -> int:
            await self.end.wait()
            return 0

        def terminate(self) -> None:
            self.end.set()

    started: list[int] = []

    async def run() -> None:
        supervisor = Supervisor("models", ServerSettings(workers=2, http_port=0, grpc_port=0))

        async def start(number: int) -> Worker:
            started.append(number)
            made = supervisor._team.workers[number] = Worker(Running())  # type: ignore[arg-type]
            made.models.set_result([])
            return made

        def fail(up: Up) -> None:
            raise BrokenPipeError("nobody reads what is announced")

        monkeypatch.setattr(supervisor, "_start", start)
        monkeypatch.setattr("emberline.serving.workers.supervisor._PAUSE_S", 0.0)
        with pytest.raises(BrokenPipeError):
            await supervisor.run(fail, asyncio.Event())
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert started == [0, 1]


def test_one_that_comes_up_is_told_why_models_are_not_served_as_it_is_by_then() -> None:
    async def run() -> None:
        supervisor = Supervisor("models", ServerSettings(workers=2))
        for reason, told in (("it is damaged", {"toy": "it is damaged"}), ("", {})):
            await supervisor._shared.tell("toy", reason)
            started = Worker(Ended())  # type: ignore[arg-type]
            assert await supervisor._answer(started, "up", []) == told
            assert started.came_up

    asyncio.run(run())
