"""Forgetting that is killed before any change, done twice at once, or on a system that can't exchange names, leaves whole versions only."""

import fcntl
import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from emberline.errors import ExportError
from emberline.export.forget import swap
from emberline.export.forget.forget import forget
from emberline.export.forget.ledger import read_entries
from emberline.export.forget.swap import exchange, put_in_place, recover
from emberline.serving import Client, Engine
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.export.forget.test_forget import files_with
from tests.export.killed_exports import run_script
from tests.serving.conftest import make_toy
from tests.serving.deltas.toy_delta import changed, write_delta
from tests.serving.live.test_updates import wait_until

pytestmark = pytest.mark.usefixtures("one_thread")
GONE = -7
"""A user that the toy model has in row 0, and its delta in row 1."""


def write_models(models: Path) -> Path:
    """Two versions of the toy model, the first with a delta."""
    toy = make_toy(seed=1)
    write_delta(toy.write(models), changed(toy))
    make_toy(seed=2).write(models, 2)
    return models / "toy"


def vectors() -> list[bytes]:
    """What the user has in each version, and with the delta."""
    toy, other = make_toy(seed=1), make_toy(seed=2)
    rows = (toy.tables["user_emb"][0], changed(toy).tables["user_emb"][1], other.tables["user_emb"][0])
    return [row.numpy().tobytes() for row in rows]


def left(model: Path) -> int:
    """How many of the user's vectors are in files of versions."""
    return sum(bool(files_with(model, vector)) for vector in vectors())


_SCRIPT = """
import shutil
from emberline.errors import EmberlineError
from emberline.export.forget import forget as work
from emberline.serving.engine import Engine

def changes(event, args):
    paths = [str(arg) for arg in args[:2] if isinstance(arg, (str, bytes, Path))]
    if event == "open":
        return bool(paths) and str(models) in paths[0] and args[1] not in (None, "r", "rb")
    return event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link") and any(str(models) in path or "/" not in path for path in paths)

def export(last, pipe=None):
    count = 0
    def look(event, args):
        nonlocal count
        if changes(event, args):
            count += 1
            if count == last > 0:
                die()
    sys.addaudithook(look)
    put = work.put_in_place
    def counted(new, old):
        look("os.rename", [str(models)])
        put(new, old)
        look("os.rename", [str(models)])
    work.put_in_place = counted
    work.forget(models / "toy", "user", [GONE])
    if pipe is not None:
        os.write(pipe, str(count).encode())

def start(*options):
    child = os.fork()
    if child == 0:
        try:
            export(*options)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def fresh():
    shutil.rmtree(models, ignore_errors=True)
    shutil.copytree(run, models)

reading, writing = os.pipe()
fresh()
start(0, writing)
total = int(os.read(reading, 20))
print(json.dumps([total]), flush=True)
for number in range(KILLS):
    fresh()
    status = start(1 + number * total // KILLS)
    known = [bool(Engine.open(models / "toy" / version, deltas=deltas).artifact.remaps["user_emb"](torch.tensor([int(GONE)]))[1])
             for version, deltas in (("1", 0), ("1", 1), ("2", 0))]
    listed = (models / "toy" / "forgotten.jsonl").exists()
    print(json.dumps([number, status, known, listed, start(0)]), flush=True)
    shutil.copytree(models, models.parent / f"after-{number}")
"""
_KILLS = 5


def test_killed_before_any_change_it_leaves_whole_versions_and_the_next_call_does_the_rest(tmp_path: Path) -> None:
    run = tmp_path / "before"
    write_models(run)
    (total,), *lines = run_script(_SCRIPT.replace("GONE", repr(str(GONE))).replace("KILLS", str(_KILLS)), run, tmp_path / "models")
    assert isinstance(total, int)
    assert total > 40
    assert [line[:2] for line in lines] == [[number, -signal.SIGKILL] for number in range(_KILLS)]
    for number, _, known, listed, again in lines:
        assert known in ([True, True, True], [False, False, True], [False, False, False])
        assert listed or known == [True] * 3
        after = tmp_path / f"after-{number}" / "toy"
        assert (again, left(after)) == (0, 0)
        assert sorted(path.name for path in after.iterdir()) == [".forgotten.key", "1", "2", "forgotten.jsonl"]
        assert [(entry.done, set(entry.versions)) for entry in read_entries(after)[1]] == [(True, {"1", "2"})]
    assert lines[0][2] != lines[-1][2]


def test_two_at_once_wait_for_each_other(tmp_path: Path) -> None:
    model, lines = write_models(tmp_path), list[str]()
    descriptor = os.open(model, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    waits = [threading.Thread(target=forget, args=(model, "user", [one]), kwargs={"tell": lines.append}) for one in (str(GONE), "100")]
    for thread in waits:
        thread.start()
    wait_until(lambda: len(lines) == 2)
    assert lines == [f"waiting for another who changes {model}"] * 2
    assert left(model) == 3
    os.close(descriptor)
    for thread in waits:
        thread.join()
    assert left(model) == 0
    for version, ids in (("1", [300, 2**62]), ("2", [200, 2**62])):
        assert Engine.open(model / version).artifact.ids["user_emb"].raw_ids.tolist() == ids
    assert [entry.done for entry in read_entries(model)[1]] == [True, True]


def test_a_server_goes_over_to_the_changed_version_while_the_old_one_answers(tmp_path: Path) -> None:
    model = write_models(tmp_path)
    shutil.rmtree(model / "2")
    settings = ServerSettings(num_threads=1, delta_poll_s=0.05, version_poll_s=0.05)
    with EmbeddedServer(tmp_path, settings=settings) as server, Client(server.http_url, "toy") as client:

        def wide(user: int) -> list[float]:
            found: list[float] = client.lookup([{"user": user}], ["wide"])["wide"][0].tolist()
            return found

        want = changed(make_toy(seed=1)).tables["user_emb"]
        wait_until(lambda: wide(GONE) == want[1].tolist())
        others = [wide(user) for user in (100, 300, 2**62)]
        assert others == [want[row].tolist() for row in (2, 6, 5)]
        forget(model, "user", [str(GONE)])
        wait_until(lambda: wide(GONE) == wide(987654321))
        assert [wide(user) for user in (100, 300, 2**62)] == others


@pytest.mark.parametrize("by", ["exchange", "two renames"])
def test_a_folder_takes_the_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    old, new = tmp_path / "1", tmp_path / ".building-1"
    for folder in (old, new):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    if by == "two renames":
        monkeypatch.setattr(swap, "exchange", lambda one, other: False)
    put_in_place(new, old)
    assert [(path / "name").read_text() for path in (old, new)] == [".building-1", "1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".building-1", "1"]
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "none", old)
    assert (old / "name").read_text() == ".building-1"


def test_a_kill_between_two_renames_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_models(tmp_path)
    monkeypatch.setattr(swap, "exchange", lambda one, other: False)
    (model / "1").rename(model / ".replaced-1-00")
    shutil.copytree(model / "2", model / ".replaced-2-00")
    forget(model, "user", [str(GONE)])
    assert left(model) == 0
    assert sorted(path.name for path in model.iterdir()) == [".forgotten.key", "1", "2", "forgotten.jsonl"]


def test_exchange_tells_of_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "other")


def test_recover_leaves_all_others_alone(tmp_path: Path) -> None:
    for name in ("1", ".building-x", ".replaced-2-ab"):
        (tmp_path / name).mkdir()
    recover(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".building-x", "1", "2"]


def test_half_a_list_is_no_list(tmp_path: Path) -> None:
    model = write_models(tmp_path)
    forget(model, "user", [str(GONE)])
    text = (model / "forgotten.jsonl").read_text()
    assert [json.loads(line).get("feature") for line in text.splitlines()] == [None, "user"]
    (model / "forgotten.jsonl").write_text(text[:-20])
    with pytest.raises(ExportError, match=r"forgotten.jsonl cannot be read"):
        forget(model, "user", ["100"])
