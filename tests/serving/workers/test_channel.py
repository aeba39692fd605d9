"""Questions and answers between two ends."""

import asyncio
import socket
from typing import Any

import pytest

from emberline.errors import NotFoundError, ServingError, UnavailableError
from emberline.serving.workers.channel import Channel


async def pair(answer: Any) -> tuple[Channel, Channel]:
    one, other = socket.socketpair()

    async def nothing(what: str, value: Any) -> Any:
        return None

    return await Channel.open(one, nothing), await Channel.open(other, answer)


def test_answers_find_their_questions_in_any_order() -> None:
    async def answer(what: str, value: Any) -> Any:
        await asyncio.sleep(0.01 * value)
        return [what, value, "\n" * 100_000]

    async def run() -> list[Any]:
        asking, answering = await pair(answer)
        found = await asyncio.gather(*[asking.ask(f"q{number}", number) for number in (2, 0, 1)])
        asking.close()
        answering.close()
        return found

    assert asyncio.run(run()) == [[f"q{number}", number, "\n" * 100_000] for number in (2, 0, 1)]


def test_errors_come_as_they_were_raised_and_faults_without_their_inside(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(what: str, value: Any) -> Any:
        raise NotFoundError("no such model") if value else ValueError("/secret")

    async def run() -> None:
        asking, answering = await pair(answer)
        with pytest.raises(NotFoundError, match="no such model"):
            await asking.ask("x", 1)
        with pytest.raises(ServingError, match="its log says why"):
            await asking.ask("x", 0)
        asking.close()
        answering.close()

    asyncio.run(run())
    assert "/secret" in caplog.text


def test_who_waits_for_an_end_that_goes_is_told() -> None:
    async def never(what: str, value: Any) -> Any:
        await asyncio.sleep(60)

    async def run() -> None:
        asking, answering = await pair(never)
        asked = asyncio.create_task(asking.ask("x"))
        await asyncio.sleep(0.02)
        answering.close()
        with pytest.raises(UnavailableError, match="has ended"):
            await asked
        await asking.closed()
        with pytest.raises(UnavailableError, match="has ended"):
            await asking.ask("y")
        asking.close()

    asyncio.run(run())


def test_an_answer_that_cannot_be_said_is_told_as_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(what: str, value: Any) -> Any:
        return {"odd": object()}

    async def run() -> None:
        asking, answering = await pair(answer)
        with pytest.raises(ServingError, match="its log says why"):
            async with asyncio.timeout(10):
                await asking.ask("x")
        asking.close()
        answering.close()

    asyncio.run(run())
    assert "not JSON serializable" in caplog.text


def test_what_was_asked_is_given_up_where_an_end_is_closed() -> None:
    given_up: list[str] = []

    async def never(what: str, value: Any) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            given_up.append(what)
            raise

    async def run() -> None:
        asking, answering = await pair(never)
        asked = asyncio.create_task(asking.ask("x"))
        await asyncio.sleep(0.02)
        answering.close()
        with pytest.raises(UnavailableError, match="has ended"):
            await asked
        asking.close()

    asyncio.run(run())
    assert given_up == ["x"]
