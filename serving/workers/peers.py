"""What a worker asks of all workers, itself among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emberline.serving.workers.channel import Channel


@dataclass(frozen=True)
class Found:
    """What the workers answered that did, and how many did not: they are being started again, or hang."""

    answers: Sequence[Any]
    missing: int


class Peers:
    """All workers of a server.

    Args:
        channel: to the supervisor.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def ask(self, what: str, value: Any = None) -> Found:
        """Ask each of them.

        Raises:
            UnavailableError: the supervisor is gone.
        """
        found = await self._channel.ask("all", {"what": what, "value": value})
        return Found(found["answers"], found["missing"])

    async def change(self, what: str, name: str) -> None:
        """Load or unload a model in all of them, or in none.

        Raises:
            ServingError: one cannot; the others stay as they were.
        """
        await self._channel.ask(what, name)
