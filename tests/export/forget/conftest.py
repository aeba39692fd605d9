"""A model's folder with a version, two deltas and a second version, of zero-collision and static tables; tests change copies of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from emberline.export.delta import export_delta
from emberline.export.export import export_model
from emberline.manifest import read_manifest, write_manifest
from emberline.serving.engine import Engine
from tests.export.conftest import SmallRun, make_run, make_table
from tests.export.test_delta import CONFIG, POLICIES, other_ids, train_on

STATES = ((1, 0), (1, 1), (1, 2), (2, 0))
"""Version and number of deltas."""


@dataclass(frozen=True)
class Kept:
    """What tests look at, and copy.

    Args:
        run: what was trained.
        models: the folder of models; its model is `m`.
        ids: raw ids of the table `uid_emb` in each state.
    """

    run: SmallRun
    models: Path
    ids: dict[tuple[int, int], list[int]]

    def copy(self, folder: Path) -> Path:
        """The model's folder, to be changed."""
        return shutil.copytree(self.models, folder / "models") / "m"


def open_state(model: Path, state: tuple[int, int]) -> Engine:
    """An engine of a version with some deltas."""
    return Engine.open(model / str(state[0]), deltas=state[1], tables="mapped")


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Tests do not change it."""
    root = tmp_path_factory.mktemp("kept")
    run, models = make_run(root, CONFIG, make_table(96, seed=1)), root / "models"
    export_model(run.path, models, "m", unknown=POLICIES)
    for number in (1, 2):
        train_on(run, 7 + number, other_ids(make_table(96, seed=10 + number), 30 * number))
        export_delta(run.path, models, "m", 1)
    shutil.copytree(models / "m" / "1", models / "m" / "2", ignore=shutil.ignore_patterns("deltas"))
    write_manifest(models / "m" / "2", {**read_manifest(models / "m" / "2"), "version": 2})
    ids = {state: open_state(models / "m", state).artifact.ids["uid_emb"].raw_ids.tolist() for state in STATES}
    return Kept(run, models, ids)
