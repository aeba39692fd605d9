"""What /metrics tells of errors and of stages, against what was sent: by both transports, answered directly and by FastAPI, by two servers."""

import http.client
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2_grpc

from emberline.errors import ServingError
from emberline.serving.client import Client
from emberline.serving.metrics import Metrics
from emberline.serving.observe.observer import KINDS, kind_of
from emberline.serving.observe.stages import STAGES
from emberline.serving.protocol.status import STATUSES
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from emberline.serving.workers.merging import merge_metrics
from tests.serving.conftest import make_toy
from tests.serving.observe.test_context import infer_request

GOOD, BAD = '{"rows": [{"user": 100}]}', '{"rows": [{"nobody": 1}]}'
PREDICT = "/v1/models/toy:predict"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    make_toy().write(tmp_path)
    with EmbeddedServer(tmp_path, settings=ServerSettings(num_threads=1, delta_poll_s=0)) as server:
        yield server


def ask(server: EmbeddedServer, method: str, path: str, body: str = "", **fields: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)
    try:
        connection.request(method, path, body or None, fields)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Samples of a name, by the values of their labels in the order of these."""
    order = ("model", "protocol", "kind", "stage", "le")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples if sample.name == name]
    return {tuple(sample.labels[label] for label in order if label in sample.labels): sample.value for sample in samples}


def test_errors_are_counted_by_kind(server: EmbeddedServer) -> None:
    for fields in ({}, {"Connection": "close"}):  # directly, and by FastAPI
        assert ask(server, "POST", PREDICT, GOOD, **fields)[0] == 200
        assert ask(server, "POST", PREDICT, BAD, **fields)[0] == 400
        assert ask(server, "POST", PREDICT, "{", **fields)[0] == 400
        assert ask(server, "POST", "/v1/models/nobody:predict", GOOD, **fields)[0] == 404
    assert ask(server, "GET", "/nowhere")[0] == 404
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(infer_request("toy"))
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(infer_request("nobody"))
    assert values(ask(server, "GET", "/metrics")[1], "emberline_request_errors_total") == {
        ("toy", "http", "bad_request"): 2,
        ("", "http", "bad_request"): 2,
        ("", "http", "not_found"): 3,
        ("", "grpc", "not_found"): 1,
    }


def test_each_stage_has_a_value_for_each_batch(server: EmbeddedServer) -> None:
    with Client(server.http_url, model="toy") as client:
        for _ in range(3):
            client.predict([{"user": 100}])
    for _ in range(4):
        ask(server, "POST", PREDICT, GOOD)
    text = ask(server, "GET", "/metrics")[1]
    found = values(text, "emberline_stage_seconds_count")
    batches = values(text, "emberline_batch_seconds_count")["toy",]
    assert batches == 7
    assert set(found) == {("toy", stage) for stage in STAGES}
    assert found["toy", "encode"] == 4  # the client sends tensors
    assert found["toy", "lookup"] == found["toy", "program"] == 7
    assert 4 <= found["toy", "queue"] <= 7  # a quick request is in none
    seconds = values(text, "emberline_stage_seconds_sum")
    assert all(0 < seconds["toy", stage] < values(text, "emberline_batch_seconds_sum")["toy",] for stage in ("encode", "lookup", "program"))


def test_two_servers_of_a_process_count_apart(server: EmbeddedServer) -> None:
    ask(server, "POST", PREDICT, BAD)
    with EmbeddedServer(server.service.repository.models_dir, settings=ServerSettings(num_threads=1, delta_poll_s=0)) as other:
        ask(other, "POST", PREDICT, GOOD)
        text = ask(other, "GET", "/metrics")[1]
    assert values(text, "emberline_request_errors_total") == {}
    assert values(text, "emberline_stage_seconds_count")["toy", "lookup"] == 1
    text = ask(server, "GET", "/metrics")[1]
    assert values(text, "emberline_request_errors_total") == {("toy", "http", "bad_request"): 1}


def test_workers_add_up_errors_and_stages() -> None:
    texts, wanted = [], Counter[tuple[str, ...]]()
    for worker in range(3):
        metrics = Metrics()
        for kind in ("overloaded", "deadline")[: worker + 1]:
            metrics.count_error("toy", "http", kind)
            wanted["toy", "http", kind] += 1
        metrics.stages("toy").lookup.add(0.0003 * (worker + 1))
        texts.append(metrics.render().decode())
    text = merge_metrics(texts, shared_tables=True).decode()
    assert values(text, "emberline_request_errors_total") == wanted
    assert values(text, "emberline_stage_seconds_count")["toy", "lookup"] == 3
    assert values(text, "emberline_stage_seconds_sum")["toy", "lookup"] == pytest.approx(0.0018)
    buckets = values(text, "emberline_stage_seconds_bucket")
    bounds = (0.0003, 0.0006, 0.0009)
    assert {key[-1]: value for key, value in buckets.items() if key[:2] == ("toy", "lookup") and key[-1] != "+Inf"} == {
        key[-1]: sum(value <= float(key[-1]) for value in bounds) for key in buckets if key[:2] == ("toy", "lookup") and key[-1] != "+Inf"
    }


def test_every_error_of_the_tree_has_a_kind_of_its_own() -> None:
    kinds = {error: kind_of(status.http) for error, status in STATUSES.items()}
    assert kinds[ServingError] == "internal"
    assert len(set(kinds.values())) == len(STATUSES)
    assert set(kinds.values()) == {*KINDS.values(), "internal"} - {"cancelled"}
    assert [kind_of(status) for status in (200, 304, 405, 422, 500, 502)] == ["", "", "bad_request", "bad_request", "internal", "internal"]


DOCS = Path(__file__).parents[3] / "docs" / "observability.md"


def test_the_docs_have_every_metric_with_its_labels(server: EmbeddedServer) -> None:
    ask(server, "POST", PREDICT, BAD)
    rows = re.findall(r"^\| `(emberline_\w+)` \| [^|]* \| ([^|]*) \|", DOCS.read_text(), re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(ask(server, "GET", "/metrics")[1]):
        if family.name.startswith("emberline_") and not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = {label for sample in family.samples for label in sample.labels if label != "le"}
    missing = {name: labels for name, labels in found.items() if name not in told}
    assert not missing
    assert {name for name, labels in found.items() if labels and labels != told[name]} == set()
    assert set(told) == set(found)


def test_json_of_docs_is_json() -> None:
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith('{"time"')]
    assert lines
    assert all(json.loads(line)["level"] in ("INFO", "WARNING", "ERROR") for line in lines)
