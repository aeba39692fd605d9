"""Who asks in `soak.py`: one caller over HTTP/1.1 or gRPC, which opens its connection again where it is gone."""

import asyncio
from contextlib import suppress
from typing import Protocol

import grpc
import grpc.aio

from benchmarks._soak_requests import Bad, Good

Answer = tuple[int, dict[str, str], bytes]
"""Status (gRPC's codes as those of HTTP), headers by lower-case name, and body, or an error's text."""
_CALL = "/inference.GRPCInferenceService/"
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0))
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNIMPLEMENTED: 405,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Caller(Protocol):
    """One caller, with a connection of its own."""

    async def ask(self, request: Good | Bad) -> Answer:
        """Send a request and wait for the answer.

        Raises:
            OSError, EOFError: the server closed the connection.
        """

    async def leave(self, request: Bad) -> None:
        """Send something and hang up."""

    async def close(self) -> None:
        """Hang up."""


class HttpCaller:
    """Over HTTP/1.1.

    Args:
        port: of the server, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: Streams | None = None

    async def ask(self, request: Good | Bad) -> Answer:
        """See `Caller`."""
        reader, writer = await self._open()
        writer.write(request.raw)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection", "").lower() == "close":
            await self.close()
        return int(head[0].split()[1]), headers, body

    async def leave(self, request: Bad) -> None:
        """See `Caller`."""
        _, writer = await self._open()
        writer.write(request.raw)
        with suppress(OSError):
            await writer.drain()
        await self.close()

    async def close(self) -> None:
        """See `Caller`."""
        if self._streams is not None:
            await _hang_up(self._streams)
        self._streams = None

    async def _open(self) -> Streams:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        return self._streams


class GrpcCaller:
    """Over gRPC: what a request names no call for is bytes for the socket.

    Args:
        port: of the server, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._channel: grpc.aio.Channel | None = None

    async def ask(self, request: Good | Bad) -> Answer:
        """See `Caller`."""
        if not request.call:
            return await self._ask_by_bytes(request.raw)
        try:
            call = self._start(request)
            body = await call
            return 200, {name: value for name, value in await call.initial_metadata() if isinstance(value, str)}, body
        except grpc.aio.AioRpcError as error:
            return _STATUSES.get(error.code(), 500), {}, f"{error.code().name} {error.details()}".encode()

    async def leave(self, request: Bad) -> None:
        """See `Caller`."""
        if not request.call:
            streams = await asyncio.open_connection("127.0.0.1", self._port)
            streams[1].write(request.raw)
            await _hang_up(streams)
            return
        call = self._start(request)
        await asyncio.sleep(0.001)
        call.cancel()

    async def close(self) -> None:
        """See `Caller`."""
        if self._channel is not None:
            await self._channel.close(None)
        self._channel = None

    def _start(self, request: Good | Bad) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._port}", options=_OPTIONS)
        call = self._channel.unary_unary(_CALL + request.call, None, None)
        return call(request.raw, compression=grpc.Compression.Gzip if request.compressed else grpc.Compression.NoCompression)

    async def _ask_by_bytes(self, raw: bytes) -> Answer:
        streams = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            streams[1].write(raw)
            await streams[0].read()  # to the end: the server hangs up
            raise EOFError
        finally:
            await _hang_up(streams)


async def _hang_up(streams: Streams) -> None:
    streams[1].close()
    with suppress(OSError):
        await streams[1].wait_closed()
