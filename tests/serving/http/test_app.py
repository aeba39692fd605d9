"""The HTTP face as a caller without any client library sees it."""

import gzip
import http.client
import json
import re
import socket
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from emberline.serving import Engine
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import ToyModel, make_toy
from tests.serving.ways import same

LIMIT = 100_000
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass
class Caller:
    """Calls one server, each time on a connection of its own."""

    place: str

    def __call__(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection(self.place, timeout=20)
        try:
            sent = json.dumps(body).encode() if body is not None and not isinstance(body, bytes | Iterator) else body
            connection.request(method, path, sent, headers or {})
            answer = connection.getresponse()
            content = answer.read()
            is_json = answer.headers.get("content-type", "").startswith("application/json")
            return answer.status, json.loads(content) if is_json else content, dict(answer.headers)
        finally:
            connection.close()

    def infer(self, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
        return self("POST", "/v2/models/toy/infer", body, headers)

    def rows(self, body: Any, verb: str = "predict") -> tuple[int, Any]:
        return self("POST", f"/v1/models/toy:{verb}", body)[:2]


@pytest.fixture(scope="module")
def model() -> ToyModel:
    return make_toy()


@pytest.fixture(scope="module")
def engine(model: ToyModel, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.open(model.write(tmp_path_factory.mktemp("models")), num_threads=1)


@pytest.fixture(scope="module")
def call(engine: Engine) -> Iterator[Caller]:
    with EmbeddedServer(engine.artifact.root, settings=ServerSettings(num_threads=1, max_request_bytes=LIMIT)) as server:
        yield Caller(server.http_url.removeprefix("http://"))


def tensor(name: str, datatype: str, data: list[Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [1, len(data)], "data": data, **more}


def user_request(*users: Any) -> dict[str, Any]:
    """A v2 request whose rows have a user each and nothing else."""
    inputs = [tensor("ids", "INT64", list(users)), tensor("lengths", "INT32", [1] * len(users) + [0] * 3 * len(users))]
    return {"inputs": [*inputs, tensor("dense", "FP32", [0.0] * 3 * len(users))], "outputs": [{"name": "lookup.wide"}]}


def test_rows_are_answered_as_the_engine_answers_them(call: Caller, engine: Engine) -> None:
    rows: list[dict[str, Any]] = [{"user": 100, "item": [1, 2], "price": 1.5, "tags": {"a": 0.5}, "vector": [1, 2]}, {"city": 3}, {}]
    request = engine.encode_rows(rows)
    status, answer = call.rows({"rows": rows})
    assert (status, answer["model"], answer["version"], list(answer["outputs"])) == (200, "toy", "1", ["probs", "scores"])
    for name, want in engine.predict(request).items():
        same(np.array(answer["outputs"][name], np.float32), want.numpy())
    status, answer = call.rows({"rows": rows, "outputs": ["wide"]}, "lookup")
    assert (status, list(answer["outputs"])) == (200, ["wide"])
    same(np.array(answer["outputs"]["wide"], np.float32), engine.lookup(request)["wide"].numpy())


def test_no_rows_get_no_answers(call: Caller) -> None:
    assert call.rows({"rows": []}) == (200, {"model": "toy", "version": "1", "outputs": {"probs": [], "scores": []}})


@pytest.mark.parametrize(
    ("value", "user"),
    [(2**62, 2**62), (str(2**62), 2**62), (2**62 + 1, None), (-7, -7), ("-7", -7), (100.0, 100), (9007199254740993, None)],
)
def test_ids_in_rows_are_exact_numbers_or_texts(call: Caller, model: ToyModel, value: Any, user: int | None) -> None:
    status, answer = call.rows({"rows": [{"user": value}], "outputs": ["wide"]}, "lookup")
    want = model.tables["user_emb"][7 if user is None else model.remaps["user_emb"].rows[user]]
    assert status == 200
    same(np.array(answer["outputs"]["wide"][0], np.float32), want.numpy())


def test_a_null_id_is_a_missing_one(call: Caller) -> None:
    status, answer = call.rows({"rows": [{"user": None}], "outputs": ["wide"]}, "lookup")
    assert (status, answer["outputs"]["wide"]) == (200, [[0.0] * 4])


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**100, 5.5, True, float(2**60)])
def test_what_is_no_exact_id_is_refused_by_feature_and_row(call: Caller, value: Any) -> None:
    status, answer = call.rows({"rows": [{}, {"user": value}]})
    assert status == 400
    assert "feature 'user': row 1" in answer["error"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "is not JSON"),
        (b"[]", "must be a JSON object, not an array"),
        (b"{}", "rows must be an array"),
        (b'{"rows": {}}', "rows must be an array of objects, one for each row, not an object"),
        (b'{"rows": [1]}', "row 0 must be an object of columns and values, not a number"),
        (b'{"rows": [{"usr": 1}]}', "unknown column 'usr'; did you mean 'user'"),
        (b'{"rows": [{"user": 1, "user": 2}]}', 'the key "user" comes twice'),
        (b'{"rows": [], "output": []}', 'there is no key "output"'),
        (b'{"rows": [], "outputs": []}', "outputs must be an array of at least one name"),
        (b'{"rows": [], "outputs": ["nope"]}', 'the model has no output "nope"; it has probs, scores'),
        (b'{"rows": [], "outputs": ["probs", "probs"]}', 'the output "probs" comes twice'),
        (b'{"rows": [{"price": NaN}]}', "NaN is not a JSON number"),
        (b'{"rows": [{"price": "abc"}]}', "feature 'price'"),
        (b'{"rows": [{"item": 10}]}', "'item'"),
        (b'{"rows": [{"tags": {"a": true}}]}', "feature 'tags'"),
        (b'{"rows": [{"user": "\\ud800"}]}', "surrogate"),
        (b'{"rows": ' + b"[" * 50_000, "nested too deeply"),
    ],
)
def test_a_bad_body_of_rows_is_refused_with_what_is_wrong(call: Caller, body: bytes, problem: str) -> None:
    status, answer = call.rows(body)
    assert status == 400
    assert problem in answer["error"]


@pytest.mark.parametrize("user", [2**62, 2**62 + 1, 9007199254740993, -(2**63), 2**63 - 1, -7])
def test_v2_json_ids_are_exact(call: Caller, model: ToyModel, user: int) -> None:
    status, answer, _ = call.infer(user_request(user))
    assert status == 200
    same(np.array(answer["outputs"][0]["data"], np.float32), model.tables["user_emb"][model.remaps["user_emb"].row(user)].numpy())


@pytest.mark.parametrize("user", [2**63, -(2**63) - 1, "9007199254740993", 5.0, 5.5, 1e3, True, None])
def test_v2_json_ids_of_another_kind_are_refused_by_tensor(call: Caller, user: Any) -> None:
    status, answer, _ = call.infer(user_request(-7, user))
    assert status == 400
    assert answer["error"].startswith('input "ids": value 1 is ')


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in user_request(1).items() if name != key}


def with_input(**changes: Any) -> dict[str, Any]:
    request = user_request(1)
    request["inputs"][0] |= changes
    return request


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (without("inputs"), 'the request has no "inputs"'),
        (user_request(1) | {"input": []}, 'there is no key "input"'),
        (user_request(1) | {"inputs": {}}, "inputs must be an array of objects"),
        (user_request(1) | {"outputs": ["probs"]}, "outputs must be an array of objects"),
        (user_request(1) | {"id": 7}, "id must be a string, not a number"),
        (user_request(1) | {"parameters": []}, "parameters must be an object"),
        (user_request(1) | {"parameters": {"binary_data_output": 1}}, 'the parameter "binary_data_output" must be true or false'),
        (user_request(1) | {"parameters": {"sequence_id": 1}}, 'the parameter "sequence_id" is not supported'),
        (user_request(1) | {"outputs": [{"name": "probs", "parameters": {"classification": 2}}]}, "classification is not supported"),
        (user_request(1) | {"outputs": [{"name": "nope"}]}, 'no output "nope"'),
        (with_input(name=7), "the name of an input must be a string"),
        (with_input(datatype=None), 'the datatype of input "ids" must be a string, not null'),
        (with_input(datatype="FP32"), 'input "ids" must be INT64 or INT32, found FP32'),
        (with_input(shape=[1, 2]), "takes 2 values, but 1 came"),
        (with_input(shape=[1, -1]), "none negative"),
        (with_input(values=[1]), 'there is no key "values"'),
        (with_input(parameters={"shared_memory_region": "r"}), "shared memory is not supported"),
        (with_input(parameters={"binary_data_size": 8}), "has data both in JSON and in binary form"),
        (with_input(parameters={"binary_data_size": "8"}), "binary_data_size must be a whole number"),
    ],
)
def test_a_bad_v2_request_is_refused_with_what_is_wrong(call: Caller, body: Any, problem: str) -> None:
    status, answer, _ = call.infer(body)
    assert status == 400
    assert problem in answer["error"]


def test_flat_and_nested_data_are_the_same(call: Caller) -> None:
    nested = user_request(100, -7)
    for entry in nested["inputs"]:
        entry["data"] = [entry["data"]]
    assert call.infer(nested)[1] == call.infer(user_request(100, -7))[1]


def test_32_bit_ids_and_64_bit_lengths_are_taken(call: Caller) -> None:
    other = user_request(100, -7)
    other["inputs"][0]["datatype"], other["inputs"][1]["datatype"] = "INT32", "INT64"
    assert call.infer(other)[1] == call.infer(user_request(100, -7))[1]


def binary_body() -> tuple[bytes, int]:
    ids, lengths = np.array([100], np.int64).tobytes(), np.array([1, 0, 0, 0], np.int32).tobytes()
    header = {
        "inputs": [
            {"name": "ids", "datatype": "INT64", "shape": [1, 1], "parameters": {"binary_data_size": len(ids)}},
            {"name": "lengths", "datatype": "INT32", "shape": [1, 4], "parameters": {"binary_data_size": len(lengths)}},
            tensor("dense", "FP32", [0, 0, 0]),
        ],
        "outputs": [{"name": "lookup.wide", "parameters": {"binary_data": True}}, {"name": "known"}],
    }
    text = json.dumps(header).encode()
    return text + ids + lengths, len(text)


def test_binary_and_json_tensors_mix(call: Caller, model: ToyModel) -> None:
    body, header_length = binary_body()
    status, content, headers = call.infer(body, {HEADER_LENGTH: str(header_length)})
    assert status == 200
    size = int(headers[HEADER_LENGTH.lower()])
    header = json.loads(content[:size])
    assert [output.get("data") for output in header["outputs"]] == [None, [True]]
    same(np.frombuffer(content[size:], np.float32), model.tables["user_emb"][2].numpy())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda body, size: (body, size + 1), "is not UTF-8|is not JSON"),
        (lambda body, size: (body, len(body) + 1), "must be a whole number up to the body's"),
        (lambda body, size: (body, "x"), "must be a whole number"),
        (lambda body, size: (body, -1), "must be a whole number"),
        (lambda body, size: (body[:-1], size), 'input "lengths": 16 bytes should follow the JSON header, but 15 are left'),
        (lambda body, size: (body + b"xy", size), "2 bytes after the JSON header belong to no input"),
        (lambda body, size: (body, None), "is not JSON|not UTF-8"),
    ],
)
def test_a_bad_binary_body_is_refused_with_what_is_wrong(call: Caller, change: Any, problem: str) -> None:
    body, header_length = change(*binary_body())
    status, answer, _ = call.infer(body, {} if header_length is None else {HEADER_LENGTH: str(header_length)})
    assert status == 400
    assert re.search(problem, answer["error"])


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies_are_read(call: Caller, encoding: str, pack: Any) -> None:
    body, header_length = binary_body()
    plain = call.infer(body, {HEADER_LENGTH: str(header_length)})[1]
    assert call.infer(pack(body), {HEADER_LENGTH: str(header_length), "Content-Encoding": encoding})[:2] == (200, plain)


@pytest.mark.parametrize(
    ("body", "encoding", "status", "problem"),
    [
        (b"nonsense", "gzip", 400, "the body is not gzip data"),
        (gzip.compress(b"{}", mtime=0)[:-9], "gzip", 400, "cut short"),
        (gzip.compress(b"{}", mtime=0) * 2, "gzip", 400, "more follows its end"),
        (b"{}", "br", 400, 'the content encoding "br" is not supported; there are gzip and deflate'),
        (gzip.compress(b" " * LIMIT, mtime=0), "gzip", 400, "is not JSON"),
        (gzip.compress(b" " * (LIMIT + 1), mtime=0), "gzip", 413, f"the body has over {LIMIT} bytes; this server takes at most {LIMIT}"),
    ],
)
def test_a_bad_compressed_body_is_refused(call: Caller, body: bytes, encoding: str, status: int, problem: str) -> None:
    found, answer, _ = call.infer(body, {"Content-Encoding": encoding})
    assert (found, problem in answer["error"]) == (status, True)


@pytest.mark.parametrize("chunked", [False, True])
def test_the_limit_lets_through_what_is_just_below_it(call: Caller, chunked: bool) -> None:
    body = json.dumps({"rows": [{}]}).encode().ljust(LIMIT)
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413), (LIMIT * 3, 413)):
        sent: Any = body.ljust(size)
        found, answer, _ = call("POST", "/v1/models/toy:predict", iter([sent]) if chunked else sent, {})
        assert found == status
        assert status == 200 or answer == {"error": f"the body has {size} bytes; this server takes at most {LIMIT}"}


def test_a_body_far_over_the_limit_is_not_waited_for(call: Caller) -> None:
    found, answer, _ = call("POST", "/v1/models/toy:predict", b"", {"Content-Length": str(10**12)})
    assert (found, answer["error"]) == (413, f"the body has {10**12} bytes; this server takes at most {LIMIT}")


def test_a_caller_that_leaves_half_way_is_no_error(call: Caller, caplog: pytest.LogCaptureFixture) -> None:
    host, _, port = call.place.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
    assert call.rows({"rows": [{}]})[0] == 200
    time.sleep(0.1)
    assert not caplog.records


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v2/models/nope", 404),
        ("GET", "/v2/models/toy/versions/2/ready", 404),
        ("GET", "/v2/models/toy/versions/01", 404),
        ("GET", "/v2/models/..%2F..%2Fetc", 404),
        ("GET", "/v2/models/toy/infer", 405),
        ("DELETE", "/v2/models/toy", 405),
        ("POST", "/v1/models/nope:predict", 404),
        ("POST", "/v1/models/toy:explain", 404),
    ],
)
def test_what_is_not_there_is_refused_as_json(call: Caller, method: str, path: str, status: int) -> None:
    found, answer, _ = call(method, path, {"rows": []} if method == "POST" else None)
    assert (found, list(answer)) == (status, ["error"])


def test_statistics_and_metrics_count_requests(call: Caller) -> None:
    def counts() -> tuple[int, int, float]:
        stats = call("GET", "/v2/models/toy/stats")[1]["model_stats"][0]["inference_stats"]
        families = {family.name: family for family in text_string_to_metric_families(call("GET", "/metrics")[1].decode())}
        samples = families["emberline_requests"].samples
        found = [sample.value for sample in samples if sample.name.endswith("_total") and sample.labels["status"] == "INVALID_ARGUMENT"]
        return stats["success"]["count"], stats["fail"]["count"], sum(found)

    before = counts()
    call.infer(user_request(1))
    call.rows({"rows": [{"nope": 1}]})
    after = counts()
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 1]


def test_ids_without_a_row_are_counted_by_table(call: Caller) -> None:
    def counts() -> tuple[list[float], dict[str, int]]:
        families = {family.name: family for family in text_string_to_metric_families(call("GET", "/metrics")[1].decode())}
        samples = [families[f"emberline_table_{name}"].samples[0] for name in ("ids", "unknown_ids")]
        assert [sample.labels for sample in samples] == [{"model": "toy", "table": "user_emb"}] * 2
        (told,) = call("GET", "/v2/models/toy/stats")[1]["model_stats"][0]["table_ids"]
        assert told.pop("table") == "user_emb"
        return [sample.value for sample in samples], told

    (asked, unknown), _ = counts()
    call.rows({"rows": [{"user": 100}, {"user": [101, 200, 5]}, {}]})
    values, told = counts()
    assert values == [asked + 4, unknown + 2]
    assert told == {"asked": asked + 4, "unknown": unknown + 2}


def test_the_docs_need_no_outside_host(call: Caller) -> None:
    status, page, _ = call("GET", "/docs")
    assert status == 200
    links = re.findall(r'(?:src|href)="([^"]+)"', page.decode())
    assert links
    assert all(link.startswith("/") for link in links)
    assert [call("GET", link)[0] for link in links] == [200] * len(links)
    status, description, _ = call("GET", "/openapi.json")
    predict = description["paths"]["/v1/models/{model}:predict"]["post"]["requestBody"]["content"]["application/json"]
    assert call.rows(predict["examples"]["toy"]["value"])[0] == 200
    infer = description["paths"]["/v2/models/{model}/infer"]["post"]["requestBody"]["content"]["application/json"]
    assert call.infer(infer["examples"]["toy"]["value"])[0] == 200


MUTATED: st.SearchStrategy[Any] = st.sampled_from([None, True, -1, 2**70, 1.5, "x", [], {}, [[1]], [{}], {"name": "ids"}])
PLACES = st.sampled_from(
    ["id", "parameters", "inputs", "outputs", "name", "datatype", "shape", "data", "in.parameters", "out.name", "out.parameters"]
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PLACES, MUTATED), min_size=1, max_size=2))
def test_no_malformed_request_is_more_than_refused(call: Caller, changes: list[tuple[str, Any]]) -> None:
    request = user_request(1)
    inputs, outputs = request["inputs"], request["outputs"]
    for place, value in changes:
        if place in request or place in ("id", "parameters"):
            request[place] = value
        elif place.startswith("out."):
            outputs[0][place.removeprefix("out.")] = value
        else:
            inputs[0][place.removeprefix("in.")] = value
    status, answer, _ = call.infer(request)
    assert status in (200, 400)
    assert status == 200 or list(answer) == ["error"]


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.binary(max_size=60), st.one_of(st.none(), st.integers(-1, 70)))
def test_no_bytes_are_more_than_refused(call: Caller, body: bytes, header_length: int | None) -> None:
    status, answer, _ = call.infer(body, {} if header_length is None else {HEADER_LENGTH: str(header_length)})
    assert (status, list(answer)) == (400, ["error"])
