"""Versions that come, go and are damaged in the models folder of a server that answers meanwhile."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emberline.serving import Client
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import ToyModel, make_toy
from tests.serving.ways import Way, same

SETTINGS = ServerSettings(num_threads=1, delta_poll_s=0, version_poll_s=0.02, max_batch_rows=8)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    make_toy(seed=1).write(models)
    return models


@pytest.fixture
def server(models: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(models, settings=SETTINGS) as server:
        yield server


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def index(server: EmbeddedServer) -> dict[str, tuple[str, str]]:
    """Version and reason of each model."""
    entries = Way("http", server.http_url.partition("://")[2]).call("get_model_repository_index")
    return {entry["name"]: (entry.get("version", ""), entry.get("reason", "")) for entry in entries}


def metric(server: EmbeddedServer, name: str, model: str = "toy") -> float | None:
    found = server.service.metrics.registry.get_sample_value(name, {"model": model})
    return None if found is None else float(found)


def want(model: ToyModel) -> Any:
    return model.tables["user_emb"][2].numpy()


def wide(server: EmbeddedServer, model: str = "toy") -> Any:
    with Client(server.http_url, model) as client:
        return client.lookup([{"user": 100}], ["wide"])["wide"][0]


def publish(model: ToyModel, models: Path, version: int) -> Path:
    """Write a version as an export does: under another name, renamed once."""
    draft = model.write(models.parent / "drafts", version)
    final = models / model.name / str(version)
    final.parent.mkdir(exist_ok=True)
    return draft.rename(final)


def flip_byte(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_new_version_a_rollback_and_a_new_model_are_served_as_they_come(server: EmbeddedServer, models: Path) -> None:
    publish(make_toy(seed=3), models, 2)
    wait_until(lambda: index(server) == {"toy": ("2", "")})
    same(wide(server), want(make_toy(seed=3)))
    (models / "toy" / "served.json").write_text('{"version": 1}')
    wait_until(lambda: index(server) == {"toy": ("1", "")})
    same(wide(server), want(make_toy(seed=1)))
    (models / "toy" / "served.json").unlink()
    wait_until(lambda: index(server) == {"toy": ("2", "")})
    publish(make_toy(seed=4, name="added"), models, 7)
    wait_until(lambda: index(server) == {"added": ("7", ""), "toy": ("2", "")})
    same(wide(server, "added"), want(make_toy(seed=4)))
