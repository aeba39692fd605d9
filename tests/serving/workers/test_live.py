"""Versions that come while several workers serve: all go over together, whatever happens to one of them."""

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.conftest import make_toy
from tests.serving.served_command import served

WORKERS = 2


@dataclass
class Served:
    """The server, its folder of models, and where it is."""

    pid: int
    models: Path
    http: str
    metrics_url: str

    def post(self, path: str, body: Any = None, timeout_s: float = 60) -> Any:
        """One answer on a connection of its own: whichever worker takes it."""
        data = b"" if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.http + path, data), timeout=timeout_s) as answer:
            return json.loads(answer.read() or b"null")

    def index(self) -> dict[str, tuple[str, str]]:
        """Version and reason of each model, as one of the workers tells."""
        return {entry["name"]: (entry["version"], entry["reason"]) for entry in self.post("/v2/repository/index", {})}

    def ask(self) -> tuple[str, list[float]]:
        """The version that answers, and its vector for a user."""
        found = self.post("/v1/models/toy:lookup", {"rows": [{"user": 100}]})
        return found["version"], found["outputs"]["wide"][0]

    def versions(self) -> set[str]:
        """The versions that some connections are answered by: all that there are, but for a chance of one in a thousand."""
        return {self.ask()[0] for _ in range(10)}

    def workers(self) -> set[int]:
        """The process ids of the workers."""
        return {int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()}

    def metrics(self, *names: str) -> list[float]:
        """Metrics of all workers together."""
        with urllib.request.urlopen(self.metrics_url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        found = [[line for line in lines if line.startswith(name)] for name in names]
        assert [len(lines) for lines in found] == [1] * len(names), found
        return [float(line.rpartition(" ")[2]) for (line,) in found]

    def publish(self, version: int) -> Path:
        """Write a version as an export does: under another name, renamed once."""
        return make_toy(seed=version).write(self.models.parent / "drafts", version).rename(self.models / "toy" / str(version))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    models = tmp_path_factory.mktemp("served") / "models"
    make_toy(seed=1).write(models)
    with served(models, f"--workers={WORKERS}", "--delta-poll=0", "--version-poll=0.05", "--metrics-port=0") as (process, lines):
        words = [word for line in lines for word in line.split() if "://127.0.0.1:" in word]
        yield Served(process.pid, models, words[0], words[3])
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.1)


def test_all_go_over_to_a_version_and_none_to_a_bad_one(server: Served) -> None:
    server.publish(2)
    wait_until(lambda: server.index() == {"toy": ("2", "")})
    assert server.versions() == {"2"}
    root = make_toy(seed=3).write(server.models.parent / "drafts", 3)
    table = root / "tables" / "item_emb.safetensors"
    table.write_bytes(table.read_bytes()[:-1])
    root = root.rename(server.models / "toy" / "3")
    why = "version 3 is refused: the artifact is damaged: tables/item_emb.safetensors has 447 bytes, not 448"
    wait_until(lambda: server.index() == {"toy": ("2", why)})
    assert [server.index() for _ in range(10)] == [{"toy": ("2", why)}] * 10, "all workers know"
    failing, failures = server.metrics("emberline_model_update_failing{", "emberline_model_update_failures_total{")
    assert (failing, failures >= 1) == (1, True)
    assert server.versions() == {"2"}
    root.rename(server.models.parent / "bad")
    wait_until(lambda: [server.index() for _ in range(10)] == [{"toy": ("2", "")}] * 10)
    failing, version, age = server.metrics("emberline_model_update_failing{", "emberline_model_version{", "emberline_model_version_age_seconds{")
    assert (failing, version) == (0, 2)
    assert abs(age - (time.time() - 1767225600)) < 120


def test_every_answer_is_right_while_versions_change_and_a_worker_is_killed(server: Served) -> None:
    right = {str(version): make_toy(seed=version).tables["user_emb"][2].numpy() for version in range(1, 8)}
    ended = threading.Event()

    def ask_on(_: int) -> set[str]:
        seen = set()
        while not ended.is_set():
            try:
                version, found = server.ask()
            except OSError:  # the worker that had it was killed
                continue
            np.testing.assert_allclose(found, right[version], rtol=1e-5, atol=1e-6)
            seen.add(version)
            time.sleep(0.1)
        return seen

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask_on, number) for number in range(2)]
        try:
            before = server.workers()
            server.publish(4)
            os.kill(min(before), signal.SIGKILL)  # while it looks, opens, or goes over
            server.publish(5)
            wait_until(lambda: len(server.workers() - before) == 1 and server.metrics("emberline_workers_missing") == [0])
            (server.models / "toy" / "served.json").write_text('{"version": 4}')
            wait_until(lambda: server.versions() == {"4"})
        finally:
            ended.set()
        assert set() < set.union(*[future.result() for future in asking]) <= {"2", "4", "5"}
    assert len(server.workers()) == WORKERS


def test_a_worker_that_hangs_is_told_and_counted_on(server: Served) -> None:
    wait_until(lambda: server.metrics("emberline_workers_missing") == [0])
    for _ in range(10):
        server.ask()
    name = 'emberline_requests_total{model="toy",protocol="http",status="ok"}'
    asked = server.metrics(name)[0]
    victim = max(server.workers())

    def health() -> int:
        """The status; 0 where nobody answers: the connection came to the one that hangs."""
        try:
            with urllib.request.urlopen(f"{server.http}/v2/health/ready", timeout=8):
                return 200
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    os.kill(victim, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(5) as pool:
            healths = pool.map(lambda _: health(), range(4))
            assert server.metrics("emberline_workers_missing", name) == [1, asked], "what it had counted is there"
            assert set(healths) <= {503, 0}
    finally:
        os.kill(victim, signal.SIGCONT)
    wait_until(lambda: server.metrics("emberline_workers_missing") == [0] and health() == 200)
