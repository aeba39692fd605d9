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

for moment in ("checkpoint", "table tags_emb:", "programs", "parity", "flush", "rename"):
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
    assert killed == [[moment, True, []] for moment in ("checkpoint", "table tags_emb:", "programs", "parity", "flush", "rename")]


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
