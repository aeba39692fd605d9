"""What tests of the training job share: how runs are stopped and compared."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from emberline.train.checkpoint import load_trained, store
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.job_build import open_evaluation_data
from emberline.train.job_folder import METRICS_NAME
from emberline.train.job_signals import StopRequest
from emberline.train.metrics import BinaryMetrics
from tests.nursery import Script
from tests.train.jobs import TIMEOUT_S


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(store.find_checkpoint(run) / "tensors")


def assert_same_run(one: Path, other: Path) -> None:
    """Every tensor of the newest checkpoints, the result and the logged numbers are equal, bit for bit."""
    assert_same_end(one, other)
    assert logged(one) == logged(other)


def assert_same_end(one: Path, other: Path) -> None:
    """The same, but for the logged numbers."""
    first, second = tensors_of(one), tensors_of(other)
    assert sorted(first) == sorted(second)
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert different == []
    assert (one / "result.json").read_text() == (other / "result.json").read_text()


def logged(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "rows_per_s"} for line in lines]


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str] | Script) -> None:
    """Until a line of that step or a later one is written by that process, or by rank 0 of those that it launches."""
    path, deadline = run / METRICS_NAME, time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        if any(line.endswith("}") and json.loads(line)["step"] >= step for line in lines):
            return
        if isinstance(process, Script):
            assert process.runs, process.finish(TIMEOUT_S)
        else:
            assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    raise AssertionError(f"step {step} did not come")


def measured(run: Path) -> dict[str, float]:
    """The evaluation set's numbers of the model that a checkpoint gives, in float32."""
    trained = load_trained(run)
    metrics = BinaryMetrics()
    reader = open_evaluation_data(trained.config, trained.features)
    assert reader is not None
    with torch.no_grad():
        for batch in reader:
            metrics.update(trained.model(batch)["logits"].numpy(), batch.labels["label"].numpy())
    return metrics.compute()


class StopAfter(StopRequest):
    """As if a signal came in the middle of a step."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def __bool__(self) -> bool:
        self.looks -= 1
        return self.looks < 0
