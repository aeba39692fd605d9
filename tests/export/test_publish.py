"""Publishing: an artifact is there whole or not at all, whatever is killed and whoever else exports."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from emberline.building import BUILDING_PREFIX, remove_stale_builds
from emberline.errors import ExportError
from emberline.export.publish import list_versions, publish, start_build
from emberline.manifest import ArtifactManifest, find_damage, hash_tree, read_manifest
from emberline.schema import ModelSchema

_EMPTY_SCHEMA = ModelSchema(features=(), tables=(), lookups=(), groups=())


def _manifest(root: Path) -> ArtifactManifest:
    return ArtifactManifest(
        name="m",
        version=0,
        created="",
        schema=_EMPTY_SCHEMA,
        tables=(),
        programs=(),
        golden="golden.safetensors",
        parity={},
        versions={},
        files=hash_tree(root),
    )


def _publish_one(models_dir: Path, content: str, version: int | None = None) -> Path:
    with start_build(models_dir, "m", version) as build:
        (build.path / "tables").mkdir()
        (build.path / "tables" / "a").write_text(content)
        return publish(build, _manifest(build.path))


def _hidden(model_dir: Path) -> list[str]:
    return [path.name for path in model_dir.iterdir() if path.name.startswith(".")]


def test_versions_grow_from_one_and_the_manifest_tells_its_own(tmp_path: Path) -> None:
    paths = [_publish_one(tmp_path, "x") for _ in range(3)]
    assert [path.name for path in paths] == ["1", "2", "3"]
    assert [read_manifest(path)["version"] for path in paths] == [1, 2, 3]
    assert _hidden(tmp_path / "m") == []


def test_next_version_follows_the_largest_and_ignores_other_names(tmp_path: Path) -> None:
    for name in ("7", "9.bak", "010", "-1", "config"):
        (tmp_path / "m" / name).mkdir(parents=True)
    (tmp_path / "m" / "12").write_text("a file is no version")
    assert list_versions(tmp_path / "m") == [7]
    assert _publish_one(tmp_path, "x").name == "8"


def test_asked_version_is_used_once(tmp_path: Path) -> None:
    assert _publish_one(tmp_path, "first", version=5).name == "5"
    with pytest.raises(ExportError, match="version 5 is already there"):
        _publish_one(tmp_path, "second", version=5)
    assert (tmp_path / "m" / "5" / "tables" / "a").read_text() == "first"
    with pytest.raises(ExportError, match="must be 1 or more, not 0"):
        _publish_one(tmp_path, "x", version=0)


def test_asked_version_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with start_build(tmp_path, "m", 1) as build:
        _publish_one(tmp_path, "faster")
        with pytest.raises(ExportError, match="already there"):
            publish(build, _manifest(build.path))
    assert (tmp_path / "m" / "1" / "tables" / "a").read_text() == "faster"
    assert _hidden(tmp_path / "m") == []


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "é", "-x", "a\n"])
def test_names_that_cannot_be_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ExportError, match="model name"), start_build(tmp_path, name):
        pass
    assert list(tmp_path.iterdir()) == []


def test_error_while_building_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with start_build(tmp_path, "m") as build:
            (build.path / "half").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((tmp_path / "m").iterdir()) == []


def test_models_path_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(ExportError, match="cannot write to"), start_build(tmp_path / "models", "m"):
        pass


def test_many_exporters_at_once_get_versions_of_their_own(tmp_path: Path) -> None:
    threads = [threading.Thread(target=_publish_one, args=(tmp_path, str(number))) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    versions = list_versions(tmp_path / "m")
    assert versions == list(range(1, 9))
    contents = {(tmp_path / "m" / str(version) / "tables" / "a").read_text() for version in versions}
    assert contents == {str(number) for number in range(8)}
    for version in versions:
        root = tmp_path / "m" / str(version)
        assert find_damage(root, ArtifactManifest.from_dict(read_manifest(root)).files) == []
    assert _hidden(tmp_path / "m") == []


_HANG = """
import sys, time
from pathlib import Path
from emberline.export.publish import start_build
with start_build(Path(sys.argv[1]), "m") as build:
    (build.path / "half").write_text("x")
    print("building", flush=True)
    time.sleep(60)
"""


def test_killed_build_is_invisible_and_cleaned_but_a_living_one_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HANG, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        (building,) = (tmp_path / "m").iterdir()
        assert building.name.startswith(BUILDING_PREFIX)
        assert remove_stale_builds(tmp_path / "m") == []
        assert _publish_one(tmp_path, "x").name == "1"
        assert building.exists()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert list_versions(tmp_path / "m") == [1]
    assert remove_stale_builds(tmp_path / "m") == [building]
    assert _hidden(tmp_path / "m") == []
