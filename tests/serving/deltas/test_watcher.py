"""A served model takes new deltas while it answers, over HTTP and by the watcher alone, and goes on where one is damaged."""

import json
import signal
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from emberline.errors import ArtifactError
from emberline.manifest import read_manifest, write_manifest
from emberline.serving.deltas.watcher import DeltaWatcher
from emberline.serving.engine import Engine
from emberline.serving.request import PackedRequest
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from emberline.serving.stored_files import take_in
from tests.serving.conftest import ToyModel
from tests.serving.deltas.toy_delta import asked, changed, require_answers, wait_for, write_delta
from tests.serving.served_command import served

PERIOD_S = 0.02


def test_a_delta_answers_as_the_changed_model(toy: ToyModel, toy_artifact: Path) -> None:
    engine = Engine.open(toy_artifact)
    require_answers(engine, toy)
    after = changed(toy)
    path = write_delta(toy_artifact, after)
    require_answers(engine, toy)
    assert engine.apply_delta(path) == 1
    require_answers(engine, after)
    require_answers(Engine.open(toy_artifact), after)
    require_answers(Engine.open(toy_artifact, deltas=0), toy)
    assert Engine.open(toy_artifact, verify=False).delta == 1


def test_counts_of_ids_go_on_over_a_delta(toy: ToyModel, toy_artifact: Path) -> None:
    engine = Engine.open(toy_artifact)
    request = PackedRequest(**asked(toy))
    engine.known(request)
    before = engine.id_counts()["user_emb"].asked
    assert before > 0
    engine.apply_delta(write_delta(toy_artifact, changed(toy)))
    assert engine.id_counts()["user_emb"].asked == before


def test_the_watcher_adds_what_comes_and_tells_what_it_cannot(toy: ToyModel, toy_artifact: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine.open(toy_artifact)
    watcher = DeltaWatcher(engine, PERIOD_S)
    try:
        path = write_delta(toy_artifact, changed(toy))
        wait_for(lambda: engine.delta == 1)
        require_answers(engine, changed(toy))
        path.rename(path.with_name("2"))
        wait_for(lambda: watcher.problem != "")
        assert "has delta 1 already; it is at 1" in watcher.problem
        time.sleep(5 * PERIOD_S)
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
            f"model toy, version 1 goes on with delta 1: the next one cannot be added: {watcher.problem}"
        ]
        require_answers(engine, changed(toy))
        path.with_name("2").rename(path)
        wait_for(lambda: watcher.problem == "")
    finally:
        watcher.close()


def test_the_watcher_outlives_a_delta_that_is_strange_in_any_way(toy: ToyModel, toy_artifact: Path) -> None:
    engine = Engine.open(toy_artifact)
    path = write_delta(toy_artifact, changed(toy))
    told = read_manifest(path)
    write_manifest(path, {**told, "number": "1"})
    watcher = DeltaWatcher(engine, PERIOD_S)
    try:
        wait_for(lambda: watcher.problem != "")
        assert watcher.problem == f"{path}: manifest.json does not describe a delta: number must be a whole number, found '1'"
        assert engine.delta == 0
        write_manifest(path, told)
        wait_for(lambda: engine.delta == 1)
        require_answers(engine, changed(toy))
    finally:
        watcher.close()


def test_a_delta_that_stays_damaged_is_read_ever_more_seldom(toy: ToyModel, toy_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.open(toy_artifact)
    path = write_delta(toy_artifact, changed(toy)) / "tables" / "item_emb.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    read: list[Path] = []
    monkeypatch.setattr("emberline.serving.deltas.files.take_in", lambda files: read.append(path) or take_in(files))  # type: ignore[func-returns-value]
    watcher, tried = DeltaWatcher(engine, 0), []
    for turn in range(1, 140):
        watcher._look()
        tried += [turn] if read else []
        read.clear()
    assert tried == [1, 2, 4, 8, 16, 32, 64, 128]
    assert "item_emb.safetensors was changed" in watcher.problem
    path.write_bytes(whole)
    watcher._look()
    assert (engine.delta, watcher.problem) == (1, "")
    require_answers(engine, changed(toy))


def test_a_delta_of_another_artifact_is_refused_by_its_manifest_alone(toy: ToyModel, toy_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.open(toy_artifact)
    path = write_delta(toy_artifact, changed(toy))
    write_manifest(path, {**read_manifest(path), "base": "0" * 64})
    monkeypatch.setattr("emberline.manifest.find_change", lambda file, entry, fast: pytest.fail(f"{file} was read"))
    monkeypatch.setattr("emberline.serving.deltas.files.take_in", lambda files: pytest.fail("they were read"))
    with pytest.raises(ArtifactError, match="this delta was made for another artifact than"):
        engine.apply_delta(path)


def test_a_watcher_that_never_looks_has_no_thread(toy: ToyModel, toy_artifact: Path) -> None:
    engine = Engine.open(toy_artifact)
    before = set(threading.enumerate())
    watcher = DeltaWatcher(engine, 0)
    assert set(threading.enumerate()) <= before
    write_delta(toy_artifact, changed(toy))
    watcher.close()
    assert engine.delta == 0


def test_a_server_takes_a_delta_without_a_restart(toy: ToyModel, toy_artifact: Path) -> None:
    def get(path: str) -> str:
        with urllib.request.urlopen(server.http_url + path, timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    models = toy_artifact.parent.parent
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1, delta_poll_s=PERIOD_S)) as server:
        assert 'emberline_model_delta{model="toy"} 0.0' in get("/metrics")
        write_delta(toy_artifact, changed(toy))
        wait_for(lambda: 'emberline_model_delta{model="toy"} 1.0' in get("/metrics"))
        assert json.loads(get("/v2/models/toy/stats"))["model_stats"][0]["delta"] == 1
        require_answers(server.service.repository.get("toy").engine, changed(toy))
        assert json.loads(get("/v2/models/toy"))["versions"] == ["1"]


def test_the_command_logs_a_delta_that_was_added(toy: ToyModel, toy_artifact: Path) -> None:
    with served(toy_artifact.parent.parent, f"--delta-poll={PERIOD_S}") as (process, lines):
        write_delta(toy_artifact, changed(toy))
        metrics = next(line.split()[1] for line in lines if line.startswith("metrics "))

        def is_added() -> bool:
            with urllib.request.urlopen(metrics, timeout=10) as answer:
                return b'emberline_model_delta{model="toy"} 1.0' in answer.read()

        wait_for(is_added)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=20)[1]
    (line,) = [line for line in errors.splitlines() if "delta" in line]
    assert line.endswith(" INFO emberline.serving.engine: model toy, version 1: added delta 1")
