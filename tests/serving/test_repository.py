from pathlib import Path

import pytest

from emberline.errors import ArtifactError, NotFoundError
from emberline.serving.finding import find_artifacts
from emberline.serving.metrics import Metrics
from emberline.serving.repository import Repository
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import ToyModel, make_toy

SETTINGS = ServerSettings(num_threads=1)


def open_repository(path: Path) -> list[tuple[str, int]]:
    repository = Repository.open(path, SETTINGS, Metrics())
    found = [(model.name, model.version) for model in repository]
    repository.close()
    return found


def test_the_newest_version_of_every_model_is_loaded(tmp_path: Path) -> None:
    for name, versions in (("b", (2, 10)), ("a", (1,))):
        for version in versions:
            make_toy(name=name).write(tmp_path, version)
    assert open_repository(tmp_path) == [("a", 1), ("b", 10)]


def test_a_models_folder_and_an_artifact_are_taken_too(toy: ToyModel, tmp_path: Path) -> None:
    newest = [toy.write(tmp_path, version) for version in (1, 4)][-1]
    assert open_repository(tmp_path / "toy") == [("toy", 4)]
    assert open_repository(tmp_path / "toy" / "1") == [("toy", 1)]
    assert find_artifacts(tmp_path) == [newest]


def test_what_is_no_model_is_passed_over(toy_artifact: Path) -> None:
    models = toy_artifact.parent.parent
    (models / ".draft-x" / "1").mkdir(parents=True)
    (models / "notes").mkdir()
    (models / "README").write_text("")
    (toy_artifact.parent / "2").mkdir()
    (toy_artifact.parent / "newest").symlink_to("1")
    assert open_repository(models) == [("toy", 1)]


@pytest.mark.parametrize(("make", "problem"), [(False, "there is no such folder"), (True, "no models here")])
def test_a_folder_without_models_is_refused(tmp_path: Path, make: bool, problem: str) -> None:
    folder = tmp_path / "models"
    if make:
        folder.mkdir()
    with pytest.raises(ArtifactError, match=f"models: {problem}"):
        open_repository(folder)


def test_a_model_without_a_complete_version_is_refused(toy_artifact: Path) -> None:
    (toy_artifact.parent.parent / "half" / "1").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="half: none of its versions is complete"):
        open_repository(toy_artifact.parent.parent)


def test_an_artifact_under_another_name_is_refused(toy_artifact: Path) -> None:
    toy_artifact.parent.rename(toy_artifact.parent.parent / "other")
    with pytest.raises(ArtifactError, match="the manifest tells of 'toy' version 1, not of this folder"):
        open_repository(toy_artifact.parent.parent)


def test_a_model_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make_toy(name=name).write(tmp_path, 2)
    repository = Repository.open(tmp_path, SETTINGS, Metrics())
    assert repository.get("a").version == repository.get("a", "2").version == 2
    with pytest.raises(NotFoundError, match='there is no model "c"; this server has a, b'):
        repository.get("c")
    for version in ("1", "02", "two"):
        with pytest.raises(NotFoundError, match=f'model "a" has no version "{version}" here; this server has version 2'):
            repository.get("a", version)
    repository.close()
