"""Deltas opened: what is checked, and how damage is told."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.delta_manifest import IdChange, TableChange
from emberline.errors import ArtifactError
from emberline.manifest import hash_tree, read_manifest, write_manifest
from emberline.serving.deltas import find_deltas, list_deltas
from emberline.serving.engine import Engine
from emberline.serving.files import write_tensors
from tests.serving.conftest import ToyModel
from tests.serving.deltas.toy_delta import changed, require_answers, write_delta

Manifest = dict[str, Any]
MISCOUNTED = asdict(TableChange(table="user_emb", file=None, rows=0, ids=IdChange(file="remap/user_emb.safetensors", came=2, went=1, num_ids=5)))


def edit(delta: Path, change: Callable[[Manifest], object]) -> None:
    """Change the manifest and give it a valid digest, and the files' hashes, again."""
    data = read_manifest(delta)
    data["files"] = {path: {"bytes": entry.bytes, "sha256": entry.sha256} for path, entry in hash_tree(delta).items()}
    change(data)
    write_manifest(delta, data)


def items(places: list[int], rows: torch.Tensor) -> Callable[[Path], object]:
    return lambda delta: write_tensors(delta / "tables/item_emb.safetensors", {"places": torch.tensor(places), "rows": rows})


def users(came_ids: list[int], came_rows: list[int], went_ids: list[int]) -> Callable[[Path], object]:
    lists = {"came_ids": came_ids, "came_rows": came_rows, "went_ids": went_ids}
    return lambda delta: write_tensors(
        delta / "remap/user_emb.safetensors", {name: torch.tensor(ids, dtype=torch.int64) for name, ids in lists.items()}
    )


@pytest.mark.parametrize(
    ("spoil", "change", "message"),
    [
        (items([0, 9], torch.zeros(2, 7)), {}, "table 'item_emb' should have 2 changed rows of 8, found .2, 7."),
        (items([0, 9], torch.zeros(2, 8).half()), {}, "table 'item_emb' needs places of torch.int64, rows of torch.float32"),
        (items([9, 0], torch.zeros(2, 8)), {}, "changed rows of table 'item_emb' are not ascending, or beyond its 10"),
        (items([0, 10], torch.zeros(2, 8)), {}, "are not ascending, or beyond"),
        (items([-1, 3], torch.zeros(2, 8)), {}, "are not ascending, or beyond"),
        (users([-7, 300], [1, 6], [201]), {}, "table 'user_emb': the change of its ids does not fit: an id is to go that owns no row"),
        (users([-7, 300], [1, 5], [200]), {}, "does not fit: rows gives one row to two ids"),
        (users([-7], [1], [200]), {}, "there are not as many ids as manifest.json tells"),
        (users([-7, 300], [1], [200]), {}, "came_ids and came_rows are not two lists of one length"),
        (None, {"tables": [MISCOUNTED]}, "4 ids would own a row, not 5"),
        (None, {"format_version": 2}, "the delta's format is 2; this release reads 1"),
        (None, {"kind": "artifact"}, "this is no delta"),
        (None, {"colour": "red"}, "does not describe a delta: colour is unknown"),
        (None, {"number": "1"}, r"1: manifest\.json does not describe a delta: number must be a whole number, found '1'"),
        (None, {"tables": {}}, "does not describe a delta: tables must be a list, found {}"),
        (None, {"tables": [{**MISCOUNTED, "rows": None}]}, r"tables\[0\]\.rows must be a whole number, found None"),
        (None, {"tables": [{**MISCOUNTED, "ids": {"file": 3}}]}, r"tables\[0\]\.ids\.came is missing"),
        (
            None,
            {"files": {"golden.safetensors": {"bytes": 1.5, "sha256": ""}}},
            r"files\['golden\.safetensors'\]\.bytes must be a whole number, found 1\.5",
        ),
        (None, {"golden": "../../golden.safetensors"}, r"\.\./\.\./golden\.safetensors is used but not listed"),
        (None, {"number": 0}, "'toy' version 1 has delta 0 already; it is at 0"),
        (None, {"number": 2}, "this is delta 2, but 'toy' version 1 is at 0: add delta 1 first"),
        (None, {"base": "0" * 64}, "made for another artifact than"),
        (None, {"base": "0" * 64, "version": 3}, "made for 'toy' version 3, another artifact than"),
        (None, {"previous": "0" * 64}, "made to follow another delta 0"),
        (None, {"tables": [{"table": "none", "file": None, "rows": 0, "ids": None}]}, "tells of changes of 'none' that such a table"),
    ],
)
def test_a_delta_that_does_not_fit_is_refused_and_changes_nothing(
    toy: ToyModel, toy_artifact: Path, spoil: Callable[[Path], object] | None, change: Manifest, message: str
) -> None:
    engine = Engine.open(toy_artifact)
    delta = write_delta(toy_artifact, changed(toy))
    if spoil is not None:
        spoil(delta)
    edit(delta, lambda data: data.update(change))
    with pytest.raises(ArtifactError, match=message):
        engine.apply_delta(delta)
    assert engine.delta == 0
    require_answers(engine, toy)
    with pytest.raises(ArtifactError, match=message):
        Engine.open(toy_artifact)


def test_tables_that_share_a_file_read_their_own_part_of_it(toy: ToyModel, toy_artifact: Path) -> None:
    after = changed(toy)
    delta = write_delta(toy_artifact, after)
    parts = {"item_emb/places": torch.tensor([0, 9]), "item_emb/rows": after.tables["item_emb"][[0, 9]]}
    others = {"places": torch.tensor([3, 4]), "rows": torch.zeros(2, 8), "x/item_emb/places": torch.tensor([5])}
    for tensors, memory in ((parts | others, "disk"), (others | parts, "mapped")):
        write_tensors(delta / "tables/item_emb.safetensors", tensors)
        edit(delta, lambda data: data["tables"][1].update(prefix="item_emb/"))
        require_answers(Engine.open(toy_artifact, tables=memory), after)
    del parts["item_emb/rows"]
    write_tensors(delta / "tables/item_emb.safetensors", parts | others)
    edit(delta, lambda data: None)
    with pytest.raises(ArtifactError, match=r"table 'item_emb' needs item_emb/places of torch\.int64, item_emb/rows of torch\.float32; found"):
        Engine.open(toy_artifact)


def test_only_numbered_folders_with_a_manifest_are_deltas(toy: ToyModel, toy_artifact: Path) -> None:
    assert (list_deltas(toy_artifact), find_deltas(toy_artifact), find_deltas(toy_artifact, 0)) == ([], [], [])
    path = write_delta(toy_artifact, changed(toy))
    for name in ("0", "01", "x", "²", ".1", "-1"):
        (path.with_name(name)).mkdir()
        (path.with_name(name) / "manifest.json").write_text("{}")
    (path.with_name("2")).mkdir()
    (path.with_name("3")).write_text("")
    assert (list_deltas(toy_artifact), find_deltas(toy_artifact)) == ([1], [path])
    with pytest.raises(ArtifactError, match="delta 2 is missing: there are 1; copy it again, or open fewer"):
        find_deltas(toy_artifact, 2)
    (path.parent / str(10**15)).mkdir()
    (path.parent / str(10**15) / "manifest.json").touch()
    with pytest.raises(ArtifactError, match=f"delta 2 is missing: there are 1, {10**15}; copy it again"):
        find_deltas(toy_artifact)
    with pytest.raises(ArtifactError, match="-1 deltas cannot be opened; name how many, from 0 on"):
        Engine.open(toy_artifact, deltas=-1)
