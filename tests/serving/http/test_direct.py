"""Requests that are answered straight from the connection, as bytes on a socket, beside the same ones that go through FastAPI."""

import http.client
import json
import socket
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn

from emberline.serving.http.direct import DirectProtocol
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy, random_request

BODY = b'{"rows": [{"user": 100}]}'
PREDICT = b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy().write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(root, settings=ServerSettings(num_threads=1, delta_poll_s=0)) as server:
        yield server


def connect(server: EmbeddedServer) -> socket.socket:
    host, _, port = server.http_url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def with_length(body: bytes, head: bytes = PREDICT) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, head: bytes = PREDICT) -> bytes:
    return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def read_answers(connection: socket.socket, count: int) -> list[tuple[int, Any]]:
    """Status and JSON of so many answers, in the order in which they come."""
    found = []
    with connection.makefile("rb") as stream:
        for _ in range(count):
            status, length = int(stream.readline().split()[1]), 0
            while line := stream.readline().strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            found.append((status, json.loads(stream.read(length))))
    return found


def ask(server: EmbeddedServer, *parts: bytes, count: int = 1) -> list[tuple[int, Any]]:
    with connect(server) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.01)
        return read_answers(connection, count)


def users(*values: Any) -> list[bytes]:
    return [json.dumps({"rows": [{"user": value}]}).encode() for value in values]


def test_both_ways_give_one_answer(server: EmbeddedServer) -> None:
    (direct,), (through_app,) = ask(server, with_length(BODY)), ask(server, chunked(BODY))
    assert direct == through_app
    assert direct[0] == 200


@pytest.mark.parametrize("make", [with_length, chunked])
@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [(b"{", 400, "is not JSON"), (b'{"rows": [{"usr": 1}]}', 400, "did you mean 'user'"), (b'{"rows": 1}', 400, "rows must be an array")],
)
def test_both_ways_refuse_alike(server: EmbeddedServer, make: Callable[[bytes], bytes], body: bytes, status: int, problem: str) -> None:
    ((found, answer),) = ask(server, make(body))
    assert (found, problem in answer["error"]) == (status, True)


def test_another_uvicorn_answers_alike_through_the_app_alone(
    server: EmbeddedServer, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["optional-dependencies"]["serve"]
    assert f"uvicorn>={uvicorn.__version__.rpartition('.')[0]}," in "".join(wanted)
    want = ask(server, with_length(BODY))
    monkeypatch.setattr(uvicorn, "__version__", "0.55.0")
    monkeypatch.setattr(DirectProtocol, "__init__", lambda *args, **kwargs: pytest.fail("its insides are not known"))
    with EmbeddedServer(root, settings=ServerSettings(num_threads=1, delta_poll_s=0, max_batch_rows=8)) as other:
        assert ask(other, with_length(BODY)) == want
    assert [record.getMessage()[:30] for record in caplog.records] == ["uvicorn is 0.55.0, not 0.54.x:"]


def test_requests_sent_at_once_are_answered_in_their_order(server: EmbeddedServer) -> None:
    bodies = users(100, -7, 200, 5, 6)
    want = [ask(server, with_length(body))[0] for body in bodies]
    mixed = [chunked(body) if place % 2 else with_length(body) for place, body in enumerate(bodies)]
    assert ask(server, b"".join(mixed), count=5) == want
    assert ask(server, b"".join(reversed(mixed)), count=5) == want[::-1]


def test_a_body_in_pieces_is_read_whole(server: EmbeddedServer) -> None:
    request = with_length(BODY)
    want = ask(server, request)
    for size in (1, 7, 40):
        pieces = [request[start : start + size] for start in range(0, len(request), size)]
        assert ask(server, *pieces[:3], b"".join(pieces[3:])) == want
    assert ask(server, request[:-3], request[-3:] + request, count=2) == want * 2


def test_a_long_body_is_answered(server: EmbeddedServer) -> None:
    body = json.dumps({"rows": [{"user": 100}] * 9000}).encode()
    assert len(body) > 1 << 17
    ((status, answer),) = ask(server, with_length(body))
    assert (status, len(answer["outputs"]["probs"])) == (200, 9000)


@pytest.mark.parametrize("head", [b"POST /v1/models/toy:predict HTTP/1.0\r\n", PREDICT + b"Connection: close\r\n"])
def test_a_connection_that_is_to_end_ends_after_the_answer(server: EmbeddedServer, head: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(with_length(BODY, head))
        assert read_answers(connection, 1)[0][0] == 200
        assert connection.recv(1) == b""


def test_a_caller_that_waits_to_be_told_to_go_on_is_told(server: EmbeddedServer) -> None:
    with connect(server) as connection:
        connection.sendall(PREDICT + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_answers(connection, 1) == ask(server, with_length(BODY))


@pytest.mark.parametrize("length", [b"x", b"-1", b"99999999999999999999999"])
def test_a_length_that_is_none_is_refused_and_the_server_goes_on(server: EmbeddedServer, length: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(PREDICT + b"Content-Length: " + length + b"\r\n\r\n" + BODY)
        assert connection.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 413")
    assert ask(server, with_length(BODY))[0][0] == 200


@pytest.mark.parametrize("path", [b"/v1/models/..:predict", b"/v2/models/../infer", b"/v2/models/toy/versions/../infer", b"/v2/models/%2e%2e/infer"])
@pytest.mark.parametrize("make", [with_length, chunked])
def test_names_that_are_paths_find_nothing(server: EmbeddedServer, path: bytes, make: Callable[[bytes, bytes], bytes], root: Path) -> None:
    ((status, answer),) = ask(server, make(b'{"inputs": []}' if b"infer" in path else BODY, b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n"))
    assert status == 404
    assert str(root.parents[1]) not in json.dumps(answer)


def test_requests_that_send_the_same_header_again_are_each_read(server: EmbeddedServer) -> None:
    model = make_toy()
    with closing(http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)) as connection:
        for seed in range(6):
            request = random_request(model.schema, num_rows=2, seed=seed // 2, raw_ids=(100, -7))
            request["ids"] = request["ids"].copy()
            users = int(request["lengths"][:2].sum())
            request["ids"][:users] = (100, -7)[seed % 2]
            arrays = {name: values[None] for name, values in request.items()}
            inputs = [
                {"name": name, "shape": values.shape, "datatype": _DATATYPES[values.dtype.name], "parameters": {"binary_data_size": values.nbytes}}
                for name, values in arrays.items()
            ]
            header = json.dumps({"inputs": inputs, "outputs": [{"name": "lookup.wide", "parameters": {"binary_data": True}}]}).encode()
            body = header + b"".join(values.tobytes() for values in arrays.values())
            connection.request("POST", "/v2/models/toy/infer", body, {"Inference-Header-Content-Length": str(len(header))})
            answer = connection.getresponse()
            content, size = answer.read(), int(answer.headers["Inference-Header-Content-Length"])
            found = np.frombuffer(content[size:], np.float32).reshape(2, 4)
            np.testing.assert_allclose(found, model.answers(request)["group.wide"].numpy(), rtol=1e-5, atol=1e-6)


_DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}


@pytest.mark.parametrize("sent", [b"", b"POST /v1/mo", PREDICT + b"Content-", with_length(BODY)[:-2]])
def test_a_request_that_does_not_go_on_is_given_up(root: Path, sent: bytes) -> None:
    with EmbeddedServer(root, settings=ServerSettings(num_threads=1, delta_poll_s=0, timeout_s=0.3)) as server, connect(server) as connection:
        if sent:
            connection.sendall(sent)
            assert connection.recv(1) == b""
        connection.settimeout(0.5)
        if not sent:  # an idle connection may stay: clients keep some for later
            with pytest.raises(TimeoutError):
                connection.recv(1)


def test_a_body_that_stops_on_its_way_to_the_app_is_told(root: Path) -> None:
    with EmbeddedServer(root, settings=ServerSettings(num_threads=1, delta_poll_s=0, timeout_s=0.3)) as server, connect(server) as connection:
        connection.sendall(chunked(BODY)[:-6])
        assert read_answers(connection, 1) == [(504, {"error": "the body did not come within 0.3 s"})]


@pytest.mark.parametrize("make", [with_length, chunked])
def test_what_a_caller_that_left_asked_for_is_not_computed(root: Path, make: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedServer(root, settings=ServerSettings(num_threads=1, delta_poll_s=0)) as server:
        model = server.service.repository.get("toy")
        answer, entered, go, asked = model.engine.predict_many, threading.Event(), threading.Event(), []

        def hold(requests: Any, names: Any) -> Any:
            entered.set()
            assert go.wait(60)
            asked.append(len(requests))
            return answer(requests, names)

        model.engine.predict_many = hold  # type: ignore[assignment, method-assign]
        with connect(server) as patient, connect(server) as leaving:
            patient.sendall(make(BODY))
            assert entered.wait(60)
            leaving.sendall(make(BODY))
            _wait_until(lambda: model._scheduler.num_waiting == 1)
            leaving.close()
            _wait_until(lambda: model.statistics.fail_count == 1)
            go.set()
            assert read_answers(patient, 1)[0][0] == 200
        assert ask(server, make(BODY))[0][0] == 200
        assert asked == [1, 1]
    assert not caplog.records


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


@pytest.mark.parametrize("make", [with_length, chunked])
def test_a_fault_of_ours_is_logged_once_and_told_without_its_inside(
    server: EmbeddedServer, make: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> Any:
        raise ValueError("/secret/path")

    monkeypatch.setattr(server.service, "answer_rows", fail)
    ((status, answer),) = ask(server, make(BODY))
    assert (status, answer) == (500, {"error": "the server failed to answer this request; its log says why"})
    assert [record.getMessage() for record in caplog.records] == ["a request failed"]
    assert "/secret/path" in caplog.text
