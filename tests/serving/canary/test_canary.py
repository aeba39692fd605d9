"""Candidates that servers try beside what they serve."""

import gc
import json
import threading
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from emberline.serving import Client
from emberline.serving.canary.mirror import MOST_WAITING
from emberline.serving.engine import Engine
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy
from tests.serving.ways import same

SETTINGS = ServerSettings(num_threads=1, delta_poll_s=0, version_poll_s=0, max_batch_rows=8)
ROWS: list[list[dict[str, Any]]] = [[{"user": 100}, {"user": 5}, {"user": -7}], [{"user": 200}], [{"user": 2**62}, {"user": 100}], [{"user": 100}]]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Version 1 is served, 2 is the same, and 3 has another table of users."""
    models = tmp_path / "models"
    toy = make_toy(seed=1)
    toy.write(models, 1)
    toy.write(models, 2)
    replace(toy, tables={**toy.tables, "user_emb": toy.tables["user_emb"] * 2}).write(models, 3)
    (models / "toy" / "served.json").write_text('{"version": 1}')
    return models


@pytest.fixture
def server(models: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(models, settings=SETTINGS) as server:
        yield server


def call(server: EmbeddedServer, verb: str, body: Any = None, *, get: bool = False) -> tuple[int, Any]:
    data = None if get else json.dumps(body or {}).encode()
    try:
        with urllib.request.urlopen(f"{server.http_url}/v1/models/toy:{verb}", data, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def start(server: EmbeddedServer, version: int, **more: Any) -> None:
    status, found = call(server, "canary", {"version": version, **more})
    assert status == 200, found


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def settled(server: EmbeddedServer) -> Any:
    """The report, once nothing waits."""
    found: Any = None

    def is_settled() -> bool:
        nonlocal found
        found = call(server, "canary", get=True)[1]
        counts = found["requests"]
        return bool(counts["mirrored"] == counts["compared"] + counts["failed"] + counts["dropped"])

    wait_until(is_settled)
    return found


def ask(server: EmbeddedServer) -> None:
    with Client(server.http_url, "toy") as client:
        for rows in ROWS:
            client.predict(rows)
            client.lookup(rows)


def served(server: EmbeddedServer) -> int:
    return server.service.repository.get("toy").version


def test_the_same_version_again_does_not_drift(server: EmbeddedServer) -> None:
    start(server, 2, share=1)
    ask(server)
    found = settled(server)
    assert found["requests"] == {"seen": 8, "mirrored": 8, "compared": 8, "failed": 0, "dropped": 0}
    assert (found["version"], found["candidate"], found["rows"], found["moved_most"]) == (1, 2, 14, [])
    assert all((one["max_difference"], one["mean_difference"]) == (0, 0) for one in found["outputs"].values())
    assert {one["mean_cosine"] for one in found["outputs"].values()} <= {1.0, None}
    assert found["unknown_ids"]["user_emb"] == {"asked": 14, "served": 1 / 7, "candidate": 1 / 7}


def test_drift_is_that_of_two_engines(server: EmbeddedServer, models: Path) -> None:
    start(server, 3, share=1.0)
    ask(server)
    found = settled(server)
    engines = [Engine.open(models / "toy" / str(version), num_threads=1) for version in (1, 3)]
    differences: dict[str, list[Any]] = {}
    moved: list[tuple[float, int]] = []
    for rows in ROWS:
        for which in ("predict", "lookup"):
            ours, theirs = ({name: value.double().numpy() for name, value in getattr(one, which)(one.encode_rows(rows)).items()} for one in engines)
            apart = {name: np.abs(ours[name] - theirs[name]) for name in ours}
            for name, values in apart.items():
                differences.setdefault(name if which == "predict" else f"lookup.{name}", []).append(values)
            for row, given in enumerate(rows):
                moved.append((max(float(values[row].max()) for values in apart.values()), given["user"]))
    assert sorted(found["outputs"]) == sorted(differences)
    for name, parts in differences.items():
        values, told = np.concatenate([part.reshape(-1) for part in parts]), found["outputs"][name]
        assert told["values"] == values.size
        assert told["max_difference"] == values.max()
        assert told["mean_difference"] == pytest.approx(values.mean(), rel=1e-12)
    want = sorted((pair for pair in moved if pair[0] > 0), key=lambda pair: -pair[0])[:10]
    assert [one["difference"] for one in found["moved_most"]] == [difference for difference, _ in want]
    assert found["moved_most"][0]["ids"]["user"] == [want[0][1]]
    assert all(one["request_id"] and one["served"].keys() == one["candidate"].keys() for one in found["moved_most"])
    registry = server.service.metrics.registry
    assert registry.get_sample_value("emberline_canary_max_difference", {"model": "toy"}) == max(want)[0]
    assert registry.get_sample_value("emberline_canary_requests_total", {"model": "toy", "result": "compared"}) == 8


def test_a_share_is_taken_by_the_seed(server: EmbeddedServer) -> None:
    start(server, 2, share=0.25, seed=7)
    with Client(server.http_url, "toy") as client:
        for _ in range(40):
            client.predict([{"user": 100}])
    draw = Random(7)
    want = sum(draw.random() < 0.25 for _ in range(40))
    assert 4 <= want <= 16
    assert settled(server)["requests"]["mirrored"] == want


def test_a_candidate_that_hangs_or_fails_changes_no_answer(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    start(server, 3, share=1)
    candidate = server.service.repository.candidates["toy"]
    goes_on = threading.Event()

    def hang(*_: Any) -> Any:
        assert goes_on.wait(60)
        raise ValueError("a secret")

    monkeypatch.setattr(candidate.engine, "predict_many", hang)
    want = make_toy(seed=1).tables["user_emb"][2].numpy()
    with Client(server.http_url, "toy") as client:
        for _ in range(MOST_WAITING + 6):
            same(client.lookup([{"user": 100}], ["wide"])["wide"][0], want)
    counts = call(server, "canary", get=True)[1]["requests"]
    assert (counts["seen"], counts["compared"]) == (MOST_WAITING + 6, 0)
    assert 5 <= counts["dropped"] <= 6
    goes_on.set()
    found = settled(server)
    assert found["requests"]["failed"] == MOST_WAITING + 6 - counts["dropped"]
    assert found["last_error"] == "it failed; the server's log says why"


def test_promotion_holds_until_the_folder_says_something_else(models: Path) -> None:
    with EmbeddedServer(models, settings=replace(SETTINGS, version_poll_s=0.02)) as server:
        start(server, 3)
        assert call(server, "promote") == (200, {"model": "toy", "version": 3})
        time.sleep(0.1)
        assert served(server) == 3
        with Client(server.http_url, "toy") as client:
            same(client.lookup([{"user": 100}], ["wide"])["wide"][0], 2 * make_toy(seed=1).tables["user_emb"][2].numpy())
        start(server, 1)
        (models / "toy" / "served.json").write_text('{"version": 2}')
        wait_until(lambda: served(server) == 2)
        assert call(server, "canary", get=True) == (404, 'model "toy" has no canary; that of version 1 has ended: version 2 is served now')
    with EmbeddedServer(models, settings=SETTINGS) as server:
        assert served(server) == 2


def test_a_candidate_is_asked_by_its_version_and_its_memory_goes_when_it_is_dropped(server: EmbeddedServer, models: Path) -> None:
    start(server, 3, share=1)
    with EmbeddedServer(models / "toy" / "3", settings=SETTINGS) as other, Client(other.http_url, "toy") as client:
        want = client.known([{"user": 5}, {"user": 100}])
    with Client(server.http_url, "toy", version="3") as client:
        found = client.known([{"user": 5}, {"user": 100}])
    same(found["user"], want["user"])
    gone = weakref.ref(server.service.repository.candidates["toy"])
    assert call(server, "drop") == (200, {"model": "toy", "version": 1})
    gc.collect()
    wait_until(lambda: gone() is None)
    assert call(server, "drop")[0] == 404
    start(server, 3)
    request = urllib.request.Request(f"{server.http_url}/v2/repository/models/toy/unload", b"{}")
    urllib.request.urlopen(request, timeout=60).close()
    assert call(server, "canary", get=True)[0] == 404
    assert not server.service.repository.candidates


def test_what_cannot_be_tried_is_refused(server: EmbeddedServer, models: Path) -> None:
    make_toy(seed=1).write(models, 4)
    (models / "toy" / "4" / "tables" / "user_emb.safetensors").unlink()
    for body, status, text in [
        ({"version": 1}, 400, "is the one that is served"),
        ({"version": 9}, 404, "has no version 9"),
        ({"version": 4}, 500, "version 4 is refused: "),
        ({}, 400, "version must be"),
        ({"version": True}, 400, "version must be"),
        ({"version": 2, "share": 0}, 400, "share must be"),
        ({"version": 2, "share": 1.5}, 400, "share must be"),
        ({"version": 2, "seed": -1}, 400, "seed must be"),
        ({"version": 2, "more": 1}, 400, "no key"),
    ]:
        found = call(server, "canary", body)
        assert found[0] == status, found
        assert text in found[1]
        assert str(models) not in found[1]
    start(server, 2)
    assert call(server, "canary", {"version": 3})[0] == 400
