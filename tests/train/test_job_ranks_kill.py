"""Several ranks, killed at random moments, during saves too: the run goes on to the same bits on as many ranks, to the same numbers on others."""

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.train.checkpoint import store
from tests.train.job_runs import assert_same_run, tensors_of
from tests.train.rank_cases import config_text, make_data
from tests.train.rank_runs import TIMEOUT_S, environment
from tests.train.test_job_ranks import by_id

pytestmark = pytest.mark.slow
SCRIPT = str(Path(__file__).with_name("killed_ranks.py"))
STEPS, SAVE = 60, 4


Start = tuple[str, int, str, str]


def kill_runs(folder: Path, final: str, starts: Sequence[Start]) -> list[dict[str, Any]]:
    """Let `killed_ranks.py` do its work on the ZCH case; what it tells of each kill."""
    make_data(folder)
    for ranks in {ranks for _, ranks, _, _ in starts}:
        text = config_text("zch", folder, ranks, steps=STEPS)
        text = text.replace("save_checkpoints_steps: 1000 log_step_count_steps: 5", f"save_checkpoints_steps: {SAVE} log_step_count_steps: 1")
        text = text.replace("rowwise_adagrad_optimizer { lr: 0.1 }", "adam_optimizer { lr: 0.01 }")
        (folder / f"{ranks}.config").write_text(text.replace("final { hidden_units: [8] }", f"final {{ hidden_units: [8] {final} }}"))
    seed = random.SystemRandom().randrange(2**31)
    command = [sys.executable, "-W", "ignore", SCRIPT, str(folder), str(seed), json.dumps(starts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, env=environment(), check=False)
    wrote = "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(folder.glob("*-*-*.txt")))
    assert done.returncode == 0, f"seed {seed}: {done.stdout}\n{wrote}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_killed_again_and_again_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    """With dropout, batch normalisation, Adam's moments and id maps."""
    kills = [("killed", 2, moment, who) for moment, who in itertools.product(("any", "save"), ("one", "all", "one"))]
    told = kill_runs(tmp_path, "dropout_ratio: [0.2] use_bn: true", [("whole", 2, "never", ""), *kills, ("killed", 2, "never", "")])
    assert len(told) == len(kills)
    for kill in told:
        assert all(kill["statuses"][rank] == -9 for rank in kill["killed"]), told
        assert 0 not in kill["statuses"], told  # nobody goes on alone, or believes that all is well
    assert any(kill["half"] for kill in told), told
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    run = tmp_path / "killed"
    assert [store.verify_checkpoint(store.step_path(run, step)).step for step in store.list_steps(run)] == list(range(SAVE, STEPS + 1, SAVE))
    assert [path.name for path in run.glob(".*")] == [".lock"]


def test_killed_and_taken_up_by_other_ranks_it_ends_with_the_same_numbers(tmp_path: Path) -> None:
    moves = [("moved", ranks, "saved", "all") for ranks in (2, 4, 2)]
    told = kill_runs(tmp_path, "", [("whole", 2, "never", ""), *moves, ("moved", 1, "never", "")])
    assert [kill["ranks"] for kill in told] == [2, 4, 2]
    assert all(kill["statuses"] == [-9] * kill["ranks"] for kill in told), told
    found, wanted, compared = tensors_of(tmp_path / "moved"), tensors_of(tmp_path / "whole"), 0
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
