"""Forgetting at the edges: all ids of a table, those that requests are refused for, programs with tables inside, ids that move and are equal."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from emberline.errors import ArtifactError, ExportError
from emberline.export.describe import describe, verify
from emberline.export.forget.forget import Options, forget
from emberline.manifest import ProgramEntry, read_manifest
from emberline.schema import UnknownIds
from emberline.serving import Engine
from tests.export.forget.test_forget import files_with
from tests.export.forget.test_killed import GONE, left, write_models
from tests.serving.conftest import ToyModel, make_toy, random_request, reseal
from tests.serving.deltas.toy_delta import changed, write_delta

pytestmark = pytest.mark.usefixtures("one_thread")
EVERY = ("100", "-7", str(2**62), "200", "300")


def refusing() -> ToyModel:
    """The toy model, which refuses users that it does not know."""
    toy = make_toy(seed=1)
    features = tuple(replace(one, unknown_ids=UnknownIds.ERROR) if one.name == "user" else one for one in toy.schema.features)
    return replace(toy, schema=replace(toy.schema, features=features))


def test_all_ids_of_a_table(tmp_path: Path) -> None:
    model = write_models(tmp_path)
    for one in EVERY:
        forget(model, "user", [one])
    for version, times in (("1", 5), ("2", 4)):
        artifact = Engine.open(model / version).artifact
        assert artifact.ids["user_emb"].raw_ids.tolist() == []
        assert not set(map(int, EVERY)) & set(artifact.golden()["ids"].tolist())
        assert list(verify(model / version))
        assert describe(model / version)[-1].startswith(f"ids were forgotten {times} times, the last 20")
    kept = make_toy(seed=2).tables
    table = Engine.open(model / "2").artifact.tables["user_emb"]
    assert (table == 0).all(dim=1).nonzero().flatten().tolist() == [0, 2, 5, 6]
    assert torch.equal(table[[1, 3, 4, 7]], kept["user_emb"][[1, 3, 4, 7]])


def test_a_sample_without_rows_where_no_id_may_take_the_place(tmp_path: Path) -> None:
    toy = refusing()
    request = random_request(toy.schema, num_rows=3, seed=4, raw_ids=(100, -7, 200), weights=True)
    request["ids"][: int(request["lengths"][:3].sum())] = 100
    model = toy.write(tmp_path, golden=request).parent
    forget(model, "user", EVERY)
    engine = Engine.open(model / "1")
    assert engine.artifact.golden()["ids"].tolist() == []
    assert engine.artifact.ids["user_emb"].raw_ids.tolist() == []


def test_programs_with_tables_inside_are_refused_or_left_out(tmp_path: Path) -> None:
    model = write_models(tmp_path)
    root, vector = model / "2", make_toy(seed=2).tables["user_emb"][0].numpy().tobytes()
    (root / "programs" / "full.ts").write_bytes(b"inside: " + vector)
    reseal(root)
    manifest = read_manifest(root)
    full = asdict(ProgramEntry(role="full", file="programs/full.ts", format="torchscript"))
    reseal(root, {**manifest, "programs": [*manifest["programs"], full]})
    with pytest.raises(ExportError, match=r"programs/full.ts has the tables inside, and cannot be changed; --drop-full"):
        forget(model, "user", [str(GONE)])
    assert left(model) == 3
    assert not (model / "forgotten.jsonl").exists()
    forget(model, "user", [str(GONE)], Options(drop_full=True))
    assert left(model) == 0
    assert files_with(root, b"inside: ") == []
    assert {entry.role for _, entry in Engine.open(root).artifact.programs.values()} == {"outputs", "groups"}


def test_a_damaged_version_is_left_as_it_is_and_said_so(tmp_path: Path) -> None:
    model = write_models(tmp_path)
    table = model / "2" / "tables" / "user_emb.safetensors"
    content = bytearray(table.read_bytes())
    content[-1] ^= 1
    table.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"/2: "):
        forget(model, "user", [str(GONE)])
    assert table.read_bytes() == content
    assert not [path for path in model.iterdir() if path.name.startswith(".building")]


def test_a_row_that_gets_another_owner_with_a_delta(tmp_path: Path) -> None:
    """User 200's row is 300's after it."""
    toy = make_toy(seed=1)
    root = toy.write(tmp_path)
    write_delta(root, changed(toy))
    before = Engine.open(root).artifact.tables["user_emb"].clone()
    forget(root.parent, "user", ["200"])
    artifact = Engine.open(root).artifact
    assert dict(zip(artifact.ids["user_emb"].raw_ids.tolist(), artifact.ids["user_emb"].rows.tolist(), strict=True)) == {
        100: 2,
        -7: 1,
        2**62: 5,
        300: 6,
    }
    assert torch.equal(artifact.tables["user_emb"], before)
    assert bool((Engine.open(root, deltas=0).artifact.tables["user_emb"][6] == 0).all())
