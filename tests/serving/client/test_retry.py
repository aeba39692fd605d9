"""The client asks again where that may help, and keeps its connections, over real sockets."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberline.errors import DeadlineError, OverloadedError, RequestError, ServingError, UnavailableError
from emberline.serving import Client, Engine
from emberline.serving.client import AsyncClient
from emberline.serving.client.retry import ask_again
from emberline.serving.model import LoadedModel
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.client.proxy import Proxy
from tests.serving.conftest import make_toy

ROWS: list[dict[str, object]] = [{"user": 100, "price": 1.5}, {"user": 7}]
ONE_THREAD = ServerSettings(num_threads=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    make_toy().write(models)
    return models


@pytest.fixture(scope="module")
def want(models: Path) -> Any:
    engine = Engine.open(models / "toy", num_threads=1)
    return engine.predict(engine.encode_rows(ROWS))["probs"].numpy()


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(models, settings=ONE_THREAD) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, server: EmbeddedServer) -> str:
    return server.http_url if request.param == "http" else server.grpc_url


def same(found: Any, want: Any) -> None:
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_connections_that_are_closed_are_opened_again(url: str, want: Any) -> None:
    with Proxy(url, drop=2) as proxy, Client(proxy.url, "toy") as client:
        same(client.predict(ROWS)["probs"], want)
        assert proxy.num_accepted == 3


def test_without_retries_the_first_failure_is_told(url: str) -> None:
    with Proxy(url, drop=4) as proxy, Client(proxy.url, "toy", retries=0) as client, pytest.raises(UnavailableError):
        client.predict(ROWS)


def test_a_connection_that_is_lost_between_requests_is_no_error(url: str, want: Any) -> None:
    with Proxy(url) as proxy, Client(proxy.url, "toy") as client:
        for _ in range(3):
            same(client.predict(ROWS)["probs"], want)
            proxy.cut()


def test_a_server_that_was_away_is_found_again(models: Path, want: Any) -> None:
    with EmbeddedServer(models, settings=ONE_THREAD) as first:
        urls = (first.http_url, first.grpc_url)
        clients = [Client(url, "toy") for url in urls]
        for client in clients:
            same(client.predict(ROWS)["probs"], want)
    for client in clients:
        with pytest.raises(ServingError):
            client.predict(ROWS)
    ports = [int(url.rpartition(":")[2]) for url in urls]
    with EmbeddedServer(models, http_port=ports[0], grpc_port=ports[1], settings=ONE_THREAD):
        for client in clients:
            with client:
                same(client.predict(ROWS)["probs"], want)


@pytest.mark.parametrize("error", [OverloadedError("busy"), UnavailableError("stopping")])
def test_a_busy_server_is_asked_again(url: str, want: Any, error: ServingError, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = refuse_first(monkeypatch, error, times=2)
    with Client(url, "toy") as client:
        same(client.predict(ROWS)["probs"], want)
    assert len(asked) == 3


@pytest.mark.parametrize("error", [RequestError("wrong"), DeadlineError("late"), ServingError("a fault")])
def test_what_would_fail_again_is_asked_once(url: str, error: ServingError, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = refuse_first(monkeypatch, error, times=2)
    with Client(url, "toy") as client, pytest.raises(type(error)):
        client.predict(ROWS)
    assert len(asked) == 1


def refuse_first(monkeypatch: pytest.MonkeyPatch, error: ServingError, times: int) -> list[None]:
    """The model refuses its first requests; the list grows with each that comes."""
    asked: list[None] = []
    whole = LoadedModel.infer

    async def infer(self: LoadedModel, *rest: Any) -> Any:
        asked.append(None)
        if len(asked) <= times:
            raise error
        return await whole(self, *rest)

    monkeypatch.setattr(LoadedModel, "infer", infer)
    return asked


def test_one_connection_serves_all_calls_that_follow_each_other(url: str, want: Any) -> None:
    with Proxy(url) as proxy, Client(proxy.url, "toy", max_rows=1) as client:
        for _ in range(5):
            same(client.predict(ROWS)["probs"], want)
            client.lookup(ROWS)
        assert proxy.num_accepted == 1


def test_calls_at_the_same_time_share_one_grpc_channel(server: EmbeddedServer, want: Any) -> None:
    async def ask(url: str) -> list[Any]:
        async with AsyncClient(url, "toy") as client:
            return await asyncio.gather(*[client.predict(ROWS) for _ in range(20)])

    with Proxy(server.grpc_url) as proxy:
        for found in asyncio.run(ask(proxy.url)):
            same(found["probs"], want)
        assert proxy.num_accepted == 1


def test_retries_are_0_or_more() -> None:
    with pytest.raises(RequestError, match="retries must be 0 or more, found -1"):
        Client("http://127.0.0.1:1", "toy", retries=-1)


@pytest.mark.parametrize(("timeout_s", "retries", "want_attempts"), [(10, 0, 1), (10, 1, 2), (10, 3, 4), (0.1, 5, 1), (0.3, 9, 2)])
def test_attempts_end_with_the_retries_or_the_time(timeout_s: float, retries: int, want_attempts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr("emberline.serving.client.retry.random.uniform", lambda low, high: high)

    async def ask(left_s: float) -> None:
        given.append(left_s)
        raise UnavailableError(str(len(given)))

    with pytest.raises(UnavailableError, match=str(want_attempts)):
        asyncio.run(ask_again(ask, retries=retries, timeout_s=timeout_s))
    assert len(given) == want_attempts
    assert given[0] == timeout_s
    assert given == sorted(given, reverse=True)
