"""The folder that Triton reads."""

from pathlib import Path

import pytest

from emberline.errors import ArtifactError
from emberline.manifest import read_manifest
from emberline.serving.triton.repository import MODEL_SOURCE, find_models, write_repository
from tests.serving.conftest import make_toy, reseal


def test_the_newest_version_of_each_model_is_laid_out(tmp_path: Path) -> None:
    models = tmp_path / "models"
    make_toy(1, "one").write(models, 1)
    make_toy(1, "one").write(models, 3)
    make_toy(2, "two").write(models, 7)
    (models / "unfinished" / "1").mkdir(parents=True)
    (models / "note.txt").write_text("not a model")
    before = {path: path.stat().st_mtime_ns for path in models.rglob("*")}
    assert write_repository(models, tmp_path / "triton") == {"one": 3, "two": 7}
    files = sorted(path.relative_to(tmp_path / "triton").as_posix() for path in (tmp_path / "triton").rglob("*") if path.is_file())
    assert files == [
        "one/3/__pycache__",
        "one/3/model.py",
        "one/config.pbtxt",
        "two/7/__pycache__",
        "two/7/model.py",
        "two/config.pbtxt",
    ]
    assert f'string_value: "{models}/one"' in (tmp_path / "triton" / "one" / "config.pbtxt").read_text()
    assert {path: path.stat().st_mtime_ns for path in models.rglob("*")} == before


def test_the_standing_example_runs_the_same_model(repository: Path) -> None:
    assert (repository / "model_repository" / "toy" / "1" / "model.py").read_text() == MODEL_SOURCE


def test_a_folder_without_models_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no models here: expected <name>/<version>/manifest\.json"):
        find_models(tmp_path)
    with pytest.raises(ArtifactError, match="there is no such folder"):
        find_models(tmp_path / "none")


def test_an_artifact_under_another_name_is_refused(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path)
    reseal(root, read_manifest(root) | {"name": "other"})
    with pytest.raises(ArtifactError, match="the manifest tells of 'other' version 1, not of this folder"):
        write_repository(tmp_path, tmp_path / "triton")


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path)
    (root / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match="has no digest"):
        write_repository(tmp_path, tmp_path / "triton")
