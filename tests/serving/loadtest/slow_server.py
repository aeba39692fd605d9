"""A server that answers every request after a known time, for load tests to measure."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from emberline.schema import ModelSchema
from emberline.serving.triton.config import SCHEMA_PARAMETER

Answer = Callable[[int], tuple[float, int]]
"""The number of a request, in the order that they come -> seconds until its answer, and its status; 0 hangs up."""


class SlowServer:
    """Over HTTP/1.1, in a thread.

    Args:
        schema: of the one model, `slow`.
        answer: when and how requests are answered.

    Attributes:
        bodies: of the requests that came.
        headers: the same.
    """

    def __init__(self, schema: ModelSchema, answer: Answer) -> None:
        self._config = json.dumps({"parameters": {SCHEMA_PARAMETER: {"string_value": json.dumps(schema.to_dict())}}}).encode()
        self._answer = answer
        self.bodies: list[bytes] = []
        self.heads: list[str] = []
        self.url = ""

    async def run(self, started: threading.Event, stop: asyncio.Event) -> None:
        connections: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await self._serve(reader, writer)
            writer.close()
            connections.discard(task)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(line.partition(":")[2]) for line in head.splitlines() if line.lower().startswith("content-length:")), 0)
            body = await reader.readexactly(length)
            status, answer = 200, self._config
            if head.startswith("POST"):
                number = len(self.bodies)
                self.bodies.append(body)
                self.heads.append(head)
                wait_s, status = self._answer(number)
                await asyncio.sleep(wait_s)
                answer = b"{}"
            if not status:
                return
            fields = f"Content-Length: {len(answer)}\r\nContent-Type: application/json\r\nX-Model-Version: 7"
            writer.write(f"HTTP/1.1 {status} X\r\n{fields}\r\n\r\n".encode() + answer)


@contextmanager
def slow_server(schema: ModelSchema, answer: Answer) -> Iterator[SlowServer]:
    """It runs until the block ends."""
    server, started = SlowServer(schema, answer), threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.run(started, stop),), daemon=True)
    thread.start()
    try:
        assert started.wait(30)
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
