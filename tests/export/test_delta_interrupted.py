"""Delta exports that are killed at any step, or run at the same time, leave whole deltas only, each following the one before."""

from pathlib import Path

import pytest

from emberline.export.export import export_model
from emberline.serving.deltas import list_deltas
from emberline.serving.engine import Engine
from tests.export.conftest import make_run, make_table
from tests.export.killed_exports import run_script
from tests.export.test_delta import CONFIG, train_on

_SCRIPT = """
from emberline.errors import ExportError
from emberline.export.delta import export_delta

deltas = models / "m" / "1" / "deltas"

def export(tell=None):
    export_delta(run, models, "m", 1, progress=tell)

def fork(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except ExportError as error:
            code = 2 if "has appeared meanwhile" in str(error) else 3
        finally:
            os._exit(code)
    return child

for moment in ("checkpoint", "table uid_emb:", "program", "parity", "flush", "rename"):
    _, status = os.waitpid(fork(lambda: export_and_die_at(moment)), 0)
    there = [path.name for path in deltas.glob("*")] if deltas.is_dir() else []
    print(json.dumps([moment, os.WIFSIGNALED(status), [name for name in there if name[0] != "."], len(there)]), flush=True)

started, waits = [os.pipe() for _ in range(2)], os.pipe()

def race(pipe):
    def tell(line):
        if line.startswith("parity"):
            os.write(pipe, b"x")
            os.read(waits[0], 1)
    export(tell)

children = [fork(lambda pipe=pipe: race(pipe[1])) for pipe in started]
for pipe in started:
    os.read(pipe[0], 1)
os.write(waits[1], b"xx")
print(json.dumps(sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)), flush=True)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[object]]]:
    root = tmp_path_factory.mktemp("interrupted")
    run = make_run(root, CONFIG, make_table(64, seed=1))
    base = export_model(run.path, root / "models", "m")
    train_on(run, 8, make_table(32, seed=2))
    return base, run_script(_SCRIPT, run.path, root / "models")


def test_kill_at_any_step_leaves_no_delta(told: tuple[Path, list[list[object]]]) -> None:
    _, lines = told
    moments = ("checkpoint", "table uid_emb:", "program", "parity", "flush", "rename")
    # The first moment is before the folder is made; each later export removes what the one before left.
    assert lines[:-1] == [[moment, True, [], int(place > 0)] for place, moment in enumerate(moments)]


def test_of_two_exports_at_once_one_is_published_and_the_other_gives_up(told: tuple[Path, list[list[object]]]) -> None:
    base, lines = told
    assert lines[-1] == [0, 2]
    assert list_deltas(base) == [1]
    assert [path.name for path in (base / "deltas").glob(".*")] == []
    assert Engine.open(base).delta == 1
