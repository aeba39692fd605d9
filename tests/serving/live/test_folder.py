"""What a look into a folder of models finds, where a manifest is not what it should be."""

from pathlib import Path

import pytest

from emberline.errors import ArtifactError
from emberline.manifest import read_manifest
from emberline.serving.live.folder import Looker, Wanted
from emberline.storage import Place
from tests.serving.conftest import make_toy, reseal


@pytest.mark.parametrize("scheme", ["", "local://"])
@pytest.mark.parametrize("version", [None, "x", [1]])
def test_a_manifest_that_tells_no_version_is_an_error_of_that_model_alone(tmp_path: Path, scheme: str, version: object) -> None:
    root = make_toy().write(tmp_path, 2)
    data = read_manifest(root)
    reseal(root, data | {"version": version} if version is not None else {name: value for name, value in data.items() if name != "version"})
    models: Place = f"{scheme}{tmp_path}" if scheme else tmp_path
    looker = Looker.of(models, frozenset({"toy"}))
    found = looker.look()["toy"]
    assert isinstance(found, Wanted)
    assert found.version == 2
    with pytest.raises(ArtifactError, match="toy/2"):
        looker.identity(found)


def test_a_manifest_that_cannot_be_read_is_an_error_of_that_model_alone(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path, 2)
    looker = Looker.of(tmp_path, frozenset({"toy"}))
    found = looker.look()["toy"]
    (root / "manifest.json").unlink()
    (root / "manifest.json").mkdir()
    assert isinstance(found, Wanted)
    with pytest.raises(ArtifactError, match=r"manifest\.json cannot be read: .*Is a directory"):
        looker.identity(found)
