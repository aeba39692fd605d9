"""The workers that are there, and what all of them are asked."""

import asyncio
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from emberline.errors import UnavailableError
from emberline.serving.workers.channel import Channel

_ASK_S = 5.0
"""How long workers have to answer what is asked of all of them."""


class Worker:
    """One process, while it is there."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.channel: Channel | None = None
        self.models: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self.metrics = ""
        """What it last told of its metrics."""

    @property
    def came_up(self) -> bool:
        """Whether it ever served."""
        return self.models.done() and not self.models.cancelled() and self.models.exception() is None

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return self.came_up and self.process.returncode is None and self.channel is not None and self.channel.is_open

    async def ask(self, what: str, value: Any, timeout_s: float | None) -> Any:
        """What it answers.

        Raises:
            UnavailableError: it is gone.
            TimeoutError: it does not answer in time.
        """
        assert self.channel is not None
        async with asyncio.timeout(timeout_s):
            return await self.channel.ask(what, value)


class Team:
    """All workers of a server, by number.

    Args:
        size: how many there are to be.
        patience_s: how long they have to answer.
    """

    def __init__(self, size: int, patience_s: float = _ASK_S) -> None:
        self.size = size
        self._patience_s = patience_s
        self.workers: dict[int, Worker] = {}
        self.registry = CollectorRegistry()
        """Metrics of the server as a whole."""
        self._missing = Gauge("emberline_workers_missing", "Workers that are being started again, or do not answer", registry=self.registry)

    async def ask_all(self, what: str, value: Any, *, takes_long: bool = False) -> list[Any]:
        """The answer of each worker that is up, or its error; what takes long, such as to open a model, may take as long as it takes."""
        timeout_s = None if takes_long else self._patience_s
        return await asyncio.gather(*[worker.ask(what, value, timeout_s) for worker in self._up()], return_exceptions=True)

    async def metrics(self) -> Sequence[str]:
        """The metrics of each worker, of one that is up and does not answer those that it last told; and those of the server as a whole."""
        asked = self._up()
        answers = await asyncio.gather(*[worker.ask("metrics", None, self._patience_s) for worker in asked], return_exceptions=True)
        for worker, answer in zip(asked, answers, strict=True):
            if isinstance(answer, str):
                worker.metrics = answer
        self._missing.set(self.size - sum(isinstance(answer, str) for answer in answers))
        return [*[worker.metrics for worker in asked if worker.metrics and worker.is_up], generate_latest(self.registry).decode()]

    def require_all(self) -> None:
        """Make sure that all workers serve.

        Raises:
            UnavailableError: one is being started again.
        """
        if len(self._up()) != self.size:
            raise UnavailableError("a worker is being started again; ask later")

    def _up(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.is_up]
