"""Exports that are killed at any step, or run at the same time, leave whole versions only."""

from pathlib import Path

import pytest

from emberline.serving.engine import Engine
from emberline.serving.versions import list_versions
from tests.export.conftest import SmallRun
from tests.export.killed_exports import run_script

_SCRIPT = """
from emberline.export.export import export_model

def export(tell=None):
    export_model(run, models, "m", progress=tell)

def fork(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child

for moment in ("checkpoint", "table tags_emb:", "program", "parity", "flush", "rename"):
    _, status = os.waitpid(fork(lambda: export_and_die_at(moment)), 0)
    hidden = [path.name for path in models.glob("m/.building-*")]
    print(json.dumps([moment, os.WIFSIGNALED(status), [path.name for path in models.glob("m/[!.]*")], len(hidden)]), flush=True)

children = [fork(export) for _ in range(2)]
print(json.dumps([os.waitpid(child, 0)[1] for child in children]), flush=True)
"""


@pytest.fixture(scope="module")
def told(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[object]]]:
    models = tmp_path_factory.mktemp("models")
    return models, run_script(_SCRIPT, small_run.path, models)


def test_kill_at_any_step_leaves_no_version(told: tuple[Path, list[list[object]]]) -> None:
    _, lines = told
    killed = [line[:3] for line in lines[:-1]]
    assert killed == [[moment, True, []] for moment in ("checkpoint", "table tags_emb:", "program", "parity", "flush", "rename")]


def test_what_killed_exports_leave_is_hidden_and_cleaned_by_the_next(told: tuple[Path, list[list[object]]]) -> None:
    models, lines = told
    # The first moment is before the folder is made; each later export removes what the one before left.
    assert [line[3] for line in lines[:-1]] == [0, 1, 1, 1, 1, 1]
    assert [path.name for path in models.glob("m/.*")] == []


def test_two_exports_at_once_become_two_whole_versions(told: tuple[Path, list[list[object]]]) -> None:
    models, lines = told
    assert lines[-1] == [0, 0]
    assert list_versions(models / "m") == [1, 2]
    assert [Engine.open(models / "m" / str(version)).version for version in (1, 2)] == [1, 2]


_KILLS = 10
_AT_RANDOM = f"""
import random, time
from emberline.errors import EmberlineError
from emberline.export.describe import verify
from emberline.export.export import export_model
from emberline.serving.engine import Engine

def export(tell=None):
    export_model(run, models, "m", progress=tell, keep=1)

def start():
    child = os.fork()
    if child == 0:
        try:
            export()
        finally:
            os._exit(0)
    return child

def accepts(check, path):
    try:
        check(path)
    except EmberlineError:
        return False
    return True

started = time.monotonic()
os.waitpid(start(), 0)
whole_s = time.monotonic() - started
draw = random.Random(11)
for number in range({_KILLS}):
    child = start()
    time.sleep(whole_s * (number + draw.random()) / {_KILLS})
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = []
    for path in sorted(models.glob("m/[!.]*")):
        found.append([path.name, accepts(Engine.open, path), accepts(lambda path: list(verify(path)), path)])
    print(json.dumps([number, found, len(list(models.glob("m/.*")))]), flush=True)
os.waitpid(start(), 0)
"""


def test_kill_at_any_moment_leaves_only_what_opens_and_verifies(small_run: SmallRun, tmp_path: Path) -> None:
    lines = run_script(_AT_RANDOM, small_run.path, tmp_path)
    assert [line[0] for line in lines] == list(range(_KILLS))
    newest = 1
    for number, found, hidden in lines:
        assert isinstance(found, list)
        assert isinstance(hidden, int)
        versions = [int(name) for name, _, _ in found]
        assert [checks for _, *checks in found] == [[True, True]] * len(found), (number, found)
        # One version always is there; a second one only between publishing it and removing the first.
        assert len(versions) in (1, 2)
        assert max(versions) in (newest, newest + 1)
        assert hidden <= 2
        newest = max(versions)
    assert [path.name for path in (tmp_path / "m").iterdir()] == [str(newest + 1)]
