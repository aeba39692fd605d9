"""Inference answered straight from the connection.

FastAPI and ASGI cost a request several times what the engine does. So uvicorn's connection is taught the few busy routes: a request for one of them
whose body is plain and of a known size is answered here by the same functions that FastAPI's routes call. All else goes the usual way: other
routes, bodies that are compressed, chunked or too large, requests sent before the last one was answered.

The connection is no public interface of uvicorn: `emberline.serving.server` takes this module with the releases that it was made for, and no others.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from emberline.serving.http.replies import HEADER_LENGTH, Reply, error_reply, reply_infer, reply_rows
from emberline.serving.service import Service

_INFER = re.compile(rb"/v2/models/([\w.~-]+)(?:/versions/([\w.~-]+))?/infer")
_ROWS = re.compile(rb"/v1/models/([\w.~-]+):(predict|lookup)")
_NAME = HEADER_LENGTH.lower().encode()
_MAX_URL = 512
"""Longer ones are not remembered."""
Ask = Callable[[Service, bytearray, str | None], Coroutine[Any, Any, Reply]]


@lru_cache(maxsize=512)
def _find_route(url: bytes) -> Ask | None:
    """What answers a path; None where that is for FastAPI."""
    if (found := _INFER.fullmatch(url)) is not None:
        name, version = found[1].decode(), (found[2] or b"").decode()
        return lambda service, body, header_length: reply_infer(service, body, header_length, name, version)
    if (found := _ROWS.fullmatch(url)) is not None:
        name, verb = found[1].decode(), found[2].decode()
        return lambda service, body, _: reply_rows(service, body, name, verb)
    return None


class _Exchange:
    """One request and its answer, with what uvicorn's connection looks at in the exchange that is going on."""

    __slots__ = ("ask", "body", "disconnected", "header_length", "keep_alive", "message_event", "more_body", "response_complete", "task")

    def __init__(self, ask: Ask, header_length: str | None, keep_alive: bool) -> None:
        self.ask = ask
        self.header_length = header_length
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.message_event = self
        self.task: asyncio.Task[None] | None = None

    def set(self) -> None:
        """Nobody waits for parts of the body."""


class DirectProtocol(HttpToolsProtocol):
    """One HTTP connection.

    Args:
        config: uvicorn's.
        server_state: uvicorn's.
        app_state: uvicorn's.
        _loop: uvicorn's.
        service: what answers.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        service: Service,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._service = service
        self._exchange: _Exchange | None = None
        """The request that is answered here, from its head to the end of its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; one that stays silent is closed."""
        super().connection_made(transport)
        self._wait_for_more(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of a connection; what it asked for is not computed any more."""
        exchange = self._exchange
        if exchange is not None and exchange.task is not None:
            exchange.task.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Take bytes; one whose request does not go on is closed."""
        super().data_received(data)
        exchange = self._exchange
        is_cut = exchange.more_body if exchange is not None else self.cycle is None or self.cycle.response_complete
        if is_cut and self.timeout_keep_alive_task is None:
            self._wait_for_more(self._service.settings.timeout_s)

    def on_headers_complete(self) -> None:
        """Decide who answers."""
        exchange = self._begin()
        if exchange is None:
            super().on_headers_complete()
        else:
            self._exchange = exchange
            self.cycle = exchange  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body."""
        exchange = self._exchange_that_comes()
        if exchange is not None:
            exchange.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Answer a request that is whole."""
        super().on_message_complete()
        exchange = self._exchange_that_comes()
        if exchange is not None:
            exchange.task = self.loop.create_task(self._answer(exchange))
            self.tasks.add(exchange.task)
            exchange.task.add_done_callback(self.tasks.discard)

    def _exchange_that_comes(self) -> _Exchange | None:
        """The exchange whose body is being read; None while that is of a request for FastAPI."""
        exchange, current = self._exchange, cast(object, self.cycle)
        return exchange if exchange is current else None

    def _begin(self) -> _Exchange | None:
        """The exchange for a request that is answered here; None for all others."""
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        ask = _find_route(self.url) if len(self.url) <= _MAX_URL else None
        if ask is None or self.parser.get_method() != b"POST" or self.expect_100_continue or self.parser.should_upgrade():
            return None
        size, header_length = b"", None
        for name, value in self.headers:
            if name == b"content-length":
                size = value
            elif name == _NAME and header_length is None:
                header_length = value.decode("latin-1")
            elif name in (b"transfer-encoding", b"content-encoding"):
                return None
        if not size.isdigit() or len(size) > 18 or int(size) > self._service.settings.max_request_bytes:
            return None
        return _Exchange(ask, header_length, self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive())

    async def _answer(self, exchange: _Exchange) -> None:
        try:
            reply = await exchange.ask(self._service, exchange.body, exchange.header_length)
        except Exception as error:  # noqa: BLE001 - one place turns every error into a status
            reply = error_reply(error)
        self.transport.write(self._head(reply, exchange.keep_alive) + reply.body)
        if self.flow.write_paused:
            await self.flow.drain()
        exchange.response_complete = True
        self._exchange = None
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _head(self, reply: Reply, keep_alive: bool) -> bytes:
        fields = b"".join([b"%b: %b\r\n" % field for field in self.server_state.default_headers])
        if reply.header_length is not None:
            fields += b"%b: %d\r\n" % (_NAME, reply.header_length)
        if not keep_alive:
            fields += b"connection: close\r\n"
        return b"%bcontent-type: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            STATUS_LINE[reply.status],
            reply.media_type.encode(),
            fields,
            len(reply.body),
        )

    def _wait_for_more(self, seconds: float) -> None:
        """Close the connection unless bytes come in time."""
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)
