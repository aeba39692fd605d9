"""Which version of a model is served: the newest, or the one that `served.json` names."""

from pathlib import Path

import pytest

from emberline.errors import ArtifactError
from emberline.serving import Engine
from emberline.serving.finding import find_artifacts
from emberline.serving.metrics import Metrics
from emberline.serving.repository import Repository
from emberline.serving.settings import ServerSettings
from emberline.serving.triton.repository import write_repository
from emberline.serving.versions import SERVED_NAME, find_version, list_versions, pinned_version, served_version
from tests.serving.conftest import ToyModel


@pytest.fixture
def model_dir(toy: ToyModel, tmp_path: Path) -> Path:
    for version in (2, 10, 9):
        toy.write(tmp_path, version)
    return tmp_path / "toy"


def pin(model_dir: Path, text: str) -> None:
    (model_dir / SERVED_NAME).write_text(text)


def test_the_newest_is_served_unless_another_is_named(model_dir: Path) -> None:
    assert (list_versions(model_dir), pinned_version(model_dir), served_version(model_dir)) == ([2, 9, 10], None, 10)
    pin(model_dir, '{"version": 9}')
    assert (list_versions(model_dir), pinned_version(model_dir), served_version(model_dir)) == ([2, 9, 10], 9, 9)
    assert find_version(model_dir) == model_dir / "9"
    assert find_version(model_dir / "10") == model_dir / "10"
    assert served_version(model_dir / "none") is None


def test_every_server_takes_the_one_that_is_named(model_dir: Path, tmp_path: Path) -> None:
    pin(model_dir, '{"version": 2}')
    assert Engine.open(model_dir).version == 2
    assert find_artifacts(model_dir.parent) == find_artifacts(model_dir) == [model_dir / "2"]
    repository = Repository.open(model_dir.parent, ServerSettings(num_threads=1), Metrics())
    assert [(model.name, model.version) for model in repository] == [("toy", 2)]
    repository.close()
    assert write_repository(model_dir.parent, tmp_path / "triton") == {"toy": 2}
    assert sorted(path.name for path in (tmp_path / "triton" / "toy").iterdir()) == ["2", "config.pbtxt"]
    assert "versions: [ 2 ]" in (tmp_path / "triton" / "toy" / "config.pbtxt").read_text()


@pytest.mark.parametrize("text", ["", "3", "{}", '{"version": "9"}', '{"version": true}', '{"version": -1}', '{"version": 9.0}', "[9]", "{"])
def test_a_file_that_names_no_version_is_refused(model_dir: Path, text: str) -> None:
    pin(model_dir, text)
    for ask in (served_version, find_version, Engine.open, lambda path: find_artifacts(path.parent)):
        with pytest.raises(ArtifactError, match=r'toy/served\.json should hold {"version": K}'):
            ask(model_dir)


def test_a_version_that_is_not_there_is_not_replaced_by_another(model_dir: Path, tmp_path: Path) -> None:
    pin(model_dir, '{"version": 3}')
    for ask in (served_version, find_version, Engine.open, lambda path: write_repository(path.parent, tmp_path / "triton")):
        with pytest.raises(ArtifactError, match=r"served\.json says that version 3 is served, which is not there: there are 2, 9, 10"):
            ask(model_dir)
    assert Engine.open(model_dir / "9").version == 9


def test_bytes_that_are_no_text_are_refused(model_dir: Path) -> None:
    (model_dir / SERVED_NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match=r"served\.json cannot be read"):
        served_version(model_dir)
