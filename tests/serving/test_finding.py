"""Where versions of models are found, in folders and behind URLs, by the plain words of their paths."""

from pathlib import Path

import pytest

from emberline.serving.finding import find_version_of, find_versions, older_versions
from emberline.storage import Place
from tests.serving.conftest import make_toy


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for version in (1, 2, 10):
        make_toy().write(tmp_path / "models", version)
    (tmp_path / "models" / "toy" / "3").mkdir()
    make_toy(name=".hidden").write(tmp_path / "models")
    make_toy(name="outside").write(tmp_path)
    return tmp_path / "models"


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, models: Path) -> Place:
    return models if request.param == "folder" else f"local://{models}"


def test_a_version_is_found_by_its_number(place: Place) -> None:
    root = str(place)
    found = {version: find_version_of(place, "toy", version) for version in (1, 2, 3, 4, 10)}
    assert {version: None if path is None else str(path) for version, path in found.items()} == {
        1: f"{root}/toy/1",
        2: f"{root}/toy/2",
        3: None,
        4: None,
        10: f"{root}/toy/10",
    }
    for name in ("nope", ".hidden", "..", "../outside", "toy/1", "outside"):
        assert find_version_of(place, name, 1) is None
    folder = f"{root}/toy" if isinstance(place, str) else place / "toy"
    assert str(find_version_of(folder, "whatever", 2)) == f"{root}/toy/2"
    artifact = f"{root}/toy/2" if isinstance(place, str) else place / "toy" / "2"
    assert str(find_version_of(artifact, "whatever", 9)) == f"{root}/toy/2"


def test_of_a_version_that_went_the_one_that_is_to_be_served_is_taken(place: Place) -> None:
    assert [str(path) for path in find_versions(place, {"toy": 4})] == [f"{place}/toy/10"]
    assert [str(path) for path in find_versions(place, {"toy": 1})] == [f"{place}/toy/1"]


def test_older_versions_are_those_before_unless_one_was_chosen(place: Place, models: Path) -> None:
    def older(number: int) -> list[str]:
        path: Place = f"{place}/toy/{number}" if isinstance(place, str) else place / "toy" / str(number)
        return [str(found) for found in older_versions(path)]

    assert older(10) == [f"{place}/toy/2", f"{place}/toy/1"]
    assert older(1) == []
    (models / "toy" / "served.json").write_text('{"version": 10}')
    assert older(10) == []
