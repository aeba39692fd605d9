"""All workers go over to a version, or none does: workers that are played, each answer of theirs as a test wants it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from emberline.errors import ArtifactError, NotFoundError, UnavailableError
from emberline.serving.live.identity import Identity
from emberline.serving.workers.shared_models import SharedModels
from emberline.serving.workers.team import Team, Worker

OLD, NEW = Identity(1, "a"), Identity(2, "b")
Play = Callable[[str, Any], Any]


class Process:
    """One that runs."""

    returncode: int | None = None


class Played:
    """A channel whose other end does what a test says; it remembers what it was asked."""

    is_open = True

    def __init__(self, play: Play) -> None:
        self.play, self.asked = play, list[tuple[str, Any]]()

    async def ask(self, what: str, value: Any = None) -> Any:
        self.asked.append((what, value))
        answer = self.play(what, value)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


def opens(identity: Identity) -> Play:
    return lambda what, value: list(identity) if what == "open" else None


def fails(error: Exception) -> Play:
    return lambda what, value: error if what == "open" else None


def told(identity: Identity) -> list[dict[str, Any]]:
    return [{"name": "toy", "version": identity.version, "digest": identity.digest, "reason": ""}]


def played(*plays: Play) -> tuple[Team, SharedModels, list[Played]]:
    """A team of played workers that serve OLD; to be called in a loop."""
    team, channels = Team(len(plays), patience_s=0.05), [Played(play) for play in plays]
    for number, channel in enumerate(channels):
        worker = team.workers[number] = Worker(Process())  # type: ignore[arg-type]
        worker.channel = channel  # type: ignore[assignment]
        worker.models.set_result(told(OLD))
    return team, SharedModels(team), channels


def names(channel: Played) -> list[str]:
    return [what for what, _ in channel.asked]


async def started(shared: SharedModels, workers: int = 2) -> None:
    await shared.start([told(OLD)] * workers)


def test_all_open_a_version_before_any_serves_it() -> None:
    async def run() -> None:
        order: list[str] = []

        def slow(what: str, value: Any) -> Any:
            async def answer() -> Any:
                await asyncio.sleep(0.01)
                order.append(f"slow {what}")
                return list(NEW)

            return answer() if what == "open" else order.append(f"slow {what}")

        _, shared, channels = played(slow, lambda what, value: order.append(f"quick {what}") or list(NEW))  # type: ignore[func-returns-value]
        await started(shared)
        await shared.switch("toy", NEW)
        assert order == ["quick open", "slow open", "slow serve", "quick serve"]
        assert channels[0].asked[0] == ("open", {"name": "toy", "version": 2})
        assert (shared.served(), shared.versions) == ({"toy": NEW}, {"toy": 2})
        await shared.switch("toy", NEW)
        assert len(order) == 4, "what is served is not opened again"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("plays", "kind", "message"),
    [
        ([opens(NEW), fails(ArtifactError("it is damaged"))], ArtifactError, "it is damaged"),
        ([opens(NEW), fails(UnavailableError("it has ended"))], UnavailableError, "it has ended"),
        ([fails(UnavailableError("it has ended")), fails(ArtifactError("it is damaged"))], ArtifactError, "it is damaged"),
        ([opens(NEW), opens(Identity(2, "c"))], UnavailableError, "the workers opened different versions of 'toy'"),
    ],
)
def test_where_one_cannot_open_it_all_stay_as_they_were(plays: list[Play], kind: type[Exception], message: str) -> None:
    async def run() -> None:
        _, shared, channels = played(*plays)
        await started(shared)
        with pytest.raises(kind, match=message):
            await shared.switch("toy", NEW)
        assert [names(channel) for channel in channels] == [["open", "drop"]] * 2
        assert shared.served() == {"toy": OLD}

    asyncio.run(run())


def test_a_worker_that_is_missing_says_nothing_of_a_version() -> None:
    async def run() -> None:
        team, shared, channels = played(opens(NEW), opens(NEW))
        await started(shared)
        team.workers[1].process.returncode = -9  # type: ignore[misc]
        changes = [shared.switch("toy", NEW), shared.load("toy"), shared.unload("toy")]
        for change in changes:
            with pytest.raises(UnavailableError, match="a worker is being started again"):
                await change
        assert [names(channel) for channel in channels] == [[], []]
        assert shared.served() == {"toy": OLD}

    asyncio.run(run())


def test_one_that_ends_between_opening_and_serving_is_started_with_the_new_version() -> None:
    async def run() -> None:
        team, shared, channels = played(opens(NEW), opens(NEW))
        await started(shared)

        async def end(what: str) -> Any:
            team.workers[1].process.returncode = -9  # type: ignore[misc]
            return list(NEW)

        channels[1].play = lambda what, value: end(what)
        await shared.switch("toy", NEW)
        assert [names(channel) for channel in channels] == [["open", "serve"], ["open"]]
        assert shared.versions == {"toy": 2}

    asyncio.run(run())


def test_what_is_unloaded_stays_so_until_it_is_loaded() -> None:
    async def run() -> None:
        _, shared, channels = played(opens(NEW), opens(NEW))
        await started(shared)
        await shared.unload("toy")
        assert (shared.served(), set(shared.unloaded()), shared.reasons) == ({}, {"toy"}, {"toy": "unloaded"})
        await shared.switch("toy", NEW)
        await shared.tell("toy", "")
        assert [names(channel) for channel in channels] == [["unload"]] * 2
        assert shared.reasons == {"toy": "unloaded"}
        await shared.load("toy")
        assert (shared.served(), set(shared.unloaded()), shared.reasons) == ({"toy": NEW}, set(), {})

    asyncio.run(run())


def test_reasons_are_told_to_all_once() -> None:
    async def run() -> None:
        plays: list[Play] = [opens(NEW), lambda what, value: ArtifactError("damaged") if what == "open" else "why" if what == "reason" else None]
        _, shared, channels = played(*plays)
        await started(shared)
        for reason in ("", "bad", "bad", "", ""):
            await shared.tell("toy", reason)
        for channel in channels:
            assert channel.asked == [("tell", {"name": "toy", "reason": "bad"}), ("tell", {"name": "toy", "reason": ""})]
            channel.asked.clear()
        with pytest.raises(ArtifactError, match="damaged"):
            await shared.load("toy")
        assert channels[0].asked[-1] == ("tell", {"name": "toy", "reason": "why"})
        assert shared.reasons == {"toy": "why"}

    asyncio.run(run())


def test_workers_that_started_with_different_versions_go_over_to_one() -> None:
    async def run() -> None:
        _, shared, channels = played(opens(NEW), opens(NEW))
        await shared.start([told(OLD), told(NEW)])
        assert [names(channel) for channel in channels] == [["open", "serve"]] * 2
        assert shared.served() == {"toy": NEW}

    asyncio.run(run())


def test_of_a_worker_that_hangs_the_last_metrics_are_told() -> None:
    async def run() -> None:
        team, _, channels = played(lambda what, value: "first 1", lambda what, value: "second 2")
        assert [text.partition("\n")[0] for text in (await team.metrics())[:2]] == ["first 1", "second 2"]
        assert team.registry.get_sample_value("emberline_workers_missing") == 0
        channels[1].play = lambda what, value: asyncio.sleep(60)
        channels[0].play = lambda what, value: "first 3"
        texts = await team.metrics()
        assert list(texts[:2]) == ["first 3", "second 2"]
        assert "emberline_workers_missing 1.0" in texts[2]
        team.workers[1].process.returncode = -9  # type: ignore[misc]
        texts = await team.metrics()
        assert (len(texts), texts[0], "emberline_workers_missing 1.0" in texts[1]) == (2, "first 3", True)

    asyncio.run(run())


def test_a_model_that_is_not_there_is_told_as_such() -> None:
    async def run() -> None:
        _, shared, _ = played(fails(NotFoundError("there is none")), fails(NotFoundError("there is none")))
        await started(shared)
        with pytest.raises(NotFoundError, match="there is none"):
            await shared.load("nope")
        assert shared.reasons == {}

    asyncio.run(run())
