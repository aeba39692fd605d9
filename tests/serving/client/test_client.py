"""The client against a server that is wrong, absent or gone; what it answers when all is well is in the conformance suite."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberline.errors import RequestError, ServingError, TooLargeError, UnavailableError
from emberline.serving import Client, Engine
from emberline.serving.client import AsyncClient
from emberline.serving.protocol import describe
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings


@pytest.fixture
def server(toy_artifact: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(toy_artifact, settings=ServerSettings(num_threads=1, max_request_bytes=20_000)) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, server: EmbeddedServer) -> str:
    return server.http_url if request.param == "http" else server.grpc_url


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "httpss://127.0.0.1:8000", "grpc+s://127.0.0.1:8001", "http://", "ftp://x", ""])
def test_another_url_is_refused(url: str) -> None:
    with Client(url, "toy") as client, pytest.raises(RequestError, match="must be http://host:port or grpc://host:port"):
        client.predict([{}])


@pytest.mark.parametrize("changes", [{"max_rows": 0}, {"timeout_s": 0}])
def test_limits_are_above_0(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="must be above 0"):
        Client("http://127.0.0.1:1", "toy", **changes)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_that_is_not_there_is_told_by_its_url(scheme: str) -> None:
    with Client(f"{scheme}://127.0.0.1:9", "toy") as client, pytest.raises(UnavailableError, match=f"cannot reach {scheme}://127.0.0.1:9"):
        client.predict([{}])


def test_a_model_of_another_kind_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = describe.model_config

    def foreign(*args: Any) -> dict[str, Any]:
        return {**whole(*args), "parameters": {}}

    monkeypatch.setattr(describe, "model_config", foreign)
    with Client(url, "toy") as client, pytest.raises(ServingError, match="model 'toy' is not Emberline's"):
        client.predict([{}])


def test_a_request_over_the_servers_limit_is_told_and_smaller_parts_help(url: str, toy_artifact: Path) -> None:
    rows = [{"user": user} for user in range(1000)]
    with Client(url, "toy") as client, pytest.raises(TooLargeError, match="20000"):
        client.predict(rows)
    with Client(url, "toy", max_rows=200) as client:
        found = client.predict(rows)["probs"]
    engine = Engine.open(toy_artifact, num_threads=1)
    want = np.concatenate([engine.predict(engine.encode_rows(rows[start : start + 200]))["probs"].numpy() for start in range(0, 1000, 200)])
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_the_schema_is_asked_for_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    whole = describe.model_config

    def count(*args: Any) -> dict[str, Any]:
        asked.append(1)
        return whole(*args)

    monkeypatch.setattr(describe, "model_config", count)
    with Client(url, "toy") as client:
        for _ in range(3):
            client.predict([{}])
    assert len(asked) == 1


def test_a_closed_client_says_so_and_leaves_no_thread(url: str) -> None:
    client = Client(url, "toy")
    assert client.predict([{}])["probs"].shape == (1,)
    client.close()
    client.close()
    with pytest.raises(RequestError, match="the client is closed"):
        client.predict([{}])
    assert "emberline-client" not in {thread.name for thread in threading.enumerate()}


def test_an_asynchronous_client_opens_again_after_a_close(url: str) -> None:
    async def ask() -> list[tuple[int, ...]]:
        client = AsyncClient(url, "toy")
        shapes = []
        for _ in range(2):
            shapes.append((await client.predict([{}, {}]))["probs"].shape)
            await client.close()
        return shapes

    assert asyncio.run(ask()) == [(2,), (2,)]


def test_nothing_to_ask_for_is_refused(url: str) -> None:
    with Client(url, "toy") as client, pytest.raises(RequestError, match="there is no output to ask for: the model has probs, scores"):
        client.predict([{}], [])
    with Client(url, "toy") as client, pytest.raises(RequestError, match="names of groups are a list"):
        client.lookup([{}], "deep")
