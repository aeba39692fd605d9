"""How runs of several processes end: stopped, failed, killed and started anew; nothing stays running."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberline.train.checkpoint import store
from tests.nursery import Script
from tests.train.job_runs import assert_same_run, wait_for_step
from tests.train.jobs import TIMEOUT_S, Job
from tests.train.rank_cases import SOME_LEFT, config_text, make_data
from tests.train.rank_runs import TRAIN, forked_results, outputs_of, start_forked, start_launcher, start_torchrun

STEPS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A long run with dropout, ZCH tables and checkpoints every 20 steps."""
    folder = tmp_path_factory.mktemp("ends")
    make_data(folder)
    text = config_text("zch", folder, 2, steps=STEPS)
    text = text.replace("save_checkpoints_steps: 1000 log_step_count_steps: 5", "save_checkpoints_steps: 20 log_step_count_steps: 1")
    text = text.replace("final { hidden_units: [8] }", "final { hidden_units: [8] dropout_ratio: [0.2] use_bn: true }")
    (folder / "c.config").write_text(text)
    return folder


def options(folder: Path, run: str, *more: str) -> list[str]:
    return ["--config", str(folder / "c.config"), "--output", str(folder / run), *more]


def assert_gone(processes: list[int]) -> None:
    assert [process for process in processes if Path(f"/proc/{process}/stat").exists() and _state(process) != "Z"] == []


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def start_job(folder: Path, run: str, *more: str) -> tuple[Script, list[Job]]:
    """Two ranks, which no launcher watches."""
    jobs = [Job(2, ["train", *options(folder, run, *more)])]
    (folder / run).with_suffix(".told").mkdir(exist_ok=True)
    return start_forked((folder / run).with_suffix(".told"), jobs), jobs


def end_job(folder: Path, run: str, script: Script, jobs: list[Job]) -> tuple[str, str]:
    """What both ranks wrote, which must end well."""
    ((first, second),) = forked_results(script, (folder / run).with_suffix(".told"), jobs)
    assert (first[0], second[0]) == (0, 0), (first, second)
    return first[1], second[1]


class Launched(NamedTuple):
    """A launcher that was told to end, after one rank of two had been killed twice.

    Args:
        output: what it and its ranks wrote.
        ranks: the process ids of all ranks, of three starts.
    """

    output: str
    ranks: list[int]


@pytest.fixture(scope="module")
def launched(folder: Path) -> Launched:
    """The run `launched`: rank 0 is killed before the first checkpoint, and without --resume; rank 1 after it."""
    launcher, run = start_launcher(2, ["train", *options(folder, "launched")], "--max-restarts", "2"), folder / "launched"
    wait_for_step(run, 5, launcher)
    ranks = launcher.children()
    os.kill(ranks[0], signal.SIGKILL)
    wait_for_step(run, 25, launcher)
    ranks += launcher.children()
    os.kill(ranks[3], signal.SIGKILL)
    wait_for_step(run, 60, launcher)
    ranks += launcher.children()
    os.kill(launcher.process, signal.SIGTERM)
    _, output = launcher.finish(TIMEOUT_S)
    assert len(ranks) == 6, output
    return Launched(output, ranks)


@pytest.mark.slow
def test_a_launcher_that_is_stopped_leaves_a_checkpoint(folder: Path, launched: Launched) -> None:
    step = store.list_steps(folder / "launched")[-1]
    assert 60 <= step < STEPS, launched.output
    assert "nothing to resume" in launched.output
    assert launched.output.count("going on from") == 1
    assert "ended without a word (killed? out of memory?)" in launched.output
    assert f"stopped by SIGTERM at step {step}" in launched.output
    assert_gone(launched.ranks)


@pytest.mark.slow
def test_a_restart_keeps_to_its_own_folder(folder: Path, launched: Launched) -> None:
    steps = store.list_steps(folder / "launched")
    again = start_torchrun(1, [*TRAIN, *options(folder, "launched")], "--max-restarts", "1")
    (output,) = outputs_of([again])
    assert again.returncode != 0
    assert output.count("is not empty") >= 2  # the restart did not take the folder for its own
    assert store.list_steps(folder / "launched") == steps, launched.output


@pytest.mark.slow
def test_killed_on_either_rank_and_stopped_on_one_it_ends_with_the_same_bits(folder: Path, launched: Launched) -> None:
    first, second = end_job(folder, "whole", *start_job(folder, "whole"))
    assert f"done: {STEPS} steps" in first
    assert "done" not in second  # one rank speaks for all
    assert "training" not in second

    shutil.copytree(folder / "launched", folder / "parts")
    before = store.list_steps(folder / "parts")[-1]
    script, jobs = start_job(folder, "parts", "--resume")
    wait_for_step(folder / "parts", before + 10, script)
    os.kill(script.children()[1], signal.SIGTERM)
    first, _ = end_job(folder, "parts", script, jobs)
    step = store.list_steps(folder / "parts")[-1]
    assert before + 10 <= step < STEPS
    assert f"stopped by SIGTERM at step {step}: checkpoint {folder}/parts/step-{step}; add --resume to go on" in first
    assert not (folder / "parts" / "result.json").exists()

    first, _ = end_job(folder, "parts", *start_job(folder, "parts", "--resume"))
    assert first.count(f"going on from {folder}/parts/step-{step}") == 1, launched.output
    assert f"done: {STEPS} steps" in first
    assert_same_run(folder / "whole", folder / "parts")  # bit for bit: weights, moments, maps, random numbers, and what was logged


def test_errors_end_all_ranks_at_once_and_name_the_first(folder: Path, tmp_path: Path) -> None:
    table = pq.read_table(folder / f"{SOME_LEFT}.parquet")
    bad = [5 if row == 20 else label for row, label in enumerate(table["label"].to_pylist())]
    pq.write_table(table.set_column(table.schema.get_field_index("label"), "label", pa.array(bad, pa.int64())), tmp_path / f"{SOME_LEFT}.parquet")
    text = (folder / "c.config").read_text()
    (tmp_path / "label.config").write_text(text.replace(str(folder), str(tmp_path)).replace("shuffle: true", "shuffle: false"))
    (tmp_path / "loss.config").write_text(text.replace("adam_optimizer { lr: 0.01 }", "sgd_optimizer { lr: 1e38 momentum: 0 }"))
    growing = config_text("dynamic", folder, 2).replace("max_capacity: 600", "max_capacity: 10 score_strategy: 'NO_EVICTION'", 1)
    (tmp_path / "growing.config").write_text(growing)  # five ids a rank, of eleven
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    configs = {"label": "label", "loss": "loss", "growing": "growing", "full": "loss"}
    jobs = [Job(2, ["train", "--config", f"{tmp_path}/{config}.config", "--output", f"{tmp_path}/{run}"]) for run, config in configs.items()]
    begin = time.monotonic()
    label, loss, grown, full = forked_results(start_forked(tmp_path, jobs), tmp_path, jobs)
    assert time.monotonic() - begin < TIMEOUT_S / 2  # nobody waits for a timeout

    problem = "label 'label' must be between 0 and 1, found 5"
    assert [status for status, _ in label] == [1, 1]
    assert f"emberline: error: rank 1 failed, and so the run ends: {problem}" in label[0][1]
    assert f"emberline: error: rank 1: {problem}" in label[1][1]

    assert [status for status, _ in loss] == [1, 1]
    assert all("the loss is not finite at step" in output and ", on rank" in output for _, output in loss)

    problem = "table 'f0_emb' has 5 ids in 5 rows of this rank, and score_strategy is NO_EVICTION, and 1 new ids need rows; raise max_capacity"
    assert [status for status, _ in grown] == [1, 1]
    assert f"emberline: error: rank 0: {problem}" in grown[0][1]
    assert f"emberline: error: rank 0 failed, and so the run ends: {problem}" in grown[1][1]

    assert [status for status, _ in full] == [2, 1]
    assert all(f"{tmp_path}/full is not empty (file); add --resume" in output for _, output in full)
    assert "rank 0 failed, and so the run ends" in full[1][1]
