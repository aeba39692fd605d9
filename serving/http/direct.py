"""Inference answered straight from the connection.

FastAPI and ASGI cost a request several times what the engine does. So uvicorn's connection is taught the few busy routes: a request for one of them
whose head is plain (see `heads`) is answered here, a small one at once (see `plans`), any other by the same functions that FastAPI's routes call.
All else goes to uvicorn's parser, and from there the usual way: other routes, heads in pieces, bodies that are compressed, chunked or too large,
callers that have to show a token and have none.

The connection is no public interface of uvicorn: `emberline.serving.server` takes this module with the releases that it was made for, and no others.
"""

import asyncio
import math
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from emberline.serving.http.heads import MOST_HEAD, Head, read_head
from emberline.serving.http.plans import QuickAnswers, head_fields
from emberline.serving.http.replies import Reply, error_reply
from emberline.serving.observe.context import CURRENT, REQUEST_ID, RequestContext, new_id
from emberline.serving.observe.observer import CANCELLED
from emberline.serving.protocol.tensors import Buffer
from emberline.serving.security.tokens import Tokens
from emberline.serving.service import Service

_END = b"\r\n\r\n"
_START = b"POST /v"
_ID_FIELD = REQUEST_ID.encode() + b": "
_AT_ONCE = 8
"""Requests of one connection that are answered before others get their turn: a caller may send any number together."""


_LATE_S = 0.05
_MOST_HEAD_BYTES = 1 << 16


class Starts:
    """First lines of answers, up to the request's id: uvicorn sets the fields that all of them have anew each second."""

    def __init__(self) -> None:
        self._fields: object = None
        self._by_status: dict[int, bytes] = {}

    def of(self, status: int, fields: list[tuple[bytes, bytes]]) -> bytes:
        """The status line, the fields, and the name of the field that has the id.

        Args:
            status: of the answer.
            fields: names and values; the same list always has the same.
        """
        if fields is not self._fields:
            self._fields, self._by_status = fields, {}
        found = self._by_status.get(status)
        if found is None:
            found = self._by_status[status] = b"".join([STATUS_LINE[status], *[b"%b: %b\r\n" % field for field in fields], _ID_FIELD])
        return found


class DirectProtocol(HttpToolsProtocol):
    """One HTTP connection.

    Args:
        config: uvicorn's.
        server_state: uvicorn's.
        app_state: uvicorn's.
        _loop: uvicorn's.
        service: what answers.
        quick: what answers small requests at once.
        starts: of answers, for all connections of a server.
        tokens: of which callers must show one; None where they need not.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        service: Service,
        quick: QuickAnswers,
        starts: Starts,
        tokens: Tokens | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._service, self._quick, self._starts, self._tokens = service, quick, starts, tokens
        self._head: Head | None = None
        """Of a request whose body is still coming here."""
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        """What answers a request that came here."""
        self._later = bytearray()
        """Bytes that came before their turn."""
        self._between = True
        """Whether the last byte that uvicorn's parser saw was the last of a request."""
        self._in_head = False
        """Whether uvicorn's parser is in a head."""
        self._head_bytes = 0
        """Of that head, those that came after its first."""
        self._ends = False
        self._gives_up_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; one that stays silent is closed."""
        super().connection_made(transport)
        self._wait_for_more(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of a connection; what it asked for is not computed any more."""
        if self._task is not None:
            self._task.cancel()
        self._later.clear()
        self._rest()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def shutdown(self) -> None:
        """Close the connection, after the answer to what is on its way."""
        if self._task is None and self._head is None and not self._later:
            super().shutdown()
        else:
            self._ends = True

    def resume_writing(self) -> None:
        """Go on with what came while the caller did not read its answers."""
        super().resume_writing()
        if self._later:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        if self._task is not None or self._later or self.flow.write_paused:
            self._keep(data)
        elif self._head is not None:
            self._add(self._head, data)
        elif data.startswith(_START) and self._is_free():
            self._take(data)
        else:
            self._leave(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP: uvicorn's answer, with an id."""
        fields = self.server_state.default_headers
        self.server_state.default_headers = [*fields, (REQUEST_ID.encode(), new_id().encode())]
        super().send_400_response(msg)
        self.server_state.default_headers = fields

    def on_message_begin(self) -> None:
        """Uvicorn's parser has the first byte of a request."""
        self._between, self._in_head, self._head_bytes = False, True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Uvicorn's parser has the last byte of a head."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Uvicorn's parser has the last byte of a request, unless it turns into something else than HTTP."""
        self._between = not self.parser.should_upgrade()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The app has answered: what came meanwhile is next."""
        super().on_response_complete()
        if self._later:
            self._go_on()

    def _is_free(self) -> bool:
        """Whether the next byte is the first of a request, and all before it are answered."""
        return self._between and (self.cycle is None or self.cycle.response_complete) and not self.pipeline and not self._ends

    def _take(self, data: bytes) -> None:
        """Answer requests, of which the first begins with the first byte."""
        self._unset_keepalive_if_required()
        start, answered, tokens = 0, 0, self._tokens
        while start < len(data):
            end = data.find(_END, start, start + MOST_HEAD)
            head = read_head(data[start : end + 4]) if end >= 0 else None
            if head is None or head.size > self._service.settings.max_request_bytes or not (tokens is None or tokens.allows(head.authorization)):
                self._leave(data[start:] if start else data)
                return
            stop = end + 4 + head.size
            if len(data) < stop:
                self._head, self._body = head, bytearray(data[end + 4 :])
                self._wait_for_more(self._service.settings.timeout_s)
                return
            self._answer(head, data[end + 4 : stop])
            start, answered = stop, answered + 1
            if start < len(data) and (self._task is not None or answered == _AT_ONCE or self.flow.write_paused or self.transport.is_closing()):
                self._keep(data[start:])
                if self._task is None and not self.flow.write_paused:
                    self.loop.call_soon(self._go_on)
                return

    def _add(self, head: Head, data: bytes) -> None:
        """More of a body."""
        missing = head.size - len(self._body)
        self._body += data if len(data) <= missing else data[:missing]
        if len(data) < missing:
            return
        body, self._head, self._body = self._body, None, bytearray()
        self._answer(head, body)
        if len(data) > missing:
            self._keep(data[missing:])
            if self._task is None:
                self._go_on()

    def _leave(self, data: bytes) -> None:
        """Give bytes to uvicorn's parser; a head that does not come to its end in time is given up, and so is a body that nobody waits for."""
        was_cut = self._is_cut()
        if not was_cut:
            self._rest()
        self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._head_bytes > _MOST_HEAD_BYTES:
            self.send_400_response("The head of the request is too long.")
            return
        is_cut = self._is_cut()
        if was_cut and not is_cut:
            self._rest()
        if self._gives_up_at == math.inf and (is_cut or (self._is_free() and self.timeout_keep_alive_task is None)):
            self._wait_for_more(self._service.settings.timeout_s)

    def _is_cut(self) -> bool:
        """Whether uvicorn's parser has the beginning of a request, and nothing else is going on: it is a head, or was answered before its end."""
        return not self._between and (self.cycle is None or self.cycle.response_complete)

    def _keep(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self._later += data
            self.flow.pause_reading()

    def _go_on(self) -> None:
        """Take the bytes whose turn it is now."""
        if self._task is not None or self.flow.write_paused:
            return
        if self._ends:
            self.transport.close()
            return
        data, self._later = bytes(self._later), bytearray()
        if data and not self.transport.is_closing():
            self.flow.resume_reading()
            self.data_received(data)

    def _answer(self, head: Head, body: Buffer) -> None:
        """Answer a request that is whole: at once, or by a task."""
        context = RequestContext(head.request_id, head.traceparent, head.authorization, head.call)
        CURRENT.set(context)
        if head.is_infer:
            try:
                parts = self._quick.answer(head, body)
            except Exception as error:  # noqa: BLE001 - one place turns every error into a status
                self._reply(error_reply(error), context)
                return
            if parts is not None:
                self._send(200, parts, context)
                return
        self._rest()
        self._task = self.loop.create_task(self._ask(head, body, context))
        self.tasks.add(self._task)
        self._task.add_done_callback(self.tasks.discard)

    async def _ask(self, head: Head, body: Buffer, context: RequestContext) -> None:
        try:
            reply = await head.ask(self._service, body, head.json_size)
        except asyncio.CancelledError:
            self._service.observer.finished(context, "http", CANCELLED)
            raise
        except Exception as error:  # noqa: BLE001 - as above
            reply = error_reply(error)
        self._task = None
        self._reply(reply, context)
        self._go_on()

    def _reply(self, reply: Reply, context: RequestContext) -> None:
        self._send(reply.status, [head_fields(reply.media_type, reply.header_length, reply.size, context.version), *reply.parts], context)

    def _send(self, status: int, parts: list[Buffer], context: RequestContext) -> None:
        """Send an answer: its head from the third line on, and the parts of its body."""
        observer = self._service.observer
        if status >= 400 or observer.sees_all:
            observer.finished(context, "http", status)
        if self.transport.is_closing():
            return
        start = self._starts.of(status, self.server_state.default_headers)
        pieces = [start, context.id.encode(), b"\r\nconnection: close\r\n" if self._ends else b"\r\n", *parts]
        if type(parts[-1]) is bytes:
            self.transport.write(b"".join(pieces))
        else:
            self.transport.writelines(pieces)
        self.server_state.total_requests += 1
        if self._ends:
            self.transport.close()
        else:
            self._wait_for_more(self.timeout_keep_alive)

    def _wait_for_more(self, seconds: float) -> None:
        """Close the connection unless bytes come in time. The timer is set anew only where it would be too late: most requests need none."""
        now = self.loop.time()
        self._gives_up_at = now + seconds
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._look)
        elif self._timer.when() > self._gives_up_at + _LATE_S:
            self._timer.cancel()
            self._timer = self.loop.call_later(seconds, self._look)

    def _rest(self) -> None:
        """Wait for nothing."""
        self._gives_up_at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        left = self._gives_up_at - self.loop.time()
        if left <= 0.001:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(left, self._look)
