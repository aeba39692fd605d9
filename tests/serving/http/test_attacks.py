"""Bytes that are no request, or more than one: each is refused, or answered as what it is, and the server goes on."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy

LINE = b"POST /v1/models/toy:predict HTTP/1.1\r\n"
HOST = b"Host: x\r\n"
BODY = b'{"rows": [{"user": 100}]}'
PLAIN = LINE + HOST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
GOOD = LINE + HOST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy().write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(root, settings=ServerSettings(num_threads=1, delta_poll_s=0, max_request_bytes=1 << 16)) as server:
        yield server


def connect(server: EmbeddedServer) -> socket.socket:
    host, _, port = server.http_url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def statuses(server: EmbeddedServer, sent: bytes) -> list[int]:
    """The status of each answer to some bytes, until the server closes the connection."""
    with connect(server) as connection:
        connection.sendall(sent)
        found = b""
        while part := connection.recv(1 << 16):
            found += part
    return [int(answer[:3]) for answer in found.split(b"HTTP/1.1 ")[1:]]


def with_fields(*fields: bytes, body: bytes = BODY) -> bytes:
    return LINE + HOST + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def test_a_good_request_is_answered(server: EmbeddedServer) -> None:
    assert statuses(server, GOOD) == [200]


SIZE = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
HIDDEN = b"0\r\n\r\n" + GOOD


@pytest.mark.parametrize(
    "sent",
    [
        with_fields(SIZE, SIZE),
        with_fields(SIZE, b"Content-Length: 3"),
        with_fields(b"Content-Length: +25"),
        with_fields(b"Content-Length: 2 5"),
        with_fields(b"Content-Length: 0x19"),
        with_fields(b"Content-Length: 25,25"),
        with_fields(b"Content-Length: -25"),
        with_fields(b"Content-Length : 25"),
        with_fields(b"Content-Length: 18446744073709551641"),
        with_fields(SIZE, CHUNKED, body=HIDDEN),
        with_fields(CHUNKED, SIZE, body=HIDDEN),
        with_fields(CHUNKED, b"Content-Length: %d" % len(HIDDEN), body=HIDDEN),
        with_fields(CHUNKED, body=b"zz\r\n" + BODY),
        with_fields(CHUNKED, body=b"-5\r\n" + BODY),
        with_fields(CHUNKED, body=b"fffffffffffffffff\r\n" + BODY),
        with_fields(b"X: a\x00b", SIZE),
        with_fields(b"X: a\rY: b", SIZE),
        with_fields(b"no colon", SIZE),
        b"POST  HTTP/1.1\r\n" + HOST + SIZE + b"\r\n\r\n" + BODY,
        b"POST /v1/models/toy:predict HTTP/9.9\r\n" + HOST + SIZE + b"\r\n\r\n" + BODY,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    ],
)
def test_what_is_no_request_is_refused_once_and_nothing_in_it_is_answered(server: EmbeddedServer, sent: bytes) -> None:
    assert statuses(server, sent) in ([400], [413])
    assert statuses(server, GOOD) == [200]


def test_a_request_inside_a_body_is_no_request(server: EmbeddedServer) -> None:
    assert statuses(server, with_fields(b"Content-Length: %d" % len(GOOD), body=GOOD) + GOOD) == [400, 200]
    assert statuses(server, with_fields(CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)) + GOOD) == [400, 200]


@pytest.mark.parametrize("field", [b"Transfer-Encoding: identity", b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked, identity"])
def test_an_unknown_transfer_encoding_hides_nothing(server: EmbeddedServer, field: bytes) -> None:
    assert statuses(server, with_fields(field, SIZE, body=HIDDEN))[0] in (400, 413, 501)


def test_no_body_is_a_bad_body(server: EmbeddedServer) -> None:
    assert statuses(server, LINE + HOST + b"Content-Length: 0\r\n\r\n" + GOOD) == [400, 200]


@pytest.mark.parametrize("piece", [b"X-%d: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["many fields", "one field"])
def test_a_head_without_end_is_refused(server: EmbeddedServer, piece: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(LINE + HOST)
        try:
            for number in range(4000):
                connection.sendall(piece.replace(b"%d", b"%d" % number) if number or b"%d" in piece else b"X: " + piece)
        except OSError:
            pass  # it was closed, as it should be
        else:
            assert connection.recv(12) == b"HTTP/1.1 400"
    assert statuses(server, GOOD) == [200]


def test_many_requests_at_once_are_answered_in_their_order(server: EmbeddedServer) -> None:
    bodies = [json.dumps({"rows": [{}] * (number % 5)}).encode() for number in range(60)]
    sent = b"".join(with_fields(b"Content-Length: %d" % len(body), body=body) for body in bodies)
    with connect(server) as connection:
        connection.sendall(sent)
        found = b""
        rows: list[int] = []
        while len(rows) < 60:
            found += connection.recv(1 << 16)
            while (end := found.find(b"\r\n\r\n")) >= 0:
                size = int(found[:end].lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                if len(found) < end + 4 + size:
                    break
                rows.append(len(json.loads(found[end + 4 : end + 4 + size])["outputs"]["probs"]))
                found = found[end + 4 + size :]
    assert rows == [number % 5 for number in range(60)]


@pytest.mark.parametrize("sent", [LINE + HOST + b"X: ", LINE + HOST + SIZE + b"\r\n\r\n"], ids=["head", "body"])
def test_one_byte_now_and_then_keeps_no_connection_open(root: Path, sent: bytes) -> None:
    with EmbeddedServer(root, settings=ServerSettings(num_threads=1, delta_poll_s=0, timeout_s=0.3)) as server, connect(server) as connection:
        connection.sendall(sent)
        end = time.monotonic() + 30
        try:
            while time.monotonic() < end:
                connection.sendall(b" ")
                time.sleep(0.05)
        except OSError:
            return  # it was closed
    pytest.fail("it was kept open")


def read_one(connection: socket.socket) -> int:
    """The status of an answer, of which all bytes are read."""
    found = b""
    while (end := found.find(b"\r\n\r\n")) < 0 or len(found) < end + 4 + int(found.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
        part = connection.recv(1 << 16)
        assert part, found
        found += part
    return int(found[9:12])


def test_a_body_that_comes_after_its_answer_is_no_head(server: EmbeddedServer) -> None:
    with connect(server) as connection:
        connection.sendall(b"POST /nope HTTP/1.1\r\n" + HOST + b"Content-Length: 300000\r\n\r\n")
        assert read_one(connection) == 404
        connection.sendall(b"x" * 300000 + b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\n")
        assert read_one(connection) == 200


@pytest.mark.parametrize(
    ("sent", "more"),
    [
        (b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\nGET /v2 HTTP/1.1\r\nX", b": "),
        (b"GET /v2 HTTP/1.1\r\n" + HOST + b"Content-Length: 99\r\n\r\n", b"x"),
    ],
    ids=["the next head", "the body"],
)
def test_what_is_cut_after_an_answer_keeps_no_connection_open(root: Path, sent: bytes, more: bytes) -> None:
    with EmbeddedServer(root, settings=ServerSettings(num_threads=1, delta_poll_s=0, timeout_s=0.3)) as server, connect(server) as connection:
        connection.sendall(sent)
        assert read_one(connection) == 200
        connection.sendall(more)
        assert connection.recv(1) == b""


@pytest.mark.parametrize("size", [1, 40, len(PLAIN) - len(BODY), len(PLAIN) - 1])
def test_a_caller_that_leaves_half_way_is_forgotten(server: EmbeddedServer, size: int, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        with connect(server) as connection:
            connection.sendall(PLAIN[:size])
    assert statuses(server, GOOD) == [200]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_caller_that_never_reads_is_not_kept_answering(server: EmbeddedServer) -> None:
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.5)
        body = json.dumps({"rows": [{}] * 200}).encode()
        sent = with_fields(b"Content-Length: %d" % len(body), body=body) * 20_000
        with pytest.raises(TimeoutError):
            connection.sendall(sent)
        assert statuses(server, GOOD) == [200]
