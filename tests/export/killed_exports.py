"""Scripts that export in processes of their own and kill them."""

import json
from pathlib import Path

from tests.nursery import start_script
from tests.train.jobs import TIMEOUT_S

_PREAMBLE = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from emberline import building

run, models = Path(sys.argv[1]), Path(sys.argv[2])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def export_and_die_at(moment):
    def tell(line):
        if line.startswith(moment):
            die()
    if moment == "flush":
        building.flush_dir = lambda path: die()
    if moment == "rename":
        Path.rename = lambda self, target: die()
    export(tell)
"""


def run_script(script: str, run: Path, models: Path) -> list[list[object]]:
    """What a script prints, a list a line. It defines `export(tell)`, and has `export_and_die_at(moment)`, `run`, `models` and their imports."""
    path = run.parent / f"killed-{models.name}.py"
    path.write_text(_PREAMBLE + script)
    status, told = start_script([str(path), str(run), str(models)]).finish(TIMEOUT_S)
    assert status == 0, told
    return [json.loads(line) for line in told.splitlines() if line.startswith("[")]
