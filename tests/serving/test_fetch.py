"""Artifacts behind URLs: copied by their manifests, each file compared, from stores of several kinds."""

import functools
import http.server
import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pytest

from emberline.errors import ArtifactError, ConfigError, MissingDependencyError, StorageError
from emberline.manifest import read_manifest
from emberline.serving import Engine
from emberline.serving.fetch import fetch, find_stored_models, localise, stored_version
from emberline.serving.metrics import Metrics
from emberline.serving.repository import Repository
from emberline.serving.settings import ServerSettings
from emberline.serving.triton.repository import write_repository
from emberline.serving.triton.settings import TritonSettings
from emberline.storage import Storage, is_url, join, numbers_among, to_place
from tests.serving.conftest import make_toy, reseal
from tests.serving.deltas.toy_delta import changed, require_answers, write_delta

KINDS = ("memory", "local", "http")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def models(tmp_path: Path) -> Path:
    make_toy(1).write(tmp_path / "there", 1)
    make_toy(2).write(tmp_path / "there", 3)
    make_toy(3, "other").write(tmp_path / "there", 2)
    (tmp_path / "there" / "toy" / "4" / "tables").mkdir(parents=True)
    (tmp_path / "there" / "toy" / "4" / "tables" / "half").write_text("")
    return tmp_path / "there"


@contextmanager
def serve(folder: Path, handler: type[_Quiet] = _Quiet) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}/there"
        found.shutdown()
        thread.join()


@pytest.fixture
def server(models: Path) -> Iterator[str]:
    with serve(models.parent) as url:
        yield url


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, models: Path) -> str:
    """The same models in a store without folders, behind fsspec's own file system, and on a web server."""
    if request.param == "memory":
        put_in_memory(models)
        return "memory://bucket/there"
    if request.param == "local":
        return f"local://{models}"
    found: str = request.getfixturevalue("server")
    return found


def put_in_memory(models: Path) -> None:
    memory: Any = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    memory.put(str(models), "/bucket/there", recursive=True)


def test_what_is_a_url() -> None:
    assert [is_url(place) for place in ("s3://a/b", "dir::file:///x", "models", Path("s3://a"), "/a:b", "a::b")] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    assert [to_place(text) for text in ("file:///a/b", "file://localhost/a", "models/m", "s3://a//b/")] == [
        Path("/a/b"),
        Path("/a"),
        Path("models/m"),
        "s3://a//b/",
    ]
    assert (join("s3://a/b/", "c", "d"), join(Path("a"), "b")) == ("s3://a/b/c/d", Path("a/b"))


def test_a_folder_is_listed_and_read(url: str) -> None:
    storage = Storage.of(url)
    assert storage.names() == ["other", "toy"]
    assert storage.child("toy").numbers() == [1, 3]
    assert storage.child("none").names() == []
    assert storage.child("none").all_files() == []
    assert (storage.read("none"), storage.has("none"), storage.has("toy/1/manifest.json")) == (None, False, True)
    files = storage.child("toy", "1").all_files()
    assert {"manifest.json", "golden.safetensors", "tables/item_emb.safetensors"} < set(files)
    assert (storage.read("toy/4/tables/half"), storage.child("toy", "4").all_files()) == (b"", ["tables/half"])


def test_a_stamp_is_the_same_as_long_as_the_bytes_are(url: str, models: Path) -> None:
    storage, path = Storage.of(url), "toy/1/golden.safetensors"
    first = storage.stamp(path)
    assert (first is not None, storage.stamp(path), storage.stamp("toy/1/none")) == (True, first, None)
    (models / path).write_bytes(flipped((models / path).read_bytes()))
    if url.startswith("memory"):
        put_in_memory(models)
    assert storage.stamp(path) not in (first, None)
    assert numbers_among(["10", "2", "01", "0", "x", "-1", "٣", "served.json"]) == [2, 10]


def test_the_version_that_is_served_is_opened_and_kept(url: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    engine = Engine.open(f"{url}/toy", cache=cache)
    assert (engine.version, engine.artifact.root.parent.parent) == (3, cache)
    for name, rows in make_toy(2).tables.items():
        assert engine.artifact.tables[name].equal(rows)
    assert Engine.open(f"{url}/toy/1/", cache=cache).version == 1
    assert localise(models / "toy" / "1") == models / "toy" / "1"
    monkeypatch.setattr(Storage, "download", None)  # what is there is not copied again
    assert localise(f"{url}/toy", cache) == engine.artifact.root
    assert [path.name for path in cache.glob(".*")] == []


def test_a_rolled_back_model_is_served_as_such(url: str, models: Path, tmp_path: Path) -> None:
    (models / "toy" / "served.json").write_text('{"version": 1}')
    put_in_memory(models)
    assert Engine.open(f"{url}/toy", cache=tmp_path / "cache").version == 1
    assert sorted(find_stored_models(Storage.of(url))) == [f"{url}/other/2", f"{url}/toy/1"]


def test_both_servers_take_a_folder_of_models(url: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    repository = Repository.open(url, ServerSettings(num_threads=1, cache=cache), Metrics())
    assert [(model.name, model.version) for model in repository] == [("other", 2), ("toy", 3)]
    repository.close()
    assert write_repository(url, tmp_path / "triton", TritonSettings(cache=cache)) == {"other": 2, "toy": 3}
    text = (tmp_path / "triton" / "toy" / "config.pbtxt").read_text()
    assert f'string_value: "{url}/toy"' in text
    assert f'key: "emberline_cache" value {{ string_value: "{cache}" }}' in text
    assert (tmp_path / "triton" / "toy" / "3" / "model.py").is_file()


def test_deltas_come_along_and_after(models: Path, tmp_path: Path) -> None:
    url, cache, toy = "memory://bucket/there/toy/1", tmp_path / "cache", make_toy(1)
    put_in_memory(models)
    engine = Engine.open(url, cache=cache)
    assert (engine.delta, engine.apply_new_deltas()) == (0, [])
    write_delta(models / "toy" / "1", changed(toy))
    put_in_memory(models)
    assert engine.apply_new_deltas() == [1]
    require_answers(engine, changed(toy))
    assert [Engine.open(url, cache=cache, deltas=most).delta for most in (None, 1, 0)] == [1, 1, 0]
    memory: Any = fsspec.filesystem("memory")
    memory.mv("/bucket/there/toy/1/deltas/1", "/bucket/there/toy/1/deltas/3", recursive=True)
    with pytest.raises(ArtifactError, match="deltas: delta 1 is missing: there are 3"):
        Engine.open(url, cache=cache)
    memory.rm("/bucket/there/toy/1/deltas/3", recursive=True)
    assert Engine.open(url, cache=cache).delta == 0  # what is there counts, not what was copied once
    with pytest.raises(ArtifactError, match=r"toy/1: there are 0 deltas, fewer than 1"):
        Engine.open(url, cache=cache, deltas=1)


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def shortened(data: bytes) -> bytes:
    return data[:-1]


def renamed(data: bytes) -> bytes:
    return data.replace(b"toy", b"tou")


def test_what_differs_from_the_manifest_is_refused_by_name(url: str, models: Path, tmp_path: Path) -> None:
    for file, spoil, message in (
        ("tables/item_emb.safetensors", flipped, "was changed: its sha256 differs"),
        ("golden.safetensors", shortened, r"has \d+ bytes, not \d+"),
        ("manifest.json", renamed, "was changed after it was written"),
    ):
        path = models / "toy" / "3" / file
        before = path.read_bytes()
        path.write_bytes(spoil(before))
        put_in_memory(models)
        with pytest.raises(StorageError, match=rf"there/toy/3: .*{file} .*{message}") as failure:
            fetch(f"{url}/toy", tmp_path / "cache")
        assert str(failure.value).startswith(url)
        path.write_bytes(before)
    (models / "toy" / "3" / "golden.safetensors").unlink()
    put_in_memory(models)
    with pytest.raises(StorageError, match=r"there/toy/3: golden\.safetensors is missing"):
        fetch(f"{url}/toy", tmp_path / "cache")
    assert list((tmp_path / "cache").glob("*/3")) == []


def test_a_manifest_cannot_write_outside_of_its_folder(models: Path, tmp_path: Path) -> None:
    for path in ("../../evil", "/tmp/evil", "a/../../evil", "", "a//b", "./a", "a\\..\\b"):
        data = read_manifest(models / "toy" / "1")
        data["files"][path] = {"bytes": 0, "sha256": ""}
        reseal(models / "toy" / "1", data)
        put_in_memory(models)
        with pytest.raises(StorageError, match="would not lie in the folder"):
            fetch("memory://bucket/there/toy/1", tmp_path / "cache")
        del data["files"][path]
        reseal(models / "toy" / "1", data)


def test_a_damaged_copy_is_refused_or_replaced(models: Path, tmp_path: Path) -> None:
    put_in_memory(models)
    url, cache = "memory://bucket/there/toy", tmp_path / "cache"
    root = fetch(url, cache).root
    path = root / "tables" / "item_emb.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert fetch(url, cache).root == root  # another size: copied again
    assert [path.name for path in (*cache.glob(".*"), *root.parent.iterdir())] == [root.name]
    Engine.open(url, cache=cache)
    path.write_bytes(flipped(path.read_bytes()))
    with pytest.raises(ArtifactError, match=rf"{root}.*item_emb\.safetensors was changed"):
        Engine.open(url, cache=cache)


def test_many_at_once_copy_one_artifact(models: Path, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(f"local://{models}/toy", tmp_path / "cache").root)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert set(found) == {Engine.open(found[0]).artifact.root}


class _Odd(_Quiet):
    """Lists with links that sort, as Apache does, and fails at some of the files."""

    def list_directory(self, path: object) -> io.BytesIO | None:
        found = super().list_directory(path)  # type: ignore[arg-type]
        return (
            None if found is None else io.BytesIO(found.read().replace(b'<meta charset="utf-8">', b'<a href="?C=N">N</a>  '))
        )  # as many bytes as before

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        if self.path.endswith("toy/3/manifest.json"):
            self.send_error(503)
            return None
        return super().send_head()


def test_a_server_that_fails_is_not_one_without_the_newest_version(models: Path) -> None:
    with serve(models.parent, _Odd) as url:
        with pytest.raises(StorageError, match=r"toy: 3/manifest\.json cannot be read: .*503"):
            stored_version(Storage.of(f"{url}/toy"))
        assert stored_version(Storage.of(f"{url}/other")) == 2
        assert Storage.of(url).names() == ["other", "toy"]
        files = Storage.of(f"{url}/other/2").all_files()
        assert files == sorted(path.relative_to(models / "other" / "2").as_posix() for path in (models / "other" / "2").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("nothing://bucket/m", ConfigError, "nothing://bucket/m: Protocol not known: nothing; fsspec knows protocols such as s3"),
        ("s3://bucket/m", MissingDependencyError, "s3://bucket/m: .*[iI]nstall s3fs"),
        ("http://127.0.0.1:1/m", StorageError, "http://127.0.0.1:1/m: manifest.json cannot be read: "),
        ("memory://bucket/none", ArtifactError, "memory://bucket/none: no artifact here"),
    ],
)
def test_what_cannot_be_reached_is_told(url: str, kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        Engine.open(url, cache=tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_told(models: Path, tmp_path: Path) -> None:
    put_in_memory(models)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be copied to .*file.*; name another folder for the cache"):
        fetch("memory://bucket/there/toy", tmp_path / "file" / "cache")


def test_a_folder_of_another_number_is_refused(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "toy" / "1", models / "toy" / "7")
    put_in_memory(models)
    with pytest.raises(StorageError, match=r"toy/7: the folder says 7, manifest\.json says 1"):
        fetch("memory://bucket/there/toy", tmp_path / "cache")
