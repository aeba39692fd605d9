"""Whole jobs whose steps have several batches, beside the same jobs with one batch of all their rows: every sparse optimiser learns the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emberline.train.checkpoint import store
from emberline.train.config import PipelineConfig, load_config
from emberline.train.job import run_training
from tests.train.conftest import FEATURES
from tests.train.job_runs import tensors_of

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")
FIELDS = {
    "sgd": "lr: 0.1",
    "adagrad": "lr: 0.1",
    "rowwise_adagrad": "lr: 0.1",
    "adam": "lr: 0.01 weight_decay: 0.1",
    "partial_rowwise_adam": "lr: 0.01",
    "lamb": "lr: 0.01 weight_decay: 0.1",
    "partial_rowwise_lamb": "lr: 0.01",
    "lars_sgd": "lr: 0.1 weight_decay: 0.1",
    "adadelta": "lr: 1 eps: 0.0001",
    "rmsprop": "lr: 0.01 eps: 0.0001",
}
BATCHES, STEPS, ROWS = 4, 4, 32
HASHED = FEATURES.replace("zch { zch_size: 40 eviction_interval: 2 lfu {} }", "hash_bucket_size: 40")
MODEL = "dlrm { dense_mlp { hidden_units: [8] } final { hidden_units: [8] } }"


def train(config: PipelineConfig, output: Path) -> None:
    """Nothing is evaluated."""
    run_training(replace(config, eval_input_path=""), output)


@pytest.mark.parametrize("optimizer", FIELDS)
def test_batches_of_a_step_are_one_batch_of_all_their_rows(make_config: MakeConfig, tmp_path: Path, optimizer: str) -> None:
    parts = {"sparse": f"{optimizer}_optimizer {{ {FIELDS[optimizer]} }}", "dense": "sgd_optimizer { lr: 0.1 }", "features": HASHED, "model": MODEL}
    train(make_config(train=f"num_steps: {STEPS}", save=1, **parts), tmp_path / "one")
    several = make_config(train=f"num_steps: {STEPS * BATCHES} gradient_accumulation_steps: {BATCHES}", save=100, **parts)
    text = Path(several.source).read_text().replace(f"batch_size: {ROWS}", f"batch_size: {ROWS // BATCHES}")
    (tmp_path / "several.config").write_text(text)
    train(load_config(tmp_path / "several.config"), tmp_path / "several")
    one, found, first = (tensors_of(path) for path in (tmp_path / "one", tmp_path / "several", store.step_path(tmp_path / "one", 1)))
    assert sorted(found) == sorted(one)
    compared = {name for name in one if not name.startswith("rng/")}
    for name in compared:
        torch.testing.assert_close(found[name].double(), one[name].double(), atol=1e-5, rtol=1e-5, msg=f"{name}: {found[name]}, not {one[name]}")
    moments = {name.rpartition("/")[2] for name in compared if name.startswith("tables/")} - {"weight"}
    assert bool(moments) == (optimizer != "sgd")
    learnt = [name for name in compared if name.startswith("tables/") and "hour_emb" not in name and not name.endswith("/step")]
    assert all((one[name].double() - first[name].double()).abs().max() > 1e-4 for name in learnt if name.endswith("weight"))
