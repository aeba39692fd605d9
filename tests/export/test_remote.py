"""Exports from and to URLs: the same files as on this machine, the manifest last, two numbers for two at once."""

import functools
import http.server
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from emberline.cli import main
from emberline.errors import ArtifactError, CheckpointError, ExportError, StorageError
from emberline.export.describe_remote import describe_url, verify_url
from emberline.export.remote import CLAIMS, STALE_S, claim_version, export_anywhere, fetch_checkpoint, roll_back_anywhere
from emberline.manifest import hash_tree, read_manifest
from emberline.serving import Engine
from emberline.serving.fetch import fetch, stored_version
from emberline.storage import Storage
from tests.export.conftest import SmallRun
from tests.serving.conftest import make_toy

MODELS = "memory://bucket/models"


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    files: Any = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return make_toy().write(tmp_path / "here", 1)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def run_url(small_run: SmallRun) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(small_run.path.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}/{small_run.path.name}"
        found.shutdown()
        thread.join()


def test_the_commands_work_on_urls_as_on_folders(run_url: str, small_run: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--output", MODELS, "--name", "m"]
    assert main(["export", "--checkpoint", run_url, *place, "--scratch", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert (told[0], told[-1]) == (f"copying {run_url}", f"published {MODELS}/m/1")
    assert list(tmp_path.iterdir()) == []
    assert main(["export", "--checkpoint", str(small_run.path), *place, "--version", "3", "--keep", "1"]) == 0
    assert capsys.readouterr().out.endswith(f"published {MODELS}/m/3\nremoved version 1\n")
    assert main(["export", "--checkpoint", str(small_run.path), *place, "--delta-from", "3"]) == 0
    assert capsys.readouterr().out.endswith(f"published {MODELS}/m/3/deltas/1\n")
    assert main(["inspect", f"{MODELS}/m"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("artifact m, version 3, ")
    assert told[1].startswith(f"  {MODELS}/m/3: ")
    assert "deltas: 1; what follows is the artifact before them" in told
    assert main(["verify", f"{MODELS}/m"]) == 0
    assert capsys.readouterr().out.startswith(f"{MODELS}/m/3 with 1 delta: ")
    engine = Engine.open(f"{MODELS}/m", cache=tmp_path / "cache")
    assert (engine.version, engine.delta) == (3, 1)
    assert main(["inspect", run_url]) == 0
    assert capsys.readouterr().out.startswith(f"checkpoint of step 7\n  {run_url}/step-7: ")
    assert main(["verify", f"{run_url}/step-7"]) == 0
    assert capsys.readouterr().out.startswith(f"{run_url}/step-7: ")


def publish(root: Path, version: int | None = None) -> str:
    with claim_version(Storage.of(f"{MODELS}/toy"), version) as claim:
        data = read_manifest(root)
        assert data["version"] == claim.number
        return claim.publish(root)


def test_what_was_uploaded_is_what_was_there_and_the_manifest_came_last(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    upload = Storage.upload

    def note(self: Storage, local: Path, path: str) -> None:
        written.append(path)
        upload(self, local, path)

    monkeypatch.setattr(Storage, "upload", note)
    assert publish(whole) == f"{MODELS}/toy/1"
    assert written[-1] == "manifest.json"
    assert sorted(written) == sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file())
    assert hash_tree(fetch(f"{MODELS}/toy", tmp_path / "cache").root) == hash_tree(whole)
    assert Storage.of(f"{MODELS}/toy").child(CLAIMS).names() == []


def test_an_upload_that_broke_off_is_no_version_and_does_not_stay_in_the_next(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, upload = Storage.of(f"{MODELS}/toy"), Storage.upload
    model.write("1/tables/of_another", b"x")

    def break_off(self: Storage, local: Path, path: str) -> None:
        if path.startswith("tables"):
            raise StorageError("the line is cut")
        upload(self, local, path)

    monkeypatch.setattr(Storage, "upload", break_off)
    with pytest.raises(StorageError, match="the line is cut"):
        publish(whole)
    assert model.child("1").all_files() != []
    assert (model.numbers(), stored_version(model), model.child(CLAIMS).names()) == ([], None, [])
    monkeypatch.undo()
    publish(whole)
    assert (model.numbers(), model.has("1/tables/of_another")) == ([1], False)


def test_two_at_once_get_two_numbers(whole: Path) -> None:
    model = Storage.of(f"{MODELS}/toy")
    with claim_version(model, None) as one, claim_version(model, None) as two, claim_version(model, 9) as nine, claim_version(model, None) as ten:
        assert [claim.number for claim in (one, two, nine, ten)] == [1, 2, 9, 10]
        with pytest.raises(ExportError, match="toy: another export is at work on version 9"), claim_version(model, 9):
            pass
        one.publish(whole)
        with pytest.raises(ExportError, match=r"version 1 is already there: .*toy/1; published"), claim_version(model, 1):
            pass
        with pytest.raises(ExportError, match="version 1 is already there"):
            one.publish(whole)
    assert model.child(CLAIMS).names() == []


def test_many_threads_never_share_a_number(tmp_path: Path) -> None:
    model, found, barrier = Storage.of(f"local://{tmp_path}/toy"), list[int](), threading.Barrier(6, timeout=120)  # who fails leaves nobody waiting

    def take() -> None:
        barrier.wait()
        with claim_version(model, None) as claim:
            found.append(claim.number)
            barrier.wait()

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 6


def test_claims_that_are_old_are_removed_with_what_they_left(whole: Path) -> None:
    model = Storage.of(f"{MODELS}/toy")
    for number, age in ((1, STALE_S + 60), (2, 60)):
        model.write(f"{CLAIMS}/{number}-{int(time.time()) - age}-x", b"")
        model.write(f"{number}/tables/half", b"x")
    with claim_version(model, 1) as claim:
        assert (model.has("1/tables/half"), model.has("2/tables/half")) == (False, True)
        model.remove(claim.file)
        with pytest.raises(ExportError, match=r"the claim .* was removed meanwhile"):
            claim.publish(whole)
    assert model.numbers() == []


def test_a_checkpoint_is_compared_while_it_is_copied(small_run: SmallRun, tmp_path: Path) -> None:
    there = shutil.copytree(small_run.path, tmp_path / "run")
    assert hash_tree(fetch_checkpoint(f"local://{there}", tmp_path / "a")) == hash_tree(there / "step-7")
    assert fetch_checkpoint(f"local://{there}/step-7", tmp_path / "b").name == "step-7"
    (there / "step-7" / "state.json").write_text("{}")
    with pytest.raises(StorageError, match=r"step-7: state\.json has 2 bytes"):
        fetch_checkpoint(f"local://{there}", tmp_path / "c")
    manifest = there / "step-7" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("7", "8", 1))
    with pytest.raises(CheckpointError, match=rf"^local://{there}/step-7: .*manifest\.json"):
        fetch_checkpoint(f"local://{there}", tmp_path / "e")
    manifest.unlink()
    with pytest.raises(CheckpointError, match="no checkpoint here: no step-N folder"):
        fetch_checkpoint(f"local://{there}", tmp_path / "d")


def test_a_rollback_behind_a_url(whole: Path, tmp_path: Path) -> None:
    for version in (1, 2, 4):
        publish(make_toy().write(tmp_path / "more", version), version)
    model = Storage.of(f"{MODELS}/toy")
    assert [roll_back_anywhere(MODELS, "toy") for _ in range(2)] == [2, 1]
    assert stored_version(model) == 1
    with pytest.raises(ExportError, match="there is no version 3: there are 1, 2, 4"):
        roll_back_anywhere(MODELS, "toy", 3)
    model.write("2/golden.safetensors", b"")
    with pytest.raises(StorageError, match=r"toy/2: golden\.safetensors has 0 bytes"):
        roll_back_anywhere(MODELS, "toy", 2)
    assert "  versions there: 1, 2, 4; 1 is served, as it was rolled back" in describe_url(f"{MODELS}/toy")
    assert roll_back_anywhere(MODELS, "toy", 4) == 4
    assert (model.has("served.json"), stored_version(model)) == (False, 4)


def test_errors_of_what_is_behind_a_url_name_the_url(whole: Path) -> None:
    publish(whole)
    Storage.of(f"{MODELS}/toy/1").write("deltas/1/manifest.json", b"{}")
    for ask in (describe_url, lambda url: list(verify_url(url))):
        with pytest.raises(ArtifactError, match=f"^{MODELS}/toy/1/deltas/1: manifest.json cannot be read"):
            ask(f"{MODELS}/toy")


@pytest.mark.parametrize("version", [0, -3])
def test_no_version_has_a_number_below_1(tmp_path: Path, version: int) -> None:
    with pytest.raises(ExportError, match=f"version must be 1 or more, not {version}"):
        export_anywhere(tmp_path / "none", MODELS, "toy", version=version)
    assert Storage.of(f"{MODELS}/toy").all_files() == []


def test_a_stray_file_behind_a_url_is_found(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(whole)
    Storage.of(f"{MODELS}/toy/1").write("tables/stray", b"")
    assert main(["verify", f"{MODELS}/toy"]) == 1
    assert "tables/stray is not listed in the manifest" in capsys.readouterr().err


def test_a_failed_export_lets_go_of_its_number(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        export_anywhere(tmp_path / "none", MODELS, "toy")
    assert Storage.of(f"{MODELS}/toy").child(CLAIMS).names() == []
    with pytest.raises(ExportError, match="cannot write to the scratch folder"):
        export_anywhere(tmp_path, MODELS, "toy", scratch=tmp_path / "none")
    with pytest.raises(ExportError, match="at least one version must be kept, not 0"):
        export_anywhere(tmp_path, MODELS, "toy", keep=0)
    for name in ("", "..", "a/b"):
        with pytest.raises(ExportError, match="model name"):
            export_anywhere(tmp_path, MODELS, name)
    assert Storage.of(MODELS).all_files() == []


def test_a_number_that_was_published_meanwhile_is_not_taken(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, numbers = Storage.of(f"{MODELS}/toy"), Storage.numbers
    publish(whole)
    found = iter([[], [1]])  # a listing from before it was there
    monkeypatch.setattr(Storage, "numbers", lambda self: next(found))
    with claim_version(model, None) as claim:
        assert claim.number == 2
    monkeypatch.setattr(Storage, "numbers", numbers)
    assert model.numbers() == [1]
