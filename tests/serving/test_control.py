"""Models that come, change and go while a server runs."""

import functools
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberline.errors import NotFoundError
from emberline.serving import Client
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import ToyModel, make_toy
from tests.serving.ways import Way, fails, same

SETTINGS = ServerSettings(num_threads=1, delta_poll_s=0, version_poll_s=0, max_batch_rows=8)
"""Small batches, so that a model that comes is not warmed up for long."""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    make_toy(seed=1).write(models)
    return models


@pytest.fixture
def server(models: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(models, settings=SETTINGS) as server:
        yield server


@pytest.fixture(params=["http", "http-aio", "grpc", "grpc-aio"])
def way(request: pytest.FixtureRequest, server: EmbeddedServer) -> Way:
    return Way(request.param, (server.http_url if request.param.startswith("http") else server.grpc_url).partition("://")[2])


def index(way: Way) -> dict[str, tuple[str, str, str]]:
    """Version, state and reason of each model."""
    found = way.call("get_model_repository_index", **({} if way.is_http else {"as_json": True}))
    entries = found if way.is_http else found.get("models", [])
    return {entry["name"]: (entry.get("version", ""), entry.get("state", ""), entry.get("reason", "")) for entry in entries}


def wide(place: str, model: str = "toy") -> Any:
    with Client(place, model) as client:
        return client.lookup([{"user": 100}], ["wide"])["wide"][0]


def want(model: ToyModel) -> Any:
    return model.tables["user_emb"][2].numpy()


def test_a_new_model_is_served_and_taken_away(way: Way, server: EmbeddedServer, models: Path) -> None:
    added = make_toy(seed=2, name="added")
    added.write(models)
    assert index(way) == {"toy": ("1", "READY", ""), "added": ("", "UNAVAILABLE", "not loaded")}
    assert fails(lambda: way.call("get_model_metadata", "added"))[0] == "NOT_FOUND"
    way.call("load_model", "added")
    assert index(way) == {"toy": ("1", "READY", ""), "added": ("1", "READY", "")}
    assert way.call("is_model_ready", "added")
    same(wide(server.http_url, "added"), want(added))
    way.call("unload_model", "added")
    assert index(way) == {"toy": ("1", "READY", ""), "added": ("", "UNAVAILABLE", "unloaded")}
    assert fails(lambda: way.call("get_model_metadata", "added"))[0] == "NOT_FOUND"
    assert fails(lambda: way.call("unload_model", "added"))[0] == "NOT_FOUND"
    same(wide(server.http_url), want(make_toy(seed=1)))
    way.call("load_model", "added")
    same(wide(server.grpc_url, "added"), want(added))


def test_a_new_version_takes_the_place_of_the_old(way: Way, server: EmbeddedServer, models: Path) -> None:
    newer = make_toy(seed=3)
    newer.write(models, version=2)
    way.call("load_model", "toy")
    assert index(way) == {"toy": ("2", "READY", "")}
    same(wide(server.http_url), want(newer))
    (models / "toy" / "served.json").write_text('{"version": 1}')
    way.call("load_model", "toy")
    assert index(way) == {"toy": ("1", "READY", "")}
    same(wide(server.http_url), want(make_toy(seed=1)))


def test_a_version_that_cannot_be_opened_leaves_the_old_one(way: Way, server: EmbeddedServer, models: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = make_toy(seed=3).write(models, version=2) / "tables" / "item_emb.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    status, message = fails(lambda: way.call("load_model", "toy"))
    assert (status, message) == ("INTERNAL", 'model "toy" cannot be loaded; the server\'s log says why')
    assert [str(damaged) in record.getMessage() or "item_emb.safetensors" in record.getMessage() for record in caplog.records] == [True]
    why = "version 2 is refused: the artifact is damaged: tables/item_emb.safetensors has 447 bytes, not 448"
    assert index(way) == {"toy": ("1", "READY", why)}
    same(wide(server.http_url), want(make_toy(seed=1)))


def test_a_model_whose_served_version_is_not_there_hides_no_other(server: EmbeddedServer, models: Path) -> None:
    way = Way("http", server.http_url.partition("://")[2])
    for name in ("broken", "whole"):
        make_toy(name=name).write(models)
    (models / "broken" / "served.json").write_text('{"version": 9}')
    assert index(way) == {"toy": ("1", "READY", ""), **dict.fromkeys(("broken", "whole"), ("", "UNAVAILABLE", "not loaded"))}
    assert fails(lambda: way.call("load_model", "broken"))[0] == "INTERNAL"
    why = "what is to be served is refused: broken: served.json says that version 9 is served, which is not there: there are 1"
    assert index(way)["broken"] == ("", "UNAVAILABLE", f"{why}; name one by --rollback K")


def test_only_models_of_the_folder_are_loaded(way: Way, models: Path) -> None:
    make_toy(name=".hidden").write(models)
    make_toy(name="outside").write(models.parent)
    for name in ("nope", "..", ".hidden", "toy/1", "../../toy"):
        status, message = fails(functools.partial(way.call, "load_model", name))
        assert (name, status) == (name, "NOT_FOUND")
        assert str(models.parent) not in message


def test_configs_and_files_of_a_callers_own_are_refused(way: Way) -> None:
    status, message = fails(lambda: way.call("load_model", "toy", config='{"backend": "python"}'))
    assert (status, 'the parameter "config" is not supported' in message) == ("INVALID_ARGUMENT", True)
    status, message = fails(lambda: way.call("load_model", "toy", config="{}", files={"file:1/model.py": b"x"}))
    assert (status, "is not supported" in message) == ("INVALID_ARGUMENT", True)
    way.call("unload_model", "toy", unload_dependents=True)


def test_models_stay_where_the_server_was_told_so(models: Path) -> None:
    with EmbeddedServer(models, settings=replace(SETTINGS, model_control=False)) as server:
        for protocol, place in (("http", server.http_url), ("grpc", server.grpc_url)):
            way = Way(protocol, place.partition("://")[2])
            for method in ("load_model", "unload_model"):
                status, message = fails(functools.partial(way.call, method, "toy"))
                assert (status, "does not load or unload models" in message) == ("UNAVAILABLE", True)
            assert index(way) == {"toy": ("1", "READY", "")}


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("box", False)],
)
def test_only_this_machine_may_change_models_unless_told_otherwise(host: str, allowed: bool) -> None:
    assert ServerSettings(host=host).allows_model_control is allowed
    assert [ServerSettings(host=host, model_control=told).allows_model_control for told in (True, False)] == [True, False]


def test_a_single_artifact_is_loaded_by_its_own_name_only(models: Path) -> None:
    make_toy(name="other").write(models)
    with EmbeddedServer(models / "toy" / "1", settings=SETTINGS) as server:
        way = Way("http", server.http_url.partition("://")[2])
        assert fails(lambda: way.call("load_model", "other"))[0] == "NOT_FOUND"
        way.call("unload_model", "toy")
        assert index(way) == {"toy": ("", "UNAVAILABLE", "unloaded")}
        way.call("load_model", "toy")
        same(wide(server.http_url), want(make_toy(seed=1)))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_request_is_answered_by_one_version_or_the_other_while_they_change(server: EmbeddedServer, models: Path, protocol: str) -> None:
    wanted = [want(make_toy(seed=1)), want(make_toy(seed=3))]
    make_toy(seed=3).write(models, version=2)
    place, ended = server.http_url if protocol == "http" else server.grpc_url, threading.Event()

    def ask_on(_: int) -> set[int]:
        seen = set()
        with Client(place, "toy", retries=0) as client:
            while not ended.is_set():
                found = client.lookup([{"user": 100}] * 3, ["wide"])["wide"]
                (version,) = [number for number, one in enumerate(wanted) if np.allclose(found, one, rtol=1e-5, atol=1e-6)]
                seen.add(version)
        return seen

    way = Way(protocol, place.partition("://")[2])
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask_on, number) for number in range(8)]
        for version in (2, 1, 2, 1):
            (models / "toy" / "served.json").write_text(f'{{"version": {version}}}')
            way.call("load_model", "toy")
        ended.set()
        assert set.union(*[future.result() for future in asking]) == {0, 1}


def test_what_was_asked_before_a_model_went_is_answered(server: EmbeddedServer) -> None:
    model = server.service.repository.get("toy")
    answer, entered, go = model.engine.predict_many, threading.Event(), threading.Event()

    def hold(*args: Any) -> Any:
        entered.set()
        assert go.wait(60)
        return answer(*args)

    model.pace.most_bytes = 0
    model.engine.predict_many = hold  # type: ignore[assignment, method-assign]
    with ThreadPoolExecutor(2) as pool, Client(server.http_url, "toy") as client:
        asked = pool.submit(client.lookup, [{"user": 100}], ["wide"])
        assert entered.wait(60)
        unloading = pool.submit(Way("grpc", server.grpc_url.partition("://")[2]).call, "unload_model", "toy")
        while list(server.service.repository):
            time.sleep(0.005)
        assert not unloading.done()
        go.set()
        same(asked.result()["wide"][0], want(make_toy(seed=1)))
        unloading.result(60)
        with pytest.raises(NotFoundError, match="this server has none"):
            client.predict([{}])


def test_memory_stays_flat_while_models_come_and_go(server: EmbeddedServer, models: Path) -> None:
    way = Way("http", server.http_url.partition("://")[2])
    wanted = [want(make_toy(seed=seed)) for seed in (1, 3)]
    make_toy(seed=3).write(models, version=2)
    sizes, before = [], set(threading.enumerate())
    for turn in range(50):
        (models / "toy" / "served.json").write_text(f'{{"version": {turn % 2 + 1}}}')
        way.call("load_model", "toy")
        same(wide(server.http_url), wanted[turn % 2])
        if turn % 5 == 0:
            way.call("unload_model", "toy")
        if turn in (24, 49):
            gc.collect()
            sizes.append(_resident_mib())
    way.call("unload_model", "toy")
    assert sizes[1] - sizes[0] < 8
    assert not [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith(("model-", "deltas-"))]
    assert b'emberline_model_version{model="toy"}' not in server.service.metrics.render()


def test_the_memory_of_a_model_goes_with_it(server: EmbeddedServer, models: Path) -> None:
    way = Way("http", server.http_url.partition("://")[2])
    wide(server.http_url)
    wide(server.grpc_url)
    engines = [weakref.ref(server.service.repository.get("toy").engine)]
    make_toy(seed=3).write(models, version=2)
    gc.disable()
    try:
        way.call("load_model", "toy")
        engines.append(weakref.ref(server.service.repository.get("toy").engine))
        wide(server.http_url)
        assert (engines[0](), engines[1]() is None) == (None, False)
        way.call("unload_model", "toy")
        assert engines[1]() is None
    finally:
        gc.enable()


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
