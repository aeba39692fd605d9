"""Any byte that was changed, any file that is missing or one too many is found, and named, by opening an artifact and by `emberline verify`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emberline.cli import main
from emberline.errors import ArtifactError
from emberline.export.delta import export_delta
from emberline.export.export import export_model
from emberline.manifest import MANIFEST_NAME, hash_file, read_manifest
from emberline.serving.engine import Engine
from tests.export.conftest import make_run, make_table
from tests.export.test_delta import CONFIG, train_on
from tests.serving.conftest import reseal

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version with two deltas. Tests leave it as it was."""
    root = tmp_path_factory.mktemp("whole")
    run = make_run(root, CONFIG, make_table(48, seed=1))
    base = export_model(run.path, root / "models", "m")
    for step in (8, 9):
        train_on(run, step, make_table(32, seed=step))
        export_delta(run.path, root / "models", "m", 1)
    Engine.open(base)
    return base


def files_of(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def refusal(root: Path) -> str:
    """Why the artifact is not opened; opening without a look at the contents must not accept what cannot be opened at all."""
    with pytest.raises(ArtifactError) as failure:
        Engine.open(root)
    return str(failure.value)


def positions(size: int) -> list[int]:
    return sorted({0, 7, size // 3, size // 2, size - 1} & set(range(size)))


def test_any_flipped_byte_is_found_by_file(whole: Path) -> None:
    tried = []
    for file in files_of(whole):
        path = whole / file
        before = path.read_bytes()
        for place in positions(len(before)):
            path.write_bytes(before[:place] + bytes([before[place] ^ (1 << place % 8)]) + before[place + 1 :])
            text = refusal(whole)
            assert Path(file).name in text, (file, place, text)
            assert str(path.parent if path.name == MANIFEST_NAME else whole) in text
        path.write_bytes(before)
        tried.append(file.split("/")[-2] if "/" in file else file)
    assert {"manifest.json", "golden.safetensors", "tables", "remap", "programs", "1", "2"} <= set(tried)
    Engine.open(whole)


def test_every_byte_of_a_manifest_counts(whole: Path) -> None:
    """Also those that leave the data as they are: an indent, or the case of an exponent."""
    path = whole / MANIFEST_NAME
    before = path.read_bytes()
    places = [*range(0, len(before), 29), before.index(b"\n ") + 1, before.index(b"1e-") + 1]
    for place in places:
        for byte in {before[place] ^ 1, before[place] ^ 0x20, 0x0A} - {before[place]}:
            path.write_bytes(before[:place] + bytes([byte]) + before[place + 1 :])
            with pytest.raises(ValueError, match=r"manifest\.json was changed|Expecting|Invalid|Unterminated|Extra data|decode|has no digest"):
                read_manifest(whole)
    path.write_bytes(before)
    assert read_manifest(whole)["name"] == "m"


def test_a_missing_file_is_named(whole: Path, tmp_path: Path) -> None:
    for file in files_of(whole):
        (whole / file).rename(tmp_path / "aside")
        text = refusal(whole)
        (tmp_path / "aside").rename(whole / file)
        wanted = "neither manifest.json nor" if file == MANIFEST_NAME else f"{Path(file).name} is missing"
        assert wanted in text, (file, text)
    Engine.open(whole)


@pytest.mark.parametrize(
    "folder", ["", "tables", "remap", "programs", "other", "deltas", "deltas/1", "deltas/2/tables", "deltas/9", "deltas/notes", "deltas/01"]
)
def test_a_file_too_many_is_named(whole: Path, folder: str) -> None:
    path = whole / folder / "stray.bin"
    made = not path.parent.is_dir()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    try:
        text = refusal(whole)
    finally:
        path.unlink()
        if made:
            path.parent.rmdir()
    assert ("stray.bin" in text) or (folder == "deltas/9" and "deltas/9/manifest.json is missing" in text)
    Engine.open(whole)


def test_links_in_the_place_of_files_are_seen(whole: Path, tmp_path: Path) -> None:
    link = whole / "tables" / "link"
    for target in (tmp_path / "none", tmp_path, whole / MANIFEST_NAME):
        link.symlink_to(target)
        assert "tables/link is not listed" in refusal(whole)
        link.unlink()
    path = whole / "golden.safetensors"
    path.rename(tmp_path / "golden")
    path.symlink_to(tmp_path / "none")
    text = refusal(whole)
    path.unlink()
    (tmp_path / "golden").rename(path)
    assert "golden.safetensors cannot be read: No such file" in text


def test_two_files_in_each_others_place_are_found(whole: Path, tmp_path: Path) -> None:
    one, other = sorted((whole / "programs").iterdir())
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    text = refusal(whole)
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    assert one.name in text
    assert other.name in text


EDITS: dict[str, Change] = {
    "format_version": lambda data: data.update(format_version=99),
    "name": lambda data: data.update(name=7),
    "version": lambda data: data.update(version=2),
    "created": lambda data: data.pop("created"),
    "schema.features": lambda data: data["schema"]["features"].pop(),
    "schema.features kind": lambda data: data["schema"]["features"][0].update(kind="odd"),
    "schema.features encoder": lambda data: data["schema"]["features"][0]["encoder"].update(type="odd"),
    "schema.tables rows": lambda data: data["schema"]["tables"][0].update(rows=3),
    "schema.lookups order": lambda data: data["schema"]["lookups"].reverse(),
    "schema.lookups pooling": lambda data: data["schema"]["lookups"][0].update(pooling="max"),
    "schema.groups": lambda data: data["schema"]["groups"].pop(),
    "schema.outputs": lambda data: data["schema"]["outputs"].pop(),
    "schema.outputs name": lambda data: data["schema"]["outputs"][0].update(name="other"),
    "schema.towers": lambda data: data["schema"].update(towers=[{}]),
    "schema.group_dtype": lambda data: data["schema"].update(group_dtype=1),
    "tables": lambda data: data["tables"].pop(),
    "tables file": lambda data: data["tables"][0].update(file=data["tables"][1]["file"]),
    "tables dtype": lambda data: data["tables"][0].update(dtype="fp64"),
    "tables remap": lambda data: data["tables"][0].update(remap=None) if data["tables"][0]["remap"] else data["tables"][1].update(remap=None),
    "tables remap num_ids": lambda data: next(entry for entry in data["tables"] if entry["remap"])["remap"].update(num_ids=1),
    "programs": lambda data: data["programs"].pop(),
    "programs role": lambda data: data["programs"][0].update(role="groups"),
    "programs file": lambda data: data["programs"][0].update(file=data["programs"][1]["file"]),
    "programs format": lambda data: data["programs"][0].update(format="odd"),
    "programs device": lambda data: data["programs"][0].update(device=7),
    "programs libraries": lambda data: data["programs"][0].update(libraries=["not_there"]),
    "programs arch": lambda data: data["programs"][0].update(format="aoti", arch="pdp11"),
    "programs versions": lambda data: data["programs"][0].update(format="aoti", versions={"torch": "1.0"}),
    "golden": lambda data: data.update(golden=data["tables"][0]["file"]),
    "parity": lambda data: data.update(parity=[]),
    "versions": lambda data: data.update(versions={"torch": 2}),
    "files bytes": lambda data: data["files"]["golden.safetensors"].update(bytes=1),
    "files sha256": lambda data: data["files"]["golden.safetensors"].update(sha256="0" * 64),
    "files path": lambda data: data["files"].update(other=data["files"].pop("golden.safetensors")),
    "files": lambda data: data["files"].pop("golden.safetensors"),
    "a key that is unknown": lambda data: data.update(colour="red"),
}


@pytest.fixture
def restored(whole: Path) -> Iterator[Path]:
    """The version without deltas; its manifest is put back afterwards."""
    before = (whole / MANIFEST_NAME).read_bytes()
    yield whole
    (whole / MANIFEST_NAME).write_bytes(before)


@pytest.mark.parametrize("field", EDITS)
def test_an_edited_manifest_is_refused_also_with_a_digest_that_fits(restored: Path, field: str) -> None:
    data = read_manifest(restored)
    EDITS[field](data)
    (restored / MANIFEST_NAME).write_text(json.dumps({**data, "digest": json.loads((restored / MANIFEST_NAME).read_text())["digest"]}))
    assert f"{MANIFEST_NAME} cannot be read: {MANIFEST_NAME} was changed after it was written" in refusal(restored)
    reseal(restored, data)
    with pytest.raises(ArtifactError):
        Engine.open(restored, deltas=0)
    refusal(restored)


def test_a_manifest_with_a_digest_that_fits_does_not_take_the_deltas_of_another(restored: Path) -> None:
    data = read_manifest(restored)
    data["created"] = "another day"
    reseal(restored, data)
    assert Engine.open(restored, deltas=0).delta == 0
    assert "deltas/1: this delta was made for another artifact than" in refusal(restored)


def test_the_command_says_the_same(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(whole)]) == 0
    capsys.readouterr()
    path = whole / "deltas" / "2" / "golden.safetensors"
    before = path.read_bytes()
    path.write_bytes(before[:-1] + b"?")
    text = refusal(whole)
    assert main(["verify", str(whole)]) == 1
    path.write_bytes(before)
    assert capsys.readouterr().err == f"emberline: error: {text}\n"
    assert hash_file(path).bytes == len(before)
