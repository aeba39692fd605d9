"""Runs that keep the best checkpoint: each evaluation has one, the best one stays, and a resumed run keeps it too."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from emberline.errors import ConfigError
from emberline.train.checkpoint import load_trained, store
from emberline.train.checkpoint.keeping import best_checkpoint
from emberline.train.config import PipelineConfig, load_config
from emberline.train.job import run_training
from tests.train.job_runs import assert_same_run, logged

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


def best_config(make_config: MakeConfig, tmp_path: Path, train: str, export: str) -> PipelineConfig:
    path = tmp_path / "best.config"
    path.write_text(Path(make_config(train=train, save=7).source).read_text() + f"export_config {{ exporter_type: 'best' {export} }}\n")
    return load_config(path)


@pytest.mark.parametrize(("metric", "larger"), [("auc", True), ("log_loss", False)])
def test_the_best_and_the_newest_stay(make_config: MakeConfig, tmp_path: Path, metric: str, larger: bool) -> None:
    train = "num_epochs: 3 keep_checkpoint_max: 1"
    config = best_config(make_config, tmp_path, train, f"best_exporter_metric: '{metric}' metric_larger_is_better: {str(larger).lower()}")
    run_training(config, tmp_path / "run")
    numbers = {line["step"]: line[metric] for line in logged(tmp_path / "run") if line["kind"] == "eval"}
    assert sorted(numbers) == [20, 40, 60]
    best = (max if larger else min)(numbers, key=lambda step: numbers[step])
    assert store.list_steps(tmp_path / "run") == sorted({best, 60})
    assert best_checkpoint(tmp_path / "run").name == f"step-{best}"
    assert load_trained(tmp_path / "run" / "best").step == best
    assert json.loads((tmp_path / "run" / "best.json").read_text())["numbers"] == {str(step): number for step, number in numbers.items()}


def test_a_resumed_run_knows_the_best(make_config: MakeConfig, tmp_path: Path) -> None:
    def config(epochs: int) -> PipelineConfig:
        return best_config(make_config, tmp_path, f"num_epochs: {epochs} keep_checkpoint_max: 1", "metric_larger_is_better: false")

    run_training(config(3), tmp_path / "whole")
    for epochs in (1, 2, 3):
        run_training(config(epochs), tmp_path / "parts", resume=epochs > 1)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert store.list_steps(tmp_path / "parts") == store.list_steps(tmp_path / "whole")
    assert (tmp_path / "parts" / "best.json").read_text() == (tmp_path / "whole" / "best.json").read_text()


def test_what_cannot_be_the_best_is_refused_before_anything_is_trained(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="best_exporter_metric: the evaluation has no 'recall', only auc, log_loss"):
        run_training(best_config(make_config, tmp_path, "num_steps: 3", "best_exporter_metric: 'recall'"), tmp_path / "run")
    path = tmp_path / "best.config"
    path.write_text(path.read_text().replace("eval_input_path", "# eval_input_path"))
    with pytest.raises(ConfigError, match="exporter_type 'best' needs evaluation data; set eval_input_path"):
        run_training(load_config(path), tmp_path / "run")
    assert not (tmp_path / "run").exists()
