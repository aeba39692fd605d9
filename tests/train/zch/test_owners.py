"""Rows that change owner, with every sparse optimiser on one rank and on two: a new initial vector, and moments as at the beginning."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.jobs import Job
from tests.train.rank_runs import run_forked
from tests.train.zch.grid_on_ranks import HEAD
from tests.train.zch.owners_on_ranks import FIRST_SUM, INITIAL, OPTIMIZERS, ROWS

pytestmark = pytest.mark.slow
SCRIPT = str(Path(__file__).with_name("owners_on_ranks.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("owners")
    (home / "grid_head.py").write_text(HEAD)
    jobs = [Job(count, [SCRIPT, str(home)]) for count in (1, 2)]
    run_forked(home, jobs)
    return home


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_new_owner_finds_nothing_of_the_old_one(folder: Path, optimizer: str, count: int) -> None:
    moments = 0
    for rank in range(count):
        found = load_file(folder / f"{optimizer}-{count}-{rank}.safetensors")
        owned = ROWS // count - 1
        assert (found["before/weight"][:owned] != INITIAL).all()
        assert torch.equal(found["after/weight"][:owned], torch.full((owned, 4), INITIAL))
        assert torch.equal(found["after/weight"][owned:], found["before/weight"][owned:])
        for name in [name.removeprefix("before/") for name in found if name.startswith("before/") and name != "before/weight"]:
            first = FIRST_SUM if name == "sum" else 0.0
            assert (found[f"before/{name}"][:owned] != first).any(), name
            assert (found[f"after/{name}"][:owned] == first).all(), name
            assert torch.equal(found[f"after/{name}"][owned:], found[f"before/{name}"][owned:]), name
            moments += 1
    assert (moments > 0) == (optimizer != "sgd")
