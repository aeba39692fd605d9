"""A served model takes new deltas while it answers, over HTTP and by the watcher alone, and goes on where one is damaged."""

import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.delta_manifest import DeltaManifest, IdChange, TableChange
from emberline.manifest import hash_tree, manifest_digest, read_manifest, write_manifest
from emberline.serving.deltas.watcher import DeltaWatcher
from emberline.serving.engine import Engine
from emberline.serving.files import write_tensors
from emberline.serving.request import PackedRequest
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import Remap, ToyModel, random_request

REQUEST_IDS = (100, -7, 2**62, 200, 300)
PERIOD_S = 0.02


def changed(toy: ToyModel) -> ToyModel:
    """Id 200 goes and its row becomes 300's, with another vector; -7 moves to row 1; two rows of items change."""
    tables = {name: rows.clone() for name, rows in toy.tables.items()}
    tables["user_emb"][[1, 6]] += 1
    tables["item_emb"][[0, 9]] -= 1
    return replace(toy, tables=tables, remaps={"user_emb": Remap({100: 2, -7: 1, 2**62: 5, 300: 6})})


def write_delta(root: Path, after: ToyModel, number: int = 1) -> Path:
    """What `changed` changes, as the first delta of the artifact in `root`."""
    folder = root / "deltas" / str(number)
    draft = root / "deltas" / f".draft-{number}"
    for name in ("tables", "remap"):
        (draft / name).mkdir(parents=True)
    changes = []
    for table, places in (("user_emb", [1, 6]), ("item_emb", [0, 9])):
        write_tensors(draft / f"tables/{table}.safetensors", {"places": torch.tensor(places), "rows": after.tables[table][places]})
        ids = IdChange(file="remap/user_emb.safetensors", came=2, went=1, num_ids=4) if table == "user_emb" else None
        changes.append(TableChange(table=table, file=f"tables/{table}.safetensors", rows=2, ids=ids))
    ids = {"came_ids": torch.tensor([-7, 300]), "came_rows": torch.tensor([1, 6]), "went_ids": torch.tensor([200])}
    write_tensors(draft / "remap/user_emb.safetensors", ids)
    sample = {name: torch.from_numpy(array) for name, array in asked(after).items()}
    write_tensors(draft / "golden.safetensors", sample | {name: value.contiguous() for name, value in after.answers(asked(after)).items()})
    digest = manifest_digest(read_manifest(root))
    manifest = DeltaManifest(
        name="toy",
        version=1,
        number=number,
        created="2026-01-01T00:00:00Z",
        base=digest,
        previous=digest,
        tables=tuple(changes),
        programs=(),
        golden="golden.safetensors",
        parity={},
        versions={},
        files=hash_tree(draft),
    )
    write_manifest(draft, manifest.to_dict())
    return draft.rename(folder)


def asked(toy: ToyModel) -> dict[str, Any]:
    return random_request(toy.schema, num_rows=6, seed=4, raw_ids=REQUEST_IDS)


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def require_answers(engine: Engine, toy: ToyModel) -> None:
    request = asked(toy)
    found = engine.predict(PackedRequest(**request)) | {f"group.{name}": rows for name, rows in engine.lookup(PackedRequest(**request)).items()}
    for name, wanted in toy.answers(request).items():
        torch.testing.assert_close(found[name.removeprefix("output.")], wanted, rtol=1e-5, atol=1e-6)


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


def test_a_watcher_that_never_looks_has_no_thread(toy: ToyModel, toy_artifact: Path) -> None:
    engine = Engine.open(toy_artifact)
    watcher = DeltaWatcher(engine, 0)
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
