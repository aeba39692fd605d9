"""Real processes, killed at awkward moments: what they leave behind goes on to the same bits as a run that nobody killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from emberline.train.checkpoint import store
from emberline.train.config import PipelineConfig
from emberline.train.job import run_training
from tests.train.job_runs import assert_same_end, wait_for_step
from tests.train.jobs import TIMEOUT_S

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")
COMPLETE_AFTER_KILL = {"step": [8, 16], "save": [8, 16], "beside": [8, 16], "rename": [8], "prune": [16, 24]}
MODULE = (sys.executable, "-m", "emberline.train")
SCRIPT = (str(Path(sys.executable).with_name("emberline")), "train")


def start(command: tuple[str, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_killed_at_exact_moments(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(train="num_steps: 40 keep_checkpoint_max: 2")
    script = Path(__file__).with_name("killed_runs.py")
    with start((sys.executable, str(script), config.source, str(tmp_path), *COMPLETE_AFTER_KILL)) as process:
        run_training(config, tmp_path / "whole")
        output = process.communicate(timeout=TIMEOUT_S)[0]
    for moment, steps in COMPLETE_AFTER_KILL.items():
        assert f"{moment} -9" in output.splitlines(), output
        run = tmp_path / moment
        assert [store.verify_checkpoint(store.step_path(run, step)).step for step in store.list_steps(run)] == steps
        assert run_training(config, run, resume=True).step == 40
        assert_same_end(run, tmp_path / "whole")
        assert sorted(path.name for path in run.iterdir()) == [".lock", "metrics.jsonl", "result.json", "step-32", "step-40"]


@pytest.mark.slow
def test_commands_killed_and_stopped_from_outside(make_config: MakeConfig, tmp_path: Path) -> None:
    steps = 120
    config = make_config(train=f"num_steps: {steps}", save=20)
    run, options = tmp_path / "run", ("--config", config.source, "--output", str(tmp_path / "run"))
    with start((*MODULE, *options)) as process:
        run_training(config, tmp_path / "whole")
        wait_for_step(run, 45, process)  # the second save began, so the first has ended
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
    killed_at = store.list_steps(run)[-1]
    assert not (run / "result.json").exists()
    (run / "metrics.jsonl").unlink()
    with start((*SCRIPT, *options, "--resume")) as process:
        wait_for_step(run, killed_at + 10, process)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=TIMEOUT_S)[0]
    assert process.returncode == 143, output
    assert f"going on from {run}/step-{killed_at}: {killed_at} steps done" in output
    newest = store.list_steps(run)[-1]
    assert f"stopped by SIGTERM at step {newest}: checkpoint {run}/step-{newest}; add --resume to go on" in output
    assert killed_at < newest < steps
    assert run_training(config, run, resume=True).step == steps
    assert_same_end(run, tmp_path / "whole")
