"""Small requests that are answered in the event loop, beside the same ones that the model's thread answers."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from emberline.errors import ServingError
from emberline.serving.http.heads import read_head
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy, random_request

LENGTH = "Inference-Header-Content-Length"
DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    root = make_toy().write(tmp_path_factory.mktemp("models"))
    with EmbeddedServer(root, settings=ServerSettings(num_threads=1, delta_poll_s=0, max_request_ids=500)) as server:
        yield server


def binary(arrays: dict[str, Any], outputs: list[str] | None, **more: Any) -> tuple[bytes, int]:
    inputs = [
        {"name": name, "shape": [1, values.size], "datatype": DATATYPES[values.dtype.name], "parameters": {"binary_data_size": values.nbytes}}
        for name, values in arrays.items()
    ]
    named = {} if outputs is None else {"outputs": [{"name": name} for name in outputs]}
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}, **named, **more}).encode()
    return header + b"".join(values.tobytes() for values in arrays.values()), len(header)


def ask(server: EmbeddedServer, body: bytes, json_size: int) -> tuple[int, bytes, str | None]:
    with closing(http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)) as connection:
        connection.request("POST", "/v2/models/toy/infer", body, {LENGTH: str(json_size)})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers.get(LENGTH)


def both_ways(
    server: EmbeddedServer, body: bytes, json_size: int, monkeypatch: pytest.MonkeyPatch, *, counted: int = 2
) -> tuple[int, bytes, str | None]:
    """What the thread answers, which is what the loop answers, twice: the model counts so many of these."""
    model = server.service.repository.get("toy")
    monkeypatch.setattr(model.pace, "most_bytes", 0)
    want = ask(server, body, json_size)
    asked: list[int] = []
    wait = model._scheduler.ask

    def count(*args: Any, **options: Any) -> Any:
        asked.append(1)
        return wait(*args, **options)

    monkeypatch.setattr(model.pace, "most_bytes", 1 << 20)
    monkeypatch.setattr(model._scheduler, "ask", count)
    before = model.statistics.success_count + model.statistics.fail_count
    for _ in range(2):  # as it is read for the first time, and as it is remembered
        assert ask(server, body, json_size) == want
    assert model.statistics.success_count + model.statistics.fail_count == before + counted
    assert not asked
    return want


@pytest.mark.parametrize("outputs", [None, ["probs"], ["lookup.wide", "probs"], ["known"]])
@pytest.mark.parametrize("rows", [1, 7])
def test_the_loop_answers_what_the_thread_answers(
    server: EmbeddedServer, rows: int, outputs: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = random_request(make_toy().schema, num_rows=rows, seed=rows, raw_ids=(100, -7))
    status, answer, size = both_ways(server, *binary(request, outputs, id="a"), monkeypatch)
    assert (status, json.loads(answer[: int(size or 0)])["id"]) == (200, "a")
    if outputs == ["lookup.wide", "probs"]:
        found = np.frombuffer(answer[int(size or 0) :], np.float32, rows * 4).reshape(rows, 4)
        np.testing.assert_allclose(found, make_toy().answers(request)["group.wide"].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", ["lengths", "name", "output", "size", "many", "empty"])
def test_what_is_wrong_is_told_alike(server: EmbeddedServer, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = random_request(make_toy().schema, num_rows=2, seed=1, raw_ids=(100,))
    if change == "lengths":
        request["lengths"] = np.full_like(request["lengths"], -1)
    elif change == "name":
        request["nope"] = request.pop("ids")
    elif change == "many":
        request["ids"] = np.zeros(501, np.int64)
    elif change == "empty":
        request = {name: values[:0] for name, values in request.items()}
    body, size = binary(request, ["nope"] if change == "output" else ["probs"])
    status, answer, _ = both_ways(server, body[:-4] if change == "size" else body, size, monkeypatch, counted=0 if change == "size" else 2)
    assert (status, b"error" in answer) in ([(200, False)] if change == "empty" else [(400, True), (413, True)])


@pytest.mark.parametrize(
    "field",
    [
        b"Transfer-Encoding: chunked",
        b"Content-Encoding: gzip",
        b"Expect: 100-continue",
        b"Connection: close",
        b"Connection: upgrade",
        b"Upgrade: h2c",
        b"Content-Length: 3",
        b"content-length: 3",
        b" folded",
        b"x: a\rb",
        b"x: a\nb: c",
        b"x y: z",
    ],
)
def test_a_head_that_is_out_of_the_ordinary_is_left_to_the_parser(field: bytes) -> None:
    head = b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n%b\r\n\r\n"
    plain = read_head(head % b"A: b")
    assert plain is not None
    assert (plain.model, plain.version, plain.size, plain.json_size) == ("toy", "", 3, None)
    assert read_head(head % field) is None


@pytest.mark.parametrize("line", [b"GET /v2/models/toy/infer HTTP/1.1", b"POST /v2/models/toy/infer HTTP/1.0", b"POST /v2/models/../infer HTTP/1.1x"])
def test_other_requests_are_left_to_the_parser(line: bytes) -> None:
    assert read_head(line + b"\r\nContent-Length: 3\r\n\r\n") is None


def test_an_error_of_the_engine_is_told_and_counted(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = server.service.repository.get("toy")
    monkeypatch.setattr(model.pace, "most_bytes", 1 << 20)
    monkeypatch.setattr(model.engine, "predict_many", lambda *args: [ServingError("no memory")])
    body, size = binary(random_request(make_toy().schema, num_rows=1, seed=1, raw_ids=(100,)), ["probs"])
    before = model.statistics.fail_count
    assert ask(server, body, size)[:2] == (500, b'{"error":"no memory"}')
    assert model.statistics.fail_count == before + 1
