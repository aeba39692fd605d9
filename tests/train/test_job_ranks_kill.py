"""Several ranks, killed at random moments, during saves too: the run goes on to the same bits on as many ranks, to the same numbers on others."""

import itertools
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from emberline.train.checkpoint import store
from tests.nursery import start_script
from tests.train.job_runs import assert_same_run, tensors_of
from tests.train.jobs import TIMEOUT_S
from tests.train.rank_cases import config_text, make_data
from tests.train.test_job_ranks import by_id

pytestmark = pytest.mark.slow
SCRIPT = str(Path(__file__).with_name("killed_ranks.py"))
STEPS, SAVE = 40, 4
SAME, OTHER = "same", "other"
KILLS = [("killed", 2, moment, who) for moment, who in itertools.product(("any", "save"), ("one", "all", "one"))]
MOVES = [("moved", ranks, "saved", "all") for ranks in (2, 4, 2)]
STARTS = {
    SAME: [("whole", 2, "never", ""), *KILLS, ("killed", 2, "never", "")],
    OTHER: [("whole", 2, "never", ""), *MOVES, ("moved", 1, "never", "")],
}
FINAL = {SAME: "dropout_ratio: [0.2] use_bn: true", OTHER: ""}


class Kills(NamedTuple):
    """What `killed_ranks.py` did.

    Args:
        folder: has a folder for each of `STARTS`, with its runs.
        seed: of the moments.
        told: of each kill.
    """

    folder: Path
    seed: int
    told: list[dict[str, Any]]

    def of(self, name: str) -> tuple[Path, list[dict[str, Any]]]:
        """The folder, and what was told of its runs; whatever fails is shown with the seed."""
        print(f"seed of the kills: {self.seed}")
        return self.folder / name, [kill for kill in self.told if kill["run"].startswith(f"{name}/")]


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """All starts of the ZCH case, one after the other, by one script, as imports take long."""
    folder = tmp_path_factory.mktemp("kills")
    make_data(folder)
    for name, starts in STARTS.items():
        (folder / name).mkdir()
        for ranks in {ranks for _, ranks, _, _ in starts}:
            (folder / name / f"{ranks}.config").write_text(kill_config(folder, ranks, FINAL[name]))
    starts = [(f"{name}/{run}", ranks, moment, who) for name, starts in STARTS.items() for run, ranks, moment, who in starts]
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed of the kills: {seed}")
    status, told = start_script([SCRIPT, str(folder), str(seed), json.dumps(starts)]).finish(TIMEOUT_S)
    wrote = "\n".join(f"{path.relative_to(folder)}: {path.read_text()[-2000:]}" for path in sorted(folder.glob("*/*-*-*.txt")))
    assert status == 0, f"{told}\n{wrote}"
    return Kills(folder, seed, [json.loads(line) for line in told.splitlines() if line.startswith("{")])


def kill_config(folder: Path, ranks: int, final: str) -> str:
    text = config_text("zch", folder, ranks, steps=STEPS) + "eval_config { num_steps: 2 }"
    text = text.replace("save_checkpoints_steps: 1000 log_step_count_steps: 5", f"save_checkpoints_steps: {SAVE} log_step_count_steps: 1")
    text = text.replace("rowwise_adagrad_optimizer { lr: 0.1 }", "adam_optimizer { lr: 0.01 }")
    return text.replace("final { hidden_units: [8] }", f"final {{ hidden_units: [8] {final} }}")


def test_killed_again_and_again_it_ends_with_the_same_bits(kills: Kills) -> None:
    """With dropout, batch normalisation, Adam's moments and id maps."""
    folder, told = kills.of(SAME)
    assert len(told) == len(KILLS)
    for kill in told:
        assert all(kill["statuses"][rank] == -9 for rank in kill["killed"]), told
        assert 0 not in kill["statuses"], told  # nobody goes on alone, or believes that all is well
    assert any(kill["half"] for kill in told), told
    run = folder / "killed"
    assert_same_run(folder / "whole", run)
    assert [store.verify_checkpoint(store.step_path(run, step)).step for step in store.list_steps(run)] == list(range(SAVE, STEPS + 1, SAVE))
    assert [path.name for path in run.glob(".*")] == [".lock"]


def test_killed_and_taken_up_by_other_ranks_it_ends_with_the_same_numbers(kills: Kills) -> None:
    folder, told = kills.of(OTHER)
    assert [kill["ranks"] for kill in told] == [2, 4, 2]
    assert all(kill["statuses"] == [-9] * kill["ranks"] for kill in told), told
    found, wanted, compared = tensors_of(folder / "moved"), tensors_of(folder / "whole"), 0
    for name, value in wanted.items():
        kind, table = name.split("/")[:2]
        if kind in ("rng", "zch"):
            continue
        pairs = {name: (found[name], value)}
        if f"zch/{table}/raw_ids" in wanted and len(value) == len(wanted[f"zch/{table}/raw_ids"]):
            own, other = by_id(found, table, name), by_id(wanted, table, name)
            assert own.keys() == other.keys()
            pairs = {one: (own[one], other[one]) for one in other}
        for one, (mine, whole) in pairs.items():
            torch.testing.assert_close(mine, whole, atol=1e-5, rtol=1e-5, msg=f"{name} {one}: found {mine}, expected {whole}; {told}")
            compared += 1
    assert compared > 80
