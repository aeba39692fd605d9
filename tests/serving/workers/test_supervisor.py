"""Several processes behind one pair of ports, as a user starts them: they answer as one server."""

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from emberline.serving import Client
from tests.serving.conftest import make_toy
from tests.serving.served_command import served

WORKERS = 2


@dataclass
class Served:
    """The server, its folder of models, and where it is."""

    process: "subprocess.Popen[str]"
    models: Path
    http: str
    grpc: str
    metrics: str

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request on a connection of its own: whichever worker takes it."""
        place = (self.metrics if path == "metrics port" else self.http).removeprefix("http://").partition("/")[0]
        connection = http.client.HTTPConnection(place, timeout=60)
        try:
            connection.request(method, "/metrics" if path == "metrics port" else path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            content = answer.read()
            is_json = answer.headers.get("content-type") == "application/json"
            return answer.status, json.loads(content) if is_json and content else content.decode()
        finally:
            connection.close()

    def workers(self) -> set[int]:
        """The process ids of the workers."""
        return {int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()}


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    models = tmp_path_factory.mktemp("models")
    make_toy().write(models, version=1)
    with served(models, f"--workers={WORKERS}", "--delta-poll=0", "--version-poll=0", "--metrics-port=0") as (process, lines):
        words = [word for line in lines for word in line.split() if "://127.0.0.1:" in word]
        found = Served(process, models, words[0], words[2], words[3])
        assert "  toy, version 1\n" in lines
        yield found
        left = found.workers()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]


def test_all_workers_answer_and_are_counted_as_one(server: Served) -> None:
    assert len(server.workers()) == WORKERS
    before = succeeded(server)
    want = None
    for place in (server.http, server.grpc):
        for _ in range(6):
            with Client(place, "toy") as client:  # a connection of its own
                answer = client.lookup([{"user": 100}], ["wide"])["wide"].tolist()
                want = want or answer
                assert answer == want
    assert succeeded(server) == before + 12
    total = [
        line for line in server.call("GET", "metrics port")[1].splitlines() if line.startswith("emberline_requests_total") and 'status="ok"' in line
    ]
    assert sum(float(line.rpartition(" ")[2]) for line in total) == before + 12
    assert server.call("GET", "/metrics")[1].count("emberline_model_version{") == 1


def health(server: Served) -> int:
    """The status of a look whether the server is ready; 0 where a worker ended before it answered."""
    try:
        return server.call("GET", "/v2/health/ready")[0]
    except (OSError, http.client.HTTPException):
        return 0


def succeeded(server: Served) -> int:
    found: int = server.call("GET", "/v2/models/toy/stats")[1]["model_stats"][0]["inference_stats"]["success"]["count"]
    return found


def versions(server: Served) -> set[str]:
    """The versions that some connections are answered by."""
    return {server.call("POST", "/v1/models/toy:predict", {"rows": [{}]})[1].get("version", "none") for _ in range(10)}


def test_models_come_and_go_in_all_workers_and_one_that_died_serves_the_same_again(server: Served) -> None:
    make_toy(seed=5).write(server.models, version=2)
    assert versions(server) == {"1"}
    (victim, *others) = sorted(server.workers())
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: health(server) == 503)
    status, answer = server.call("POST", "/v2/repository/models/toy/load")
    assert (status, "started again" in str(answer)) == (503, True)
    wait_until(lambda: health(server) == 200)
    assert len(server.workers()) == WORKERS
    assert set(others) < server.workers()
    assert versions(server) == {"1"}, "a version that came meanwhile is not served until it is loaded"
    assert server.call("POST", "/v2/repository/models/toy/load")[0] == 200
    assert versions(server) == {"2"}
    assert server.call("POST", "/v2/repository/models/nope/load")[0] == 404
    assert server.call("POST", "/v2/repository/models/toy/unload")[0] == 200
    assert versions(server) == {"none"}
    assert server.call("POST", "/v2/repository/models/toy/unload")[0] == 404
    assert server.call("POST", "/v2/repository/models/toy/load")[0] == 200
    assert versions(server) == {"2"}
