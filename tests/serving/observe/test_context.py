"""Ids of requests, and the versions that answer them, in what a caller gets back: over HTTP, answered directly and by FastAPI, and over gRPC."""

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from emberline.serving.observe.context import CURRENT, RequestContext, note_model, read_context, usable_id
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy

OURS = re.compile(r"[0-9a-f]{8}-[1-9][0-9]*")
BODY = json.dumps({"rows": [{"user": 100}]})
PREDICT = "/v1/models/toy:predict"
VERSION = "3"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    models = tmp_path_factory.mktemp("models")
    make_toy().write(models, version=int(VERSION))
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1, delta_poll_s=0, version_poll_s=0)) as server:
        yield server


def ask(server: EmbeddedServer, method: str, path: str, body: str = "", **fields: str) -> tuple[int, str | None, str | None]:
    """Status, id and version of an answer."""
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)
    try:
        connection.request(method, path, body or None, {name.replace("_", "-"): value for name, value in fields.items()})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers["X-Request-Id"], answer.headers["X-Model-Version"]
    finally:
        connection.close()


# FastAPI answers where a field asks for what the direct path does not know.
@pytest.mark.parametrize("fields", [{}, {"Connection": "close"}], ids=["direct", "fastapi"])
@pytest.mark.parametrize(
    ("path", "body", "status", "version"),
    [
        (PREDICT, BODY, 200, VERSION),
        (PREDICT, '{"rows": [{"nobody": 1}]}', 400, VERSION),
        (PREDICT, "{", 400, None),
        ("/v1/models/nobody:predict", BODY, 404, None),
        ("/v2/models/toy/infer", '{"inputs": []}', 400, VERSION),
        ("/v2/models/toy/versions/9/infer", '{"inputs": []}', 404, None),
    ],
)
def test_every_answer_has_the_callers_id_and_the_version(
    server: EmbeddedServer, fields: dict[str, str], path: str, body: str, status: int, version: str | None
) -> None:
    assert ask(server, "POST", path, body, X_Request_Id="a/b{}~!", **fields) == (status, "a/b{}~!", version)
    found = ask(server, "POST", path, body, **fields)
    assert (found[0], found[2]) == (status, version)
    assert OURS.fullmatch(found[1] or "")


@pytest.mark.parametrize(
    ("method", "path", "status", "version"),
    [
        ("GET", "/v2/health/live", 200, None),
        ("GET", "/metrics", 200, None),
        ("GET", "/v2/models/toy", 200, VERSION),
        ("GET", "/v2/models/toy/versions/3/config", 200, VERSION),
        ("GET", "/v2/models/nobody", 404, None),
        ("GET", "/nowhere", 404, None),
        ("DELETE", PREDICT, 405, None),
    ],
)
def test_so_do_all_other_routes(server: EmbeddedServer, method: str, path: str, status: int, version: str | None) -> None:
    assert ask(server, method, path, x_request_id="mine") == (status, "mine", version)


@pytest.mark.parametrize("fields", [{}, {"Connection": "close"}], ids=["direct", "fastapi"])
@pytest.mark.parametrize("text", ["with space", "x" * 129, "é"])
def test_what_is_no_id_gets_one_of_ours(server: EmbeddedServer, fields: dict[str, str], text: str) -> None:
    status, found, _ = ask(server, "POST", PREDICT, BODY, X_Request_Id=text, **fields)
    assert status == 200
    assert OURS.fullmatch(found or "")


def test_our_ids_differ(server: EmbeddedServer) -> None:
    found = [ask(server, "POST", PREDICT, BODY)[1] for _ in range(5)] + [ask(server, "GET", "/v2")[1] for _ in range(5)]
    assert len(set(found)) == 10


def test_what_is_no_http_gets_an_id_too(server: EmbeddedServer) -> None:
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)
    connection.connect()
    connection.sock.sendall(b"POST /v2\x00 nonsense\r\n\r\n")
    answer = http.client.HTTPResponse(connection.sock)
    answer.begin()
    assert answer.status == 400
    assert OURS.fullmatch(answer.headers["X-Request-Id"])
    answer.close()
    connection.close()


def infer_request(model: str) -> Any:
    request = pb.ModelInferRequest(model_name=model)
    for name, datatype, field, values in (
        ("ids", "INT64", "int64_contents", [100]),
        ("lengths", "INT32", "int_contents", [1, 0, 0, 0]),
        ("dense", "FP32", "fp32_contents", [0.0] * 3),
    ):
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[1, len(values)])
        getattr(tensor.contents, field).extend(values)
    return request


@pytest.mark.parametrize(
    ("call", "request_", "version"),
    [
        ("ModelInfer", infer_request("toy"), VERSION),
        ("ModelInfer", pb.ModelInferRequest(model_name="toy"), VERSION),
        ("ModelInfer", infer_request("nobody"), None),
        ("ModelMetadata", pb.ModelMetadataRequest(name="toy"), VERSION),
        ("ServerLive", pb.ServerLiveRequest(), None),
    ],
)
def test_grpc_tells_them_in_its_initial_metadata(server: EmbeddedServer, call: str, request_: Any, version: str | None) -> None:
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        method = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call)
        for metadata, wanted in (((("x-request-id", "mine-1"),), re.compile("mine-1")), ((), OURS)):
            asked = method.future(request_, metadata=metadata)
            told = dict(asked.initial_metadata())
            assert wanted.fullmatch(told["x-request-id"])
            assert told.get("x-model-version") == version
            asked.exception()


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=140) | st.text(st.characters(min_codepoint=0x20, max_codepoint=0x80), max_size=140))
def test_ids_are_visible_ascii(text: str) -> None:
    is_id = 1 <= len(text) <= 128 and all(0x20 < ord(character) < 0x7F for character in text)
    assert usable_id(text) == (text if is_id else "")


def test_a_context_is_read_from_fields_of_a_head() -> None:
    fields: list[tuple[str, str | bytes]] = [
        ("host", "x"),
        ("x-request-id", "first"),
        ("x-request-id", "second"),
        ("traceparent", b"00-a"),
        ("authorization", "Bearer t"),
    ]
    found = read_context(fields)
    assert (found.id, found.traceparent, found.authorization) == ("first", "00-a", "Bearer t")
    assert (found.model, found.version) == ("", 0)


def test_a_model_is_noted_where_there_is_a_request() -> None:
    token = CURRENT.set(None)
    try:
        note_model("toy", 1)
        context = RequestContext("mine")
        CURRENT.set(context)
        note_model("toy", 7)
        assert (context.model, context.version) == ("toy", 7)
    finally:
        CURRENT.reset(token)
