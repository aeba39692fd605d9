"""Traces, as a collector on this machine gets them."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tritonclient.grpc import service_pb2_grpc

from emberline.serving.observe.settings import ObserveSettings
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy
from tests.serving.observe.test_context import BODY, PREDICT, infer_request

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes spans over OTLP/HTTP, after a wait."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self.spans: list[Any] = []
        released = self.released = threading.Event()
        if not wait_s:
            released.set()
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                released.wait(wait_s)
                if self.path == "/v1/traces":
                    asked = ExportTraceServiceRequest.FromString(body)
                    spans.extend(span for found in asked.resource_spans for scope in found.scope_spans for span in scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def ask(server: EmbeddedServer, body: str, **fields: str) -> int:
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)
    try:
        connection.request("POST", PREDICT, body, fields)
        return connection.getresponse().status
    finally:
        connection.close()


def serving(models: Path, url: str) -> EmbeddedServer:
    return EmbeddedServer(models, settings=ServerSettings(num_threads=1, delta_poll_s=0, observe=ObserveSettings(otel_endpoint=url)))


def end_of_traces() -> None:
    """What a server that stopped still sends ends, too."""
    for thread in threading.enumerate():
        if thread.name == "emberline-traces":
            thread.join(30)
            assert not thread.is_alive()


def told(span: Any) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}


def test_each_request_is_a_span_with_its_stages(tmp_path: Path, collector: Collector) -> None:
    make_toy().write(tmp_path)
    before = time.time_ns()
    with serving(tmp_path, collector.url) as server:
        for number, fields in enumerate(({}, {"Connection": "close"})):  # directly, and by FastAPI
            parent = f"00-{TRACE}-{PARENT}-01"
            assert ask(server, BODY, **{"X-Request-Id": f"good{number}", "traceparent": parent}, **fields) == 200
            assert ask(server, json.dumps({"rows": [{"no": 1}]}), **{"X-Request-Id": f"bad{number}", "traceparent": "nonsense"}, **fields) == 400
            assert ask(server, BODY, traceparent=f"00-{TRACE}-{PARENT}-00", **fields) == 200  # whose caller records nothing
        with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
            metadata = (("x-request-id", "grpc"), ("traceparent", f"00-{TRACE}-{PARENT}-01"))
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer_request("toy"), metadata=metadata)
    after = time.time_ns()  # what was left was sent as the server stopped
    requests = {told(span)["request.id"]: span for span in collector.spans if span.attributes}
    assert set(requests) == {"good0", "bad0", "good1", "bad1", "grpc"}
    for name, span in requests.items():
        found, bad = told(span), name.startswith("bad")
        assert found.pop("http.response.status_code") == (400 if bad else 200)
        assert found.pop("error.type", "") == ("bad_request" if bad else "")
        wanted = {
            "request.id": name,
            "rpc.protocol": "grpc" if name == "grpc" else "http",
            "model.name": "toy",
            "model.version": 1,
            "request.rows": 1,
        }
        assert found == wanted
        assert span.name == ("ModelInfer" if name == "grpc" else f"POST {PREDICT}")
        assert (span.trace_id.hex() == TRACE, span.parent_span_id.hex()) == ((False, "") if bad else (True, PARENT))
        inside = {child.name: child for child in collector.spans if child.parent_span_id == span.span_id}
        if not bad and name != "grpc":
            assert {"queue", "encode", "lookup", "program"} == set(inside)
            assert inside["queue"].end_time_unix_nano <= inside["encode"].end_time_unix_nano <= inside["lookup"].end_time_unix_nano
        assert all(child.trace_id == span.trace_id for child in inside.values())
        assert before < span.start_time_unix_nano < span.end_time_unix_nano < after


def test_a_slow_collector_holds_up_nothing(tmp_path: Path) -> None:
    make_toy().write(tmp_path)
    slow = Collector(wait_s=30.0)
    try:
        with serving(tmp_path, slow.url + "/") as server:
            assert [ask(server, BODY) for _ in range(3)] == [200] * 3
            assert slow.spans == []
    finally:
        slow.close()
        end_of_traces()


def test_a_dead_collector_holds_up_nothing(tmp_path: Path, collector: Collector) -> None:
    make_toy().write(tmp_path)
    collector.close()
    with serving(tmp_path, collector.url) as server:
        assert [ask(server, BODY) for _ in range(3)] == [200] * 3
    assert collector.spans == []
    end_of_traces()
