"""Artifacts opened: what is checked, and how damage is told."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.digests import PiecesDigest
from emberline.errors import ArtifactError
from emberline.manifest import hash_file, hash_tree
from emberline.serving.artifact import Artifact
from emberline.serving.engine import Engine
from emberline.serving.files import map_tensors, write_tensors
from emberline.serving.remap import LINES, HashedRemap
from emberline.serving.request import PackedRequest
from emberline.serving.tables import TABLE_MEMORIES
from emberline.serving.versions import find_version, list_versions
from tests.serving.conftest import ToyModel, make_toy, random_request, reseal


@pytest.fixture
def root(toy_artifact: Path) -> Path:
    return toy_artifact


def test_an_artifact_opens(root: Path, toy: ToyModel) -> None:
    artifact = Artifact.open(root)
    assert (artifact.root, artifact.manifest.name, artifact.manifest.version, artifact.schema) == (root, "toy", 1, toy.schema)
    for name, rows in toy.tables.items():
        assert torch.equal(artifact.tables[name], rows)
        assert artifact.tables[name].data_ptr() % 64 == 0
    assert sorted(artifact.remaps) == ["user_emb"]
    assert sorted(artifact.golden()) == ["dense", "group.deep", "group.wide", "ids", "lengths", "output.probs", "output.scores", "weights"]


def test_the_newest_complete_version_is_taken(toy: ToyModel, tmp_path: Path) -> None:
    for version in (2, 10, 9):
        toy.write(tmp_path, version)
    (tmp_path / "toy" / "11").mkdir()  # begun and never finished
    (tmp_path / "toy" / "latest").symlink_to(tmp_path / "toy" / "2")
    (tmp_path / "toy" / "012").mkdir()
    assert list_versions(tmp_path / "toy") == [2, 9, 10]
    assert find_version(tmp_path / "toy") == tmp_path / "toy" / "10"
    assert find_version(tmp_path / "toy" / "2") == tmp_path / "toy" / "2"


def test_a_folder_without_artifacts_is_told(tmp_path: Path) -> None:
    (tmp_path / "toy" / "3").mkdir(parents=True)
    with pytest.raises(ArtifactError, match=r"toy: no artifact here: neither manifest\.json nor a version folder"):
        Artifact.open(tmp_path / "toy")
    with pytest.raises(ArtifactError, match="none: there is no such folder"):
        Artifact.open(tmp_path / "none")
    assert list_versions(tmp_path / "none") == []


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "tables/item_emb.safetensors").unlink(), r"tables/item_emb\.safetensors is missing"),
        (lambda root: (root / "programs/outputs.ts").unlink(), r"programs/outputs\.ts is missing"),
        (lambda root: (root / "stray.txt").write_text("x"), r"stray\.txt is not listed in the manifest"),
        (lambda root: (root / "remap/user_emb.safetensors").write_bytes(b"short"), r"remap/user_emb\.safetensors has 5 bytes, not \d+"),
        (lambda root: flip_byte(root / "tables/city_emb.safetensors"), r"tables/city_emb\.safetensors was changed: its sha256 differs"),
    ],
)
def test_damage_names_the_file(root: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(root)
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(root)


def test_contents_are_compared_only_when_asked(root: Path) -> None:
    flip_byte(root / "tables/city_emb.safetensors")
    Artifact.open(root, verify=False)
    (root / "tables/city_emb.safetensors").write_bytes(b"")
    with pytest.raises(ArtifactError, match="has 0 bytes"):
        Artifact.open(root, verify=False)


def edit(root: Path, change: Callable[[dict[str, Any]], object], *, seal: bool = True) -> None:
    """Change the manifest; `seal` gives it a valid digest again."""
    path = root / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    if seal:
        reseal(root, data)
    else:
        path.write_text(json.dumps(data))


def test_a_changed_manifest_is_refused(root: Path) -> None:
    edit(root, lambda data: data.update(version=2), seal=False)
    with pytest.raises(ArtifactError, match=r"manifest\.json was changed after it was written"):
        Artifact.open(root)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(format_version=2), "the artifact's format is 2; this release reads 1: upgrade Emberline or export again"),
        (lambda data: data.pop("tables"), "does not describe an artifact: tables is missing"),
        (lambda data: data.update(colour="red"), "does not describe an artifact: colour is unknown"),
        (lambda data: data["tables"].pop(), r"the schema's tables are .*user_emb.*, but manifest\.json has files for"),
        (lambda data: data["tables"].append(data["tables"][0]), "has files for"),
        (lambda data: data["tables"][0].update(remap=None), "table 'user_emb' of kind zch has no remap file"),
        (lambda data: data["tables"][1].update(remap=data["tables"][0]["remap"]), "table 'item_emb' of kind static has a remap file"),
        (lambda data: data["tables"][1].update(file="../../secret"), r"\.\./\.\./secret is used but not listed in manifest\.json"),
        (lambda data: data["tables"][1].update(file="tables/tags_emb.safetensors"), r"table 'item_emb' should be \(10, 8\)"),
        (
            lambda data: data["schema"]["lookups"][1].update(table="none"),
            "lookup 'item' reads table 'none' by feature 'item': one of them is not there",
        ),
        (lambda data: data["schema"]["lookups"][1].update(feature="price"), "by feature 'price': one of them is not there"),
        (lambda data: data["schema"]["lookups"][1].update(dim=4), "lookup 'item' is 4 wide, but its table 'item_emb' 8"),
        (lambda data: data["schema"]["outputs"][0].update(name="known"), "two answers are called known; 'known' and names"),
        (lambda data: data["tables"][0]["remap"].update(num_ids=5), "should hold 5 ids, found raw_ids 4"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(root: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    edit(root, change)
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(root)


def test_a_listed_file_outside_the_folder_is_not_read(root: Path) -> None:
    shutil.copy(root / "tables/item_emb.safetensors", root.parent / "outside")
    edit(root, lambda data: (data["tables"][1].update(file="../outside"), data["files"].update({"../outside": {"bytes": 1, "sha256": "0"}})))
    with pytest.raises(ArtifactError, match=r"\.\./outside is missing"):
        Artifact.open(root)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', "null"])
def test_a_manifest_that_is_no_manifest_is_refused(root: Path, text: str) -> None:
    (root / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"manifest\.json cannot be read"):
        Artifact.open(root)


def test_two_models_do_not_share_anything(tmp_path: Path) -> None:
    first, second = make_toy(1, "one"), make_toy(2, "two")
    opened = [Artifact.open(model.write(tmp_path)) for model in (first, second)]
    assert not torch.equal(opened[0].tables["item_emb"], opened[1].tables["item_emb"])


@pytest.mark.parametrize("file", ["tables/city_emb.safetensors", "remap/user_emb.safetensors"])
def test_with_tables_on_disk_every_digest_is_compared(root: Path, file: str) -> None:
    """Which `emberline verify` does; others compare the faster one of two."""

    def give(sha256: str, xxh3: str) -> None:
        edit(root, lambda data: data["files"][file].update(sha256=sha256, xxh3=xxh3))

    digest = PiecesDigest()
    digest.update((root / file).read_bytes())
    whole, fast = hash_file(root / file).sha256, digest.hexdigest()
    give(whole, fast)
    for memory in TABLE_MEMORIES:
        Artifact.open(root, tables=memory)
    give("0" * 64, fast)
    for memory in ("private", "mapped"):
        Artifact.open(root, tables=memory)
    with pytest.raises(ArtifactError, match=rf"{file} was changed: its sha256 differs"):
        Artifact.open(root, tables="disk")
    give(whole, "0" * 32)
    for memory in TABLE_MEMORIES:
        with pytest.raises(ArtifactError, match=rf"{file} was changed: its XXH3 differs"):
            Artifact.open(root, tables=memory)
    edit(root, lambda data: data["files"][file].update(xxh3=5))
    with pytest.raises(ArtifactError, match=r"does not describe an artifact: files\[.*\]\.xxh3"):
        Artifact.open(root)


@pytest.mark.parametrize("memory", TABLE_MEMORIES)
def test_an_artifact_from_before_there_were_fast_digests_and_indexes_answers_alike(root: Path, toy: ToyModel, memory: str) -> None:
    def forget(data: dict[str, Any]) -> None:
        for table in data["tables"]:
            if table["remap"] is not None:
                del table["remap"]["seed"]
                path = root / table["remap"]["file"]
                write_tensors(path, {name: part.clone() for name, part in map_tensors(path).items() if name != LINES})
        data["files"] = {file: {"bytes": entry.bytes, "sha256": entry.sha256} for file, entry in hash_tree(root).items()}

    edit(root, forget)
    engine = Engine.open(root, tables=memory)
    request = random_request(toy.schema, num_rows=5, seed=3, raw_ids=(100, -7))
    for name, found in engine.predict(PackedRequest(**request)).items():
        torch.testing.assert_close(found, toy.answers(request)[f"output.{name}"])
    flip_byte(root / "tables/user_emb.safetensors")
    with pytest.raises(ArtifactError, match=r"tables/user_emb\.safetensors was changed"):
        Engine.open(root, tables=memory)


def file_at(address: int) -> str:
    """The file that this process has mapped where an address is; empty where it is no file's."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, stop = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < stop:
            return [*line.split(maxsplit=5), ""][5]
    raise AssertionError(f"nothing is at {address:x}")


def test_the_index_of_ids_is_mapped_with_the_tables_and_private_with_them(root: Path) -> None:
    file = str(root / "remap/user_emb.safetensors")
    for memory, wanted in (("mapped", file), ("disk", file), ("private", "")):
        artifact = Artifact.open(root, tables=memory)
        index = artifact.remaps["user_emb"]
        assert isinstance(index, HashedRemap)
        found = file_at(index.lines.data_ptr())
        assert found == wanted if wanted else not found.endswith(".safetensors"), memory
        assert index.lines.data_ptr() % 64 == 0
        assert [part.tolist() for part in index(torch.tensor([100, 5]))][1] == [True, False]
