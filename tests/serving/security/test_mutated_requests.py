"""Ten thousand requests that are nearly right, over real sockets: none is answered with a fault of ours, none hangs, and nothing is left of them."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import psutil  # type: ignore[import-untyped]
import pytest

from emberline.serving import Client
from emberline.serving.http.openapi import example_infer, example_row
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy
from tests.serving.security.mutations import HttpRequest, Mutator

LIMIT = 1 << 16
AT_ONCE = 16
HANGS_S = 30.0
QUIET_S = 0.2
OURS = {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS", "DEADLINE_EXCEEDED"}
INSIDE = (b"Traceback", b'File "', b".py", b"site-packages", b"see server log", b"its log says why")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    root = make_toy().write(tmp_path_factory.mktemp("models"))
    settings = ServerSettings(num_threads=1, delta_poll_s=0, version_poll_s=0, max_request_bytes=LIMIT, model_control=False)
    with EmbeddedServer(root.parent.parent, settings=settings) as server:
        yield server


def mutator(server: EmbeddedServer, seed: int) -> Mutator:
    schema = server.service.repository.get("toy").schema
    return Mutator(seed, example_infer(schema), {"rows": [example_row(schema), example_row(schema)]}, LIMIT)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of one answer.

    Raises:
        IncompleteReadError: the connection was closed.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(fields.get(b"content-length", b"0")))


async def ask_framed(place: tuple[str, int], requests: Sequence[HttpRequest]) -> list[tuple[bytes, int, bytes]]:
    """What each is answered, one after the other on connections that stay open as long as the server lets them."""
    found: list[tuple[bytes, int, bytes]] = []
    reader, writer = await asyncio.open_connection(*place)
    for request in requests:
        writer.write(request.data)
        status, body = await read_answer(reader)
        found.append((request.data, status, body))
        if status == 413:  # the server closes what is too large
            writer.close()
            reader, writer = await asyncio.open_connection(*place)
    writer.close()
    return found


async def ask_raw(place: tuple[str, int], request: HttpRequest) -> list[tuple[bytes, int, bytes]]:
    """All answers to bytes on a connection of their own; the caller ends it where nothing comes any more, and the server follows."""
    reader, writer = await asyncio.open_connection(*place)
    found = b""
    try:
        writer.write(request.data)
        while True:
            try:
                part = await asyncio.wait_for(reader.read(1 << 16), QUIET_S)
            except TimeoutError:
                break
            if not part:
                break
            found += part
        if writer.can_write_eof():
            writer.write_eof()
        found += await reader.read()
    except ConnectionError:
        pass
    finally:
        writer.close()
    statuses = [int(answer[:3]) for answer in found.split(b"HTTP/1.1 ")[1:]]
    return [(request.data, status, found) for status in statuses]


async def ask_all(place: tuple[str, int], framed: Sequence[HttpRequest], raw: Sequence[HttpRequest]) -> list[tuple[bytes, int, bytes]]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(request: HttpRequest) -> list[tuple[bytes, int, bytes]]:
        async with gate:
            return await ask_raw(place, request)

    parts = [ask_framed(place, framed[start::AT_ONCE]) for start in range(AT_ONCE)]
    found = await asyncio.wait_for(asyncio.gather(*parts, *map(one, raw)), 8 * HANGS_S)
    return [answer for part in found for answer in part]


def check_http(server: EmbeddedServer, framed: Sequence[HttpRequest], raw: Sequence[HttpRequest]) -> Counter[int]:
    host, port = server.http_url.removeprefix("http://").split(":")
    answers = asyncio.run(ask_all((host, int(port)), framed, raw))
    wrong = [(status, body[:500], data[:1000]) for data, status, body in answers if status >= 500 or any(word in body for word in INSIDE)]
    assert wrong == []
    for data, status, body in answers[: len(framed)]:
        if status >= 400:
            assert list(json.loads(body)) == ["error"], (body, data[:3000])
    return Counter(status for _, status, _ in answers)


def good_answers(server: EmbeddedServer) -> list[dict[str, Any]]:
    answers = []
    for url in (server.http_url, server.grpc_url):
        with Client(url, "toy") as client:
            found = client.predict([{"user": 100, "price": 2.0}, {"item": 3}])
            answers.append({name: values.tolist() for name, values in found.items()})
    return answers


def check_grpc(server: EmbeddedServer, calls: Sequence[tuple[str, bytes]]) -> Counter[str]:
    codes: Counter[str] = Counter()
    wrong = []
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        for start in range(0, len(calls), AT_ONCE):
            part = calls[start : start + AT_ONCE]
            sent = [channel.unary_unary(f"/inference.GRPCInferenceService/{name}", None, None).future(data, timeout=HANGS_S) for name, data in part]
            for (name, data), answer in zip(part, sent, strict=True):
                code, details = answer.code().name, answer.details() or ""
                if code in OURS or any(word.decode() in details for word in INSIDE):
                    wrong.append((name, code, details, data[:1000]))
                codes[code] += 1
    assert wrong == []
    return codes


@pytest.mark.parametrize("seed", [1])
def test_no_mutated_request_is_a_fault_of_ours(server: EmbeddedServer, seed: int) -> None:
    source, before = mutator(server, seed), good_answers(server)
    made = {"json": [source.json_request() for _ in range(3500)], "binary": [source.binary_request() for _ in range(2500)]}
    raw = [source.raw_request() for _ in range(1000)]
    calls = [source.grpc_call() for _ in range(3000)]
    half = len(raw) // 2
    check_http(server, made["json"][:1000] + made["binary"][:1000], raw[:half])  # what grows once has grown
    check_grpc(server, calls[:1000])
    memory = psutil.Process().memory_info().rss
    statuses = check_http(server, made["json"][1000:] + made["binary"][1000:], raw[half:])
    codes = check_grpc(server, calls[1000:])
    assert psutil.Process().memory_info().rss < memory + (64 << 20)
    # The requests are near enough to right ones that both ends are met.
    assert {200, 400, 413} <= statuses.keys()
    assert min(statuses[200], statuses[400]) > 100
    assert {"OK", "INVALID_ARGUMENT"} <= codes.keys()
    assert good_answers(server) == before
