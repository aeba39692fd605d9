"""A probe of a model, against the embedded server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from emberline.cli import main
from emberline.errors import NotFoundError, RequestError, ServingError, UnavailableError
from emberline.serving.probe import empty_row, probe
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_steps_toy, make_toy


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("models")
    for model in (make_toy(), make_steps_toy()):
        model.write(models)
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as server:
        yield server.http_url


@pytest.mark.parametrize("model", ["toy", "steps"])
def test_a_model_that_answers(url: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 < probe(url, model, timeout_s=20) < 20
    assert main(["probe", "--url", url, "--model", model, "--timeout", "20"]) == 0
    assert capsys.readouterr().out.startswith(f"{model} answered in ")


def test_a_model_that_does_not(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFoundError, match="nope"):
        probe(url, "nope", timeout_s=20)
    with pytest.raises(UnavailableError, match="cannot reach http://127"):
        probe("http://127.0.0.1:1", "toy")
    for place in ("grpc://127.0.0.1:1", "http://127.0.0.1:x", "http://127.0.0.1:99999", "http://[::1", "toy"):
        with pytest.raises(RequestError, match="must be http://host:port"):
            probe(place, "toy")
    assert main(["probe", "--url", "http://127.0.0.1:1", "--model", "toy"]) == 1
    assert "cannot reach" in capsys.readouterr().err


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "x"])
def test_a_timeout_that_is_none(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["probe", "--url", "http://127.0.0.1:1", "--model", "toy", "--timeout", timeout])
    assert "is no number of seconds" in capsys.readouterr().err


CONFIG = {"parameters": {"emberline_schema": {"string_value": json.dumps(make_toy().schema.to_dict())}}}


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([b"[]"], "does not answer as a server of Emberline's models does"),
        ([b"<html>"], "does not answer as"),
        ([json.dumps(CONFIG).encode(), b'{"outputs": []}'], "does not answer as"),
        ([json.dumps(CONFIG).encode(), b'{"outputs": [{"shape": 1}]}'], "does not answer as"),
        ([json.dumps(CONFIG).encode(), b'{"outputs": [{"shape": [1, 2]}]}'], r"answered one row with shape \[1, 2\]"),
    ],
)
def test_answers_of_another_kind(answers: list[bytes], problem: str, close: bool) -> None:
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0" if close else "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(left[0])))
            self.end_headers()
            self.wfile.write(left.pop(0))

        do_POST = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with pytest.raises(ServingError, match=problem):
            probe(f"http://127.0.0.1:{server.server_port}", "toy", timeout_s=20)
        server.shutdown()
        thread.join()
    assert not left


def test_the_row_has_every_input_that_must_be_there() -> None:
    found = empty_row(make_steps_toy().schema)
    assert {one["name"]: one["data"] for one in found["inputs"]} == {
        "ids": [],
        "lengths": [0, 0, 0],
        "dense": [0],
        "steps": [0, 0, 0],
        "step_lengths": [],
        "dense_steps": [],
    }
    assert found["outputs"] == [{"name": "score"}]
