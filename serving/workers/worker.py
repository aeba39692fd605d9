"""One of several processes that serve the same.

    python -m emberline.serving.workers.worker FD

FD is its end of a pair of sockets. It is told there what to serve, tells when it is ready, and ends when it is told to by SIGTERM or when the
supervisor is gone.
"""

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from emberline.errors import EmberlineError, UnavailableError
from emberline.serving.http.openapi import example_row
from emberline.serving.live.aside import end_process
from emberline.serving.log import start_logging
from emberline.serving.model import LoadedModel
from emberline.serving.repository import Repository
from emberline.serving.server import Running, run_server
from emberline.serving.service import Service
from emberline.serving.workers.channel import Channel
from emberline.serving.workers.peers import Peers
from emberline.serving.workers.setup import Setup

_log = logging.getLogger(__name__)


class _Worker:
    """What this process answers the supervisor, once it serves."""

    def __init__(self) -> None:
        self.service: Service | None = None

    async def answer(self, what: str, value: Any) -> Any:
        """Answer one question."""
        service = self.service
        if service is None:
            raise UnavailableError("the worker is being started")
        answers: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "ready": lambda: service.is_ready_here(value),
            "statistics": lambda: _now(lambda: service.statistics_here(value)),
            "metrics": lambda: _now(lambda: service.metrics.render().decode()),
            "open": lambda: service.open_here(value["name"], value["version"]),
            "serve": lambda: service.serve_opened(value),
            "drop": lambda: service.drop_opened(value),
            "unload": lambda: service.unload_here(value),
            "reason": lambda: _now(lambda: service.repository.reason(value)),
            "tell": lambda: service.tell(value["name"], value["reason"]),
        }
        return await answers[what]()


def _told(model: LoadedModel) -> dict[str, Any]:
    """What the supervisor is told of a model."""
    example = json.dumps({"rows": [example_row(model.schema)]})
    return {"name": model.name, "version": model.version, "digest": model.identity.digest, "delta": model.engine.delta, "example": example}


async def _now(answer: Callable[[], Any]) -> Any:
    return answer()


async def _serve(end: socket.socket) -> int:
    worker, stop = _Worker(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)  # a Ctrl-C is told to the supervisor too
    channel = await Channel.open(end, worker.answer)
    setup = Setup.from_dict(await channel.ask("setup"))
    start_logging(setup.settings.observe.log_format)

    def on_ready(running: Running) -> None:
        worker.service = running.service
        repository = running.service.repository
        models = [{**_told(model), "reason": repository.reason(model.name)} for model in repository]
        telling.append(asyncio.create_task(tell_up(repository, models)))

    async def tell_up(repository: Repository, models: list[dict[str, Any]]) -> None:
        reasons = await channel.ask("up", models)
        for name, reason in (reasons or {}).items():
            repository.tell(name, reason)

    async def end_with_supervisor() -> None:
        await channel.closed()
        stop.set()

    telling = [asyncio.create_task(end_with_supervisor())]
    try:
        await run_server(setup.models, setup.settings, on_ready, stop, peers=Peers(channel), versions=setup.versions)
    except EmberlineError as error:
        _log.error("%s", error)
        with contextlib.suppress(UnavailableError):
            await channel.ask("down", {"kind": type(error).__name__, "message": str(error)})
        return 1
    finally:
        channel.close()
        for task in telling:
            task.cancel()
    return 0


def main() -> None:
    """Serve until told to end."""
    start_logging()
    sys.exit(end_process(uvloop.run(_serve(socket.socket(fileno=int(sys.argv[1]))))))


if __name__ == "__main__":
    main()
