"""A hand-made delta of the toy model, and what it must answer afterwards."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from emberline.delta_manifest import DeltaManifest, IdChange, TableChange
from emberline.manifest import hash_tree, manifest_digest, read_manifest, write_manifest
from emberline.serving.engine import Engine
from emberline.serving.files import write_tensors
from emberline.serving.request import PackedRequest
from tests.serving.conftest import Remap, ToyModel, random_request

REQUEST_IDS = (100, -7, 2**62, 200, 300)


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
    users = {"came_ids": torch.tensor([-7, 300]), "came_rows": torch.tensor([1, 6]), "went_ids": torch.tensor([200])}
    write_tensors(draft / "remap/user_emb.safetensors", users)
    sample = {name: torch.from_numpy(array) for name, array in asked(after).items()}
    write_tensors(draft / "golden.safetensors", sample | {name: value.contiguous() for name, value in after.answers(asked(after)).items()})
    digest = manifest_digest(read_manifest(root))
    manifest = DeltaManifest(
        name=after.name,
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
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def require_answers(engine: Engine, toy: ToyModel) -> None:
    request = asked(toy)
    found = engine.predict(PackedRequest(**request)) | {f"group.{name}": rows for name, rows in engine.lookup(PackedRequest(**request)).items()}
    for name, wanted in toy.answers(request).items():
        torch.testing.assert_close(found[name.removeprefix("output.")], wanted, rtol=1e-5, atol=1e-6)
