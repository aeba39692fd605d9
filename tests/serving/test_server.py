"""Starting, waiting, overload, deadlines and stopping, with a model that can be made slow."""

import asyncio
import functools
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from emberline.errors import ArtifactError, DeadlineError, LaunchError, OverloadedError, ServingError, UnavailableError
from emberline.serving import Client
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import ToyModel, make_steps_toy
from tests.serving.served_command import served
from tests.serving.ways import Way, fails

PROTOCOLS = ["http", "grpc"]


class Slow:
    """Holds a server's model until it is let go."""

    def __init__(self, server: EmbeddedServer) -> None:
        model = server.service.repository.get("toy")
        model.pace.most_bytes = 0  # what is slow is not answered in the event loop
        engine = model.engine
        self._answer = engine.predict_many
        self.entered = threading.Event()
        self.go = threading.Event()
        engine.predict_many = self  # type: ignore[assignment, method-assign]

    def __call__(self, *args: Any) -> Any:
        self.entered.set()
        assert self.go.wait(60)
        return self._answer(*args)


@pytest.fixture
def server(toy_artifact: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(toy_artifact, settings=ServerSettings(num_threads=1, max_waiting=2, timeout_s=10)) as server:
        yield server


@pytest.fixture
def slow(server: EmbeddedServer) -> Iterator[Slow]:
    slow = Slow(server)
    yield slow
    slow.go.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def url(server: EmbeddedServer, protocol: str) -> str:
    return server.http_url if protocol == "http" else server.grpc_url


def ask(client: Client) -> Any:
    try:
        return client.predict([{"user": 100}])
    except ServingError as error:
        return error


def test_health_answers_while_a_lookup_runs(server: EmbeddedServer, slow: Slow, pool: ThreadPoolExecutor) -> None:
    with Client(server.http_url, "toy") as http_client, Client(server.grpc_url, "toy") as grpc_client:
        asked = [pool.submit(ask, client) for client in (http_client, grpc_client)]
        assert slow.entered.wait(60)
        for protocol in PROTOCOLS:
            way = Way(protocol, url(server, protocol).partition("://")[2])
            assert way.call("is_server_live")
            assert way.call("is_server_ready")
            assert way.call("is_model_ready", "toy")
        assert not any(future.done() for future in asked)
        slow.go.set()
        assert [future.result()["probs"].shape for future in asked] == [(1,), (1,)]


def test_requests_that_wait_are_one_batch(server: EmbeddedServer, slow: Slow, pool: ThreadPoolExecutor) -> None:
    model = server.service.repository.get("toy")
    with Client(server.http_url, "toy") as http_client, Client(server.grpc_url, "toy") as grpc_client:
        first = pool.submit(ask, http_client)
        assert slow.entered.wait(60)
        rest = [pool.submit(ask, client) for client in (http_client, grpc_client)]
        wait_until(lambda: model._scheduler.num_waiting == 2)
        slow.go.set()
        assert [future.result()["probs"].shape for future in (first, *rest)] == [(1,)] * 3
    assert (model.statistics.execution_count, model.statistics.success_count) == (2, 3)


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_full_queue_is_an_overload(server: EmbeddedServer, slow: Slow, pool: ThreadPoolExecutor, protocol: str) -> None:
    with Client(url(server, protocol), "toy") as client:
        client.schema  # noqa: B018 - fetched beforehand
        running = pool.submit(ask, client)
        assert slow.entered.wait(60)
        waiting = [pool.submit(ask, client) for _ in range(4)]
        wait_until(lambda: sum(future.done() for future in waiting) == 2)
        slow.go.set()
        answers = [future.result() for future in waiting]
        assert sum(isinstance(answer, dict) for answer in answers) == 2
        refused = [answer for answer in answers if not isinstance(answer, dict)]
        assert [type(answer) for answer in refused] == [OverloadedError] * 2
        assert "2 requests wait already" in str(refused[0])
        assert isinstance(running.result(), dict)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_gives_up_after_its_timeout(server: EmbeddedServer, slow: Slow, protocol: str) -> None:
    with Client(url(server, protocol), "toy", timeout_s=0.3) as client:
        assert isinstance(ask(client), DeadlineError)


def test_a_servers_timeout_is_told_by_status(toy_artifact: Path) -> None:
    settings = ServerSettings(num_threads=1, timeout_s=0.2)
    with EmbeddedServer(toy_artifact, settings=settings) as server:
        slow = Slow(server)
        for protocol in PROTOCOLS:
            with Client(url(server, protocol), "toy", timeout_s=9) as client:
                error = ask(client)
            assert isinstance(error, DeadlineError)
            assert "no answer within the 0.2 s" in str(error)
        slow.go.set()


def test_a_request_that_expired_in_the_queue_is_not_computed(server: EmbeddedServer, slow: Slow, pool: ThreadPoolExecutor) -> None:
    model = server.service.repository.get("toy")
    with Client(server.grpc_url, "toy") as patient, Client(server.grpc_url, "toy", timeout_s=0.2) as hasty:
        hasty.schema  # noqa: B018 - fetched beforehand
        first = pool.submit(ask, patient)
        assert slow.entered.wait(60)
        assert isinstance(ask(hasty), DeadlineError)
        wait_until(lambda: model.statistics.fail_count == 1)  # the server has noticed it too
        slow.go.set()
        assert isinstance(first.result(), dict)
        assert isinstance(ask(patient), dict)
    assert model.statistics.queue_count == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stop_finishes_what_is_in_flight_and_refuses_the_rest(server: EmbeddedServer, slow: Slow, pool: ThreadPoolExecutor, protocol: str) -> None:
    with Client(url(server, protocol), "toy") as client:
        asked = pool.submit(ask, client)
        assert slow.entered.wait(60)
        stopped = pool.submit(server.stop)
        wait_until(lambda: not server.service.taking_requests)
        assert isinstance(ask(client), UnavailableError)
        assert not stopped.done()
        slow.go.set()
        assert asked.result()["probs"].shape == (1,)
        stopped.result(60)
        assert isinstance(ask(client), UnavailableError)


def test_a_draining_service_says_that_it_is_not_ready(server: EmbeddedServer) -> None:
    server.service.drain()
    for protocol in PROTOCOLS:
        way = Way(protocol, url(server, protocol).partition("://")[2])
        assert way.call("is_server_live")
        assert not way.call("is_server_ready")
        assert not way.call("is_model_ready", "toy")
        status, message = fails(functools.partial(way.call, "infer", "toy", []))
        assert (status, "stopping" in message) == ("UNAVAILABLE", True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_that_hangs_or_fails_is_not_ready(toy_artifact: Path, protocol: str) -> None:
    settings = ServerSettings(num_threads=1, timeout_s=0.5, delta_poll_s=0)
    with EmbeddedServer(toy_artifact, settings=settings) as server, Client(url(server, protocol), "toy") as client:
        way = Way(protocol, url(server, protocol).partition("://")[2])
        assert way.call("is_model_ready", "toy")
        slow = Slow(server)
        assert isinstance(ask(client), DeadlineError)
        wait_until(lambda: not way.call("is_model_ready", "toy"))
        assert not way.call("is_server_ready")
        assert way.call("is_server_live")
        slow.go.set()
        wait_until(lambda: way.call("is_server_ready"))
        assert way.call("is_model_ready", "toy")

        def fail(*args: Any) -> Any:
            raise MemoryError

        model = server.service.repository.get("toy")
        model.engine.predict_many = fail  # type: ignore[assignment, method-assign]
        wait_until(lambda: not way.call("is_model_ready", "toy"))
        assert model.statistics.success_count == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_over_a_limit_are_refused_with_limit_and_size(toy_artifact: Path, protocol: str) -> None:
    settings = ServerSettings(num_threads=1, max_request_rows=3, max_request_ids=5, delta_poll_s=0)
    with EmbeddedServer(toy_artifact, settings=settings) as server, Client(url(server, protocol), "toy") as client:
        assert client.predict([{"item": [1, 2]}, {"item": [3]}, {"item": [4, 5]}])["probs"].shape == (3,)
        with pytest.raises(ServingError, match="the request has 4 rows; this server takes at most 3"):
            client.predict([{}] * 4)
        with pytest.raises(ServingError, match="the request has 6 ids; this server takes at most 5"):
            client.predict([{"item": [1, 2, 3, 4, 5, 6]}])


@pytest.mark.parametrize(("rows", "problem"), [([{}] * 4, "has 4 rows"), ([{"item": [1, 2, 3, 4, 5, 6]}], "has 6 ids")])
def test_plain_rows_over_a_limit_are_refused_too(toy_artifact: Path, rows: list[Any], problem: str) -> None:
    settings = ServerSettings(num_threads=1, max_request_rows=3, max_request_ids=5, delta_poll_s=0)
    with EmbeddedServer(toy_artifact, settings=settings) as server:
        connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=10)
        connection.request("POST", "/v1/models/toy:predict", json.dumps({"rows": rows}).encode())
        answer = connection.getresponse()
        assert (answer.status, problem in json.loads(answer.read())["error"]) == (413, True)
        connection.close()


def test_one_long_row_among_many_is_refused_before_it_is_padded(tmp_path: Path) -> None:
    settings = ServerSettings(num_threads=1, max_padded_steps=100, delta_poll_s=0)
    rows = [{"clicks": [100] * 5, "words": [["a"]] * 5, "prices": [[1, 2]] * 5}] + [{}] * 20
    with EmbeddedServer(make_steps_toy().write(tmp_path), settings=settings) as server, Client(server.http_url, "steps") as client:
        assert client.predict(rows[:20])["score"].shape == (20,)
        with pytest.raises(
            ServingError, match=r'21 rows padded to the 5 steps of the longest are 105 steps of "clicks"; this server takes at most 100'
        ):
            client.predict(rows)


def test_a_fault_of_ours_is_told_without_its_inside(server: EmbeddedServer, caplog: pytest.LogCaptureFixture) -> None:
    engine = server.service.repository.get("toy").engine

    def fail(*args: Any) -> Any:
        raise ValueError("/secret/path")

    engine.predict_many = fail  # type: ignore[assignment, method-assign]
    for protocol in PROTOCOLS:
        with Client(url(server, protocol), "toy") as client:
            error = ask(client)
        assert type(error) is ServingError
        assert "secret" not in str(error)
    assert "/secret/path" in caplog.text


def test_an_rpc_without_time_left_is_refused(server: EmbeddedServer) -> None:
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(pb.ModelInferRequest(model_name="toy"), timeout=1e-6)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("which", ["http_port", "grpc_port", "metrics_port"])
def test_a_taken_port_is_told(toy_artifact: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ServerSettings(num_threads=1, metrics_port=port if which == "metrics_port" else None)
        ports = {which: port} if which != "metrics_port" else {}
        server = EmbeddedServer(toy_artifact, settings=settings, **ports)
        with pytest.raises(LaunchError, match=rf"cannot listen on 127\.0\.0\.1:{port}.*in use; choose another"), server:
            pass


def test_metrics_have_a_port_of_their_own_where_asked_for(toy_artifact: Path) -> None:
    with EmbeddedServer(toy_artifact, settings=ServerSettings(num_threads=1, metrics_port=0)) as server:
        assert server.metrics_url.partition(":")[2] != server.http_url.partition(":")[2] + "/metrics"
        place, _, path = server.metrics_url.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(place, timeout=10)
        connection.request("GET", f"/{path}")
        assert b'emberline_model_version{model="toy"} 1.0' in connection.getresponse().read()
        connection.close()


def test_a_damaged_artifact_is_not_served(toy_artifact: Path) -> None:
    file = toy_artifact / "tables" / "item_emb.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"item_emb\.safetensors"), EmbeddedServer(toy_artifact.parent.parent):
        pass


def test_servers_leave_no_threads(toy_artifact: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with EmbeddedServer(toy_artifact, settings=ServerSettings(num_threads=1, metrics_port=0)) as server, Client(server.http_url, "toy") as client:
        client.predict([{}])
    left = {thread.name for thread in threading.enumerate()} - before
    assert not {name for name in left if name.startswith(("emberline", "model-"))}


def test_two_servers_live_in_one_process(toy: ToyModel, tmp_path: Path) -> None:
    toy.write(tmp_path / "a", version=1)
    toy.write(tmp_path / "b", version=2)

    async def versions(urls: list[str]) -> list[str]:
        return await asyncio.gather(*[asyncio.to_thread(version, one) for one in urls])

    def version(http_url: str) -> str:
        connection = http.client.HTTPConnection(http_url.removeprefix("http://"), timeout=10)
        connection.request("POST", "/v1/models/toy:predict", b'{"rows": [{}]}')
        found: str = json.loads(connection.getresponse().read())["version"]
        connection.close()
        return found

    settings = ServerSettings(num_threads=1)
    with EmbeddedServer(tmp_path / "a", settings=settings) as a, EmbeddedServer(tmp_path / "b", settings=settings) as b:
        assert asyncio.run(versions([a.http_url, b.http_url] * 4)) == ["1", "2"] * 4


def complaints(log: str) -> list[str]:
    """The lines of a log that are more than notes."""
    return [line for line in log.splitlines() if " INFO " not in line]


def test_a_signal_loses_no_request_that_was_taken(toy_artifact: Path) -> None:
    answers: list[Any] = []

    def ask_on(place: str) -> None:
        with Client(place, "toy", retries=0) as client:
            while not answers or isinstance(answers[-1], dict):
                answers.append(ask(client))

    with served(toy_artifact.parent.parent) as (process, lines):
        urls = [word for line in lines for word in line.split() if "://127.0.0.1:" in word and word.count("/") == 2]
        threads = [threading.Thread(target=ask_on, args=(place,)) for place in urls[:2] * 3]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(answers) > 50)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        _, errors = process.communicate(timeout=120)
    refused = [answer for answer in answers if not isinstance(answer, dict)]
    assert {type(answer) for answer in refused} == {UnavailableError}
    assert (process.returncode, complaints(errors)) == (0, [])


def test_the_command_serves_and_ends_by_signal_with_status_0(toy_artifact: Path) -> None:
    with served(toy_artifact.parent.parent) as (process, lines):
        urls = [word for line in lines for word in line.split() if "://127.0.0.1:" in word and word.count("/") == 2]
        assert "  toy, version 1\n" in lines
        for place in urls[:2]:
            with Client(place, "toy") as client:
                assert client.predict([{}])["probs"].shape == (1,)
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=120)
    assert (process.returncode, rest, complaints(errors)) == (0, "Stopped.\n", [])
