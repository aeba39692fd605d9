"""Exports that are killed at any step, or run at the same time, leave whole versions only."""

import signal
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
_SPREAD = f"""
from emberline.errors import EmberlineError
from emberline.export.describe import verify
from emberline.export.export import export_model
from emberline.serving.engine import Engine

def changes(event, args):
    '''Whether something is about to change in the models folder; names without a folder are those of files that are being deleted.'''
    paths = [str(arg) for arg in args[:2] if isinstance(arg, (str, Path))]
    if event == "open":
        return bool(paths) and str(models) in paths[0] and args[1] not in (None, "r", "rb")
    return event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir") and any(str(models) in path or "/" not in path for path in paths)

def export(last, pipe=None):
    '''Die before the change of that number, counted from the one that makes the hidden folder; 0 counts them into the pipe.'''
    count = 0
    def look(event, args):
        nonlocal count
        if changes(event, args):
            count += count > 0 or event == "os.mkdir" and ".building-" in str(args[0])
            if count == last > 0:
                die()
    sys.addaudithook(look)
    export_model(run, models, "m", keep=1)
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

def accepts(check, path):
    try:
        check(path)
    except EmberlineError:
        return False
    return True

def tell(*told):
    found = []
    for path in sorted(models.glob("m/[!.]*")):
        found.append([path.name, accepts(Engine.open, path), accepts(lambda path: list(verify(path)), path)])
    print(json.dumps([*told, found, len(list(models.glob("m/.*")))]), flush=True)

reading, writing = os.pipe()
totals = []
for _ in range(2):
    start(0, writing)
    totals.append(int(os.read(reading, 20)))
first, whole = totals  # the second removes the first
for number in range({_KILLS}):
    # Spread over the building, and over the removing of the version before, which the first export has not.
    half = {_KILLS} // 2
    last = 1 + number * first // half if number < half else first + 1 + (number - half) * (whole - first) // half
    tell(number, start(last))
print(json.dumps([start(0)]), flush=True)
"""


def test_kill_before_any_change_leaves_only_what_opens_and_verifies(small_run: SmallRun, tmp_path: Path) -> None:
    lines = run_script(_SPREAD, small_run.path, tmp_path)
    assert [line[:2] for line in lines[:-1]] == [[number, -signal.SIGKILL] for number in range(_KILLS)]
    assert lines[-1] == [0]
    newest = 2
    for number, _, found, hidden in lines[:-1]:
        assert isinstance(found, list)
        versions = sorted(int(name) for name, _, _ in found)
        assert [checks for _, *checks in found] == [[True, True]] * len(found), (number, found)
        # The newest always is there; those before it only until they are removed.
        assert versions == list(range(versions[0], versions[-1] + 1))
        assert versions[-1] in (newest, newest + 1)
        assert hidden in (0, 1, 2)
        newest = versions[-1]
    assert newest > 2
    assert [path.name for path in (tmp_path / "m").iterdir()] == [str(newest + 1)]
