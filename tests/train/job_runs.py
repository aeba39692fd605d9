"""What tests of the training job share: how runs are stopped and compared."""

import json
from pathlib import Path
from typing import Any

import torch

from emberline.train.checkpoint import store
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.job_signals import StopRequest


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(store.find_checkpoint(run) / "tensors")


def assert_same_run(one: Path, other: Path) -> None:
    """Every tensor of the newest checkpoints, the result and the logged numbers are equal, bit for bit."""
    first, second = tensors_of(one), tensors_of(other)
    assert sorted(first) == sorted(second)
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert different == []
    assert (one / "result.json").read_text() == (other / "result.json").read_text()
    assert logged(one) == logged(other)


def logged(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "rows_per_s"} for line in lines]


class StopAfter(StopRequest):
    """As if a signal came in the middle of a step."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def __bool__(self) -> bool:
        self.looks -= 1
        return self.looks < 0
