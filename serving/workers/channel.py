"""Questions and answers between two processes, over a pair of sockets: JSON, one message a line."""

import asyncio
import itertools
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Self

from emberline import errors
from emberline.errors import EmberlineError, ServingError, UnavailableError

_log = logging.getLogger(__name__)
_MOST_BYTES = 1 << 26
Answer = Callable[[str, Any], Awaitable[Any]]
"""Answers a question: its name, and what comes with it."""


class Channel:
    """One end. Make it with `open`.

    Args:
        reader: from the other end.
        writer: to the other end.
        answer: answers what the other end asks.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        self._reader, self._writer, self._answer = reader, writer, answer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, end: socket.socket, answer: Answer) -> Self:
        """Use one of a pair of connected sockets."""
        return cls(*await asyncio.open_connection(sock=end, limit=_MOST_BYTES), answer)

    @property
    def is_open(self) -> bool:
        """Whether the other end is there."""
        return not self._reading.done()

    async def ask(self, what: str, value: Any = None) -> Any:
        """What the other end answers.

        Raises:
            EmberlineError: what it raised.
            UnavailableError: it is gone.
        """
        if not self.is_open:
            raise UnavailableError("a worker of the server has ended")
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            self._write(_line({"ask": number, "what": what, "value": value}))
            return await future
        finally:
            del self._asked[number]

    async def closed(self) -> None:
        """Wait until the other end is gone."""
        await asyncio.wait({self._reading})

    def close(self) -> None:
        """Say no more, and do no more of what was asked."""
        self._writer.close()
        for task in (self._reading, *self._answering):
            task.cancel()

    def _write(self, line: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(line)

    async def _read(self) -> None:
        try:
            with suppress(ConnectionError):
                while line := await self._reader.readline():
                    self._take(json.loads(line))
        finally:
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(UnavailableError("a worker of the server has ended"))

    def _take(self, message: dict[str, Any]) -> None:
        if "ask" in message:
            task = asyncio.create_task(self._reply(message["ask"], message["what"], message["value"]))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif (future := self._asked.get(message["answer"])) is not None and not future.done():
            if "error" in message:
                future.set_exception(getattr(errors, message["kind"])(message["error"]))
            else:
                future.set_result(message["value"])

    async def _reply(self, number: int, what: str, value: Any) -> None:
        try:
            line = _line({"answer": number, "value": await self._answer(what, value)})
        except EmberlineError as error:
            line = _line({"answer": number, "error": str(error), "kind": type(error).__name__})
        except Exception as error:  # noqa: BLE001 - the other end must hear of it, also where the answer cannot be said
            _log.error("%s failed", what, exc_info=error)
            line = _line({"answer": number, "error": "a worker of the server failed; its log says why", "kind": ServingError.__name__})
        self._write(line)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
