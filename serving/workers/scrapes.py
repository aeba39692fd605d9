"""A port that has only /metrics: those of all workers together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from emberline.errors import LaunchError
from emberline.serving.metrics import CONTENT_TYPE
from emberline.serving.workers.merging import merge_metrics

_HEAD_S = 10.0
Scrape = Callable[[], Awaitable[Sequence[str]]]


@asynccontextmanager
async def metrics_port(host: str, port: int | None, scrape: Scrape, *, shared_tables: bool = False) -> AsyncIterator[int | None]:
    """Serve while open; gives the port, None where none is asked for.

    Args:
        host: to listen on.
        port: 0 takes a free one.
        scrape: the texts of all workers.
        shared_tables: see `merge_metrics`.

    Raises:
        LaunchError: the port is taken.
    """
    if port is None:
        yield None
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, body = b"404 Not Found", b""
            if head.split(b" ", 2)[:2] in ([b"GET", b"/metrics"], [b"GET", b"/"]):
                status, body = b"200 OK", await asyncio.to_thread(merge_metrics, await scrape(), shared_tables=shared_tables)
            fields = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close" % (CONTENT_TYPE.encode(), len(body))
            writer.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, fields, body))
            await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(answer, host, port)
    except OSError as error:
        raise LaunchError(f"cannot listen on {host}:{port} for metrics: {error.strerror}; choose another --metrics-port") from None
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
