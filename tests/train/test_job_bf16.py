"""A training run whose tables are all BF16: it learns, goes on bit for bit, and its checkpoint holds what was trained."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from emberline.train.checkpoint import load_trained
from emberline.train.config import PipelineConfig
from emberline.train.job import run_training
from tests.train.conftest import FEATURES
from tests.train.job_runs import StopAfter, assert_same_run, tensors_of

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")
BF16 = FEATURES.replace("id_feature {", 'id_feature { data_type: "BF16"')


def test_a_stopped_run_goes_on_bit_for_bit_and_leaves_what_it_trained(make_config: MakeConfig, tmp_path: Path) -> None:
    """Rounding by chance draws from torch's generator, whose state is in the checkpoint."""
    config = make_config(train="num_steps: 18", features=BF16)
    run_training(config, tmp_path / "whole")
    assert run_training(config, tmp_path / "parts", stop=StopAfter(9)).stopped
    run_training(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    stored = tensors_of(tmp_path / "whole")
    weights = {name: tensor.dtype for name, tensor in stored.items() if name.startswith("tables/") and name.endswith("/weight")}
    assert len(weights) == 4
    assert set(weights.values()) == {torch.bfloat16}
    assert {tensor.dtype for name, tensor in stored.items() if re.fullmatch(r"tables/.*/sum", name)} == {torch.float32}
    group = load_trained(tmp_path / "whole").model.embedding_group
    assert {table.name: table.dtype for table in group.tables} == dict.fromkeys(("user_emb", "item_emb", "tags_emb", "hour_emb"), "bf16")
    for table, weight in group.table_weights().items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, stored[f"tables/{table}/weight"])


def test_it_learns(make_config: MakeConfig, tmp_path: Path) -> None:
    """As well as in FP32, which another test holds to the same number."""
    assert run_training(make_config(train="num_epochs: 3", features=BF16), tmp_path / "run").metrics["auc"] > 0.75
