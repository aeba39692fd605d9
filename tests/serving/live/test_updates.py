"""Versions that come, go and are damaged in the models folder of a server that answers meanwhile."""

import json
import math
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from emberline.errors import ArtifactError
from emberline.manifest import hash_tree, read_manifest
from emberline.serving import Client
from emberline.serving.files import load_tensors, write_tensors
from emberline.serving.metrics import seconds_of
from emberline.serving.model import LoadedModel
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import ToyModel, make_toy, reseal
from tests.serving.deltas.toy_delta import changed, write_delta
from tests.serving.ways import Way, fails, same

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
        time.sleep(0.03)


def kept(cache: Path) -> list[str]:
    """Versions of which copies are kept; a folder may go while it is looked into."""
    with suppress(FileNotFoundError):
        return sorted(path.name for path in cache.glob("*/*"))
    return []


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


def half_copied(root: Path) -> None:
    (root / "tables" / "city_emb.safetensors").unlink()


def flipped_byte(root: Path) -> None:
    flip_byte(root / "tables" / "tags_emb.safetensors")


def another_answer(root: Path) -> None:
    """The sample's answers are not the model's; all digests are right."""
    path = root / "golden.safetensors"
    sample = {name: tensor.clone() for name, tensor in load_tensors(path.read_bytes(), path.name).items()}
    sample["output.probs"] += 0.5
    write_tensors(path, sample)
    reseal(root)


def no_program(root: Path) -> None:
    (root / "programs" / "outputs.ts").write_bytes(b"no archive")
    reseal(root)


def another_name(root: Path) -> None:
    reseal(root, read_manifest(root) | {"name": "other"})


def another_number(root: Path) -> None:
    reseal(root, read_manifest(root) | {"version": 7})


def changed_manifest(root: Path) -> None:
    flip_byte(root / "manifest.json", 20)


SPOILT: list[tuple[Callable[[Path], None], str]] = [
    (half_copied, "the artifact is damaged: tables/city_emb.safetensors is missing"),
    (flipped_byte, "the artifact is damaged: tables/tags_emb.safetensors was changed"),
    (another_answer, "golden.safetensors: 'output.probs' is not what it was at export"),
    (no_program, "programs/outputs.ts"),
    (another_name, "the manifest tells of 'other' version 2, not of this folder"),
    (another_number, "the folder says version 2, manifest.json says 7"),
    (changed_manifest, "manifest.json"),
]


def test_a_bad_version_is_refused_with_the_reason_and_the_old_one_serves_on(
    server: EmbeddedServer, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = 0.0
    for spoil, problem in SPOILT:
        root = make_toy(seed=3).write(models.parent / "drafts", 2)
        spoil(root)
        final = root.rename(models / "toy" / "2")
        wait_until(lambda: index(server)["toy"][1] != "")
        version, reason = index(server)["toy"]
        assert (spoil.__name__, version) == (spoil.__name__, "1")
        assert reason.startswith("version 2 is refused: ")
        assert problem in reason or reason.endswith("the server's log says why")
        assert problem in caplog.text
        assert str(models) not in reason
        same(wide(server), want(make_toy(seed=1)))
        assert metric(server, "emberline_model_update_failing") == 1
        counted = metric(server, "emberline_model_update_failures_total")
        assert counted is not None
        assert counted > failures
        failures = counted
        final.rename(models.parent / f"spoilt-{spoil.__name__}")
        wait_until(lambda: index(server) == {"toy": ("1", "")})
        assert metric(server, "emberline_model_update_failing") == 0
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len([line for line in told if "model toy goes on with version 1: version 2 is refused: " in line]) == len(SPOILT)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_bad_version_is_served_once_it_is_mended(server: EmbeddedServer, models: Path) -> None:
    root = make_toy(seed=3).write(models.parent / "drafts", 2)
    table = root / "tables" / "item_emb.safetensors"
    flip_byte(table)
    table = root.rename(models / "toy" / "2") / table.relative_to(root)
    wait_until(lambda: "item_emb.safetensors was changed" in index(server)["toy"][1])
    flip_byte(table)
    wait_until(lambda: index(server) == {"toy": ("2", "")})
    same(wide(server), want(make_toy(seed=3)))


def test_a_served_json_that_names_nothing_is_told(server: EmbeddedServer, models: Path) -> None:
    served = models / "toy" / "served.json"
    for text, problem in (
        ('{"version": 9}', "toy: served.json says that version 9 is served, which is not there: there are 1;"),
        ("?", "toy/served.json should"),
    ):
        served.write_text(text)
        wait_until(lambda problem=problem: problem in index(server)["toy"][1])  # type: ignore[misc]
        assert index(server)["toy"][0] == "1"
    served.unlink()
    wait_until(lambda: index(server) == {"toy": ("1", "")})
    same(wide(server), want(make_toy(seed=1)))


def test_a_version_whose_manifest_changes_is_opened_anew(server: EmbeddedServer, models: Path) -> None:
    before = server.service.repository.get("toy")
    after = make_toy(seed=8).write(models.parent / "drafts", 1)
    (models / "toy" / "1").rename(models.parent / "old")
    after.rename(models / "toy" / "1")
    wait_until(lambda: server.service.repository.get("toy").identity != before.identity)
    same(wide(server), want(make_toy(seed=8)))
    assert index(server) == {"toy": ("1", "")}


def test_a_model_whose_folder_is_gone_is_served_on(server: EmbeddedServer, models: Path, caplog: pytest.LogCaptureFixture) -> None:
    (models / "toy").rename(models.parent / "gone")
    wait_until(lambda: "model toy has no version in the models folder any more; it is served on" in caplog.text)
    models.rename(models.parent / "all gone")
    wait_until(lambda: "the models folder cannot be read; what is served is served on" in caplog.text)
    same(wide(server), want(make_toy(seed=1)))
    (models.parent / "all gone").rename(models)
    publish(make_toy(seed=2), models, 2)
    wait_until(lambda: index(server) == {"toy": ("2", "")})
    assert caplog.text.count("is served on") == 2


def test_of_several_new_versions_only_the_newest_is_opened(server: EmbeddedServer, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, load = list[int](), server.service.repository.load_version
    monkeypatch.setattr(server.service.repository, "load_version", lambda name, version: opened.append(version) or load(name, version))  # type: ignore[func-returns-value]
    draft = make_toy(seed=4).write(models.parent / "drafts", 3)
    make_toy(seed=3).write(models.parent / "drafts", 2).rename(models.parent / "two")
    (models.parent / "drafts" / "toy").mkdir(exist_ok=True)
    whole = models.parent / "whole"
    whole.mkdir()
    for version, path in ((1, models / "toy" / "1"), (2, models.parent / "two"), (3, draft)):
        path.rename(whole / str(version))
    (models / "toy").rename(models.parent / "before")
    whole.rename(models / "toy")
    wait_until(lambda: index(server) == {"toy": ("3", "")})
    assert opened == [3]
    same(wide(server), want(make_toy(seed=4)))


class Held:
    """Opening versions, held until it is told to go on; and the versions that were closed."""

    def __init__(self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.closed: list[int] = []
        load, close = server.service.repository.load_version, LoadedModel.close

        def hold(name: str, version: int) -> LoadedModel:
            self.entered.set()
            assert self.go.wait(60)
            return load(name, version)

        def tell(model: LoadedModel) -> None:
            close(model)
            self.closed.append(model.version)

        monkeypatch.setattr(server.service.repository, "load_version", hold)
        monkeypatch.setattr(LoadedModel, "close", tell)


@contextmanager
def control(server: EmbeddedServer) -> Iterator[Callable[..., Any]]:
    """Calls in threads."""
    with ThreadPoolExecutor(4) as pool:
        way = Way("http", server.http_url.partition("://")[2])
        yield lambda *call: pool.submit(way.call, *call)


def test_a_model_that_is_unloaded_while_a_version_is_opened_is_gone(server: EmbeddedServer, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(server, monkeypatch)
    publish(make_toy(seed=3), models, 2)
    assert held.entered.wait(60)
    with control(server) as call:
        unloading = call("unload_model", "toy")
        same(wide(server), want(make_toy(seed=1)))
        held.go.set()
        unloading.result(60)
    assert held.closed == [1, 2]
    assert index(server) == {"toy": ("", "unloaded")}
    publish(make_toy(seed=4), models, 3)
    time.sleep(5 * SETTINGS.version_poll_s)
    assert index(server) == {"toy": ("", "unloaded")}, "it stays away until it is loaded by a call"
    Way("http", server.http_url.partition("://")[2]).call("load_model", "toy")
    assert index(server) == {"toy": ("3", "")}
    publish(make_toy(seed=5), models, 4)
    wait_until(lambda: index(server) == {"toy": ("4", "")})


def test_a_server_stops_while_a_version_is_opened_and_lets_go_of_it(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer(models, settings=SETTINGS) as server:
        held = Held(server, monkeypatch)
        publish(make_toy(seed=3), models, 2)
        assert held.entered.wait(60)
        with control(server) as call:
            loading = call("load_model", "toy")
            wait_until(lambda: len(server.service._changes) == 1)
            server.stop()
            status, message = fails(lambda: loading.result(60))
            assert (status, "stopping" in message) == ("UNAVAILABLE", True)
    assert held.closed == [1]
    held.go.set()
    wait_until(lambda: held.closed == [1, 2])


def test_a_version_that_changes_while_it_is_opened_is_opened_again(server: EmbeddedServer, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(server, monkeypatch)
    final = publish(make_toy(seed=3), models, 2)
    assert held.entered.wait(60)
    draft = make_toy(seed=4).write(models.parent / "drafts", 2)
    final.rename(models.parent / "old")
    draft.rename(final)
    held.go.set()
    wait_until(lambda: index(server) == {"toy": ("2", "")})
    same(wide(server), want(make_toy(seed=4)))


def ask(url: str) -> tuple[str, list[float]]:
    """The version that answers, and its vector for a user that a delta changes."""
    body = json.dumps({"rows": [{"user": -7}]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/models/toy:lookup", body), timeout=60) as answer:
        found = json.load(answer)
        assert answer.headers["X-Model-Version"] == found["version"]
        return found["version"], found["outputs"]["wide"][0]


def test_every_request_is_answered_by_one_version_while_versions_and_deltas_come(models: Path) -> None:
    toys = {"1": make_toy(seed=1), "2": make_toy(seed=2), "3": make_toy(seed=3)}
    right = {version: [toy.tables["user_emb"][0].numpy()] for version, toy in toys.items()}
    right["1"].append(changed(toys["1"]).tables["user_emb"][1].numpy())
    ended = threading.Event()
    with EmbeddedServer(models, settings=replace(SETTINGS, delta_poll_s=0.01)) as server:

        def ask_on(_: int) -> set[str]:
            seen = set()
            while not ended.is_set():
                version, found = ask(server.http_url)
                assert any(np.allclose(found, vector, rtol=1e-5, atol=1e-6) for vector in right[version]), (version, found)
                seen.add(version)
                time.sleep(0.005)
            return seen

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask_on, number) for number in range(4)]
            try:
                write_delta(models / "toy" / "1", changed(toys["1"]))
                for version in ("2", "3"):
                    publish(toys[version], models, int(version))
                    wait_until(lambda version=version: index(server) == {"toy": (version, "")})  # type: ignore[misc]
                for version in ("1", "3", "1"):
                    (models / "toy" / "served.json").write_text(f'{{"version": {version}}}')
                    wait_until(lambda version=version: index(server) == {"toy": (version, "")})  # type: ignore[misc]
                wait_until(lambda: server.service.repository.get("toy").engine.delta == 1)
            finally:
                ended.set()
            assert set.union(*[future.result() for future in asking]) == {"1", "2", "3"}


def test_at_the_start_an_older_version_is_served_where_the_newest_is_bad(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    for version in (2, 3, 4):
        make_toy(seed=version).write(models, version)
    for version in (3, 4):
        flip_byte(models / "toy" / str(version) / "tables" / "tags_emb.safetensors")
    make_toy(seed=9, name="whole").write(models)
    with EmbeddedServer(models, settings=replace(SETTINGS, version_poll_s=0)) as server:
        assert index(server) == {
            "toy": ("2", "version 4 is refused: the artifact is damaged: tables/tags_emb.safetensors was changed: its sha256 differs"),
            "whole": ("1", ""),
        }
        same(wide(server), want(make_toy(seed=2)))
    assert "model toy: version 4 cannot be served; version 2 is served in its place" in caplog.text
    (models / "toy" / "served.json").write_text('{"version": 4}')
    with pytest.raises(ArtifactError, match=r"toy/4: the artifact is damaged: tables/tags_emb"), EmbeddedServer(models, settings=SETTINGS):
        pass
    (models / "toy" / "served.json").unlink()
    for version in (1, 2):
        flip_byte(models / "toy" / str(version) / "tables" / "tags_emb.safetensors")
    with pytest.raises(ArtifactError, match=r"toy/4: the artifact is damaged: tables/tags_emb"), EmbeddedServer(models, settings=SETTINGS):
        pass


@pytest.mark.parametrize("place", ["toy", "toy/1"])
def test_one_models_folder_and_one_artifact_are_looked_at_too(models: Path, place: str) -> None:
    with EmbeddedServer(models / place, settings=SETTINGS) as server:
        draft = make_toy(seed=6).write(models.parent / "drafts", 2 if place == "toy" else 1)
        if place == "toy":
            draft.rename(models / "toy" / "2")
        else:
            (models / "toy" / "1").rename(models.parent / "old")
            draft.rename(models / "toy" / "1")
        digest = server.service.repository.get("toy").identity.digest
        wait_until(lambda: server.service.repository.get("toy").identity.digest != digest)
        same(wide(server), want(make_toy(seed=6)))


def test_models_behind_a_url_change_too_and_old_copies_of_them_go(models: Path, tmp_path: Path) -> None:
    memory: Any = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]

    def put(version: int) -> None:
        root = make_toy(seed=version).write(tmp_path / "drafts", version)
        files = sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.name == "manifest.json")
        for path in files:
            memory.pipe_file(f"/live/models/toy/{version}/{path.relative_to(root).as_posix()}", path.read_bytes())

    put(1)
    cache = tmp_path / "cache"
    with EmbeddedServer("memory://live/models", settings=replace(SETTINGS, cache=cache)) as server:
        for version in (2, 3):
            put(version)
            wait_until(lambda version=version: index(server) == {"toy": (str(version), "")})  # type: ignore[misc]
            same(wide(server), want(make_toy(seed=version)))
        wait_until(lambda: kept(cache) == ["2", "3"])
        memory.pipe_file("/live/models/toy/served.json", b'{"version": 2}')
        wait_until(lambda: index(server) == {"toy": ("2", "")})
        same(wide(server), want(make_toy(seed=2)))
        memory.pipe_file("/live/models/toy/served.json", b'{"version": 1}')
        wait_until(lambda: index(server) == {"toy": ("1", "")})
        put(4)
        memory.pipe_file("/live/models/toy/4/golden.safetensors", b"cut")
        memory.rm("/live/models/toy/served.json")
        wait_until(lambda: index(server)["toy"][1] != "")
        assert index(server) == {"toy": ("1", "version 4 is refused: golden.safetensors has 3 bytes, not 1320")}
        same(wide(server), want(make_toy(seed=1)))
    memory.store.clear()


def test_serving_and_switching_leave_the_models_folder_as_it_is(models: Path) -> None:
    make_toy(seed=2).write(models, 2)
    (models / "toy" / "served.json").write_text('{"version": 1}')

    def everything() -> dict[str, Any]:
        return {
            **hash_tree(models / "toy" / "1"),
            **hash_tree(models / "toy" / "2"),
            **{str(path): path.stat().st_mtime_ns for path in models.rglob("*")},
        }

    before = everything()
    with EmbeddedServer(models, settings=SETTINGS) as server:
        for version in ("1", "2"):
            server.service.repository.get("toy")
            wait_until(lambda version=version: index(server) == {"toy": (version, "")})  # type: ignore[misc]
            wide(server)
            assert everything() == before
            (models / "toy" / "served.json").unlink(missing_ok=True)
            before = everything()


def test_how_old_a_version_is(server: EmbeddedServer, models: Path) -> None:
    age = metric(server, "emberline_model_version_age_seconds")
    since = time.time() - 1767225600  # 2026-01-01
    assert age is not None
    assert abs(age - since) < 60
    Way("http", server.http_url.partition("://")[2]).call("unload_model", "toy")
    assert metric(server, "emberline_model_version_age_seconds") is None


def test_a_time_of_creation_that_is_none_has_no_age() -> None:
    assert [seconds_of(text) for text in ("1970-01-01T00:01:00Z", "1970-01-01T00:01:00", "1970-01-01T01:01:00+01:00")] == [60, 60, 60]
    assert all(math.isnan(seconds_of(text)) for text in ("", "yesterday"))
