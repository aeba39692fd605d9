"""TorchRec's pipelined loop beside the plain one: the same bits, whatever is trained and however it ends.

Here on CPUs, where the pipeline goes through the same steps in the same order, but nothing runs at the same time.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from emberline.errors import DataError
from emberline.train.checkpoint import store
from emberline.train.config import PipelineConfig, load_config
from emberline.train.job import run_training
from emberline.train.job_build import build_parts
from emberline.train.job_loop import PipelinedLoop, PlainLoop, create_loop
from emberline.train.sharding import process_group
from emberline.train.sharding.process_group import Ranks
from tests.train.conftest import FEATURES
from tests.train.job_runs import StopAfter, assert_same_run
from tests.train.jobs import Job
from tests.train.rank_cases import CASES, config_text, make_data, plan_text
from tests.train.rank_checks import STOPPED_AT
from tests.train.rank_runs import run_forked

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 12
"""More than a pass has, and the last step of several batches is a short one."""
HASHED = FEATURES.replace("zch { zch_size: 40 eviction_interval: 2 lfu {} }", "hash_bucket_size: 40")
HALF = "mixed_precision: 'FP16' grad_scaler { init_scale: 4096 }"
HEAD = """
from torch import nn
class Head(nn.Module):
    def __init__(self, embedding_group):
        super().__init__()
        self.layer = nn.Linear(embedding_group.group_total_dim("deep"), 1)
    def forward(self, groups):
        return {"logits": self.layer(groups["deep"]).squeeze(1)}
"""
MODES = {
    "everything": {
        "train": f"num_steps: 23 {HALF} ema {{ decay: 0.9 }} grad_clipping {{ clipping_type: 'norm' max_gradient: 0.1 }}",
        "sparse": "adam_optimizer { lr: 0.01 gradient_clipping: true max_gradient: 0.01 }",
    },
    "several batches": {"train": "num_steps: 22 gradient_accumulation_steps: 3", "features": HASHED},
    "several in half": {"train": f"num_epochs: 2 gradient_accumulation_steps: 3 {HALF}", "features": HASHED},
}


@pytest.mark.parametrize("mode", MODES)
def test_both_loops_end_with_the_same_bits(make_config: MakeConfig, tmp_path: Path, mode: str) -> None:
    config = make_config(**MODES[mode])
    run_training(config, tmp_path / "plain", pipelined=False)
    stopped = run_training(config, tmp_path / "parts", pipelined=True, stop=StopAfter(9))
    assert stopped.stopped
    assert store.list_steps(tmp_path / "parts")[-1] == stopped.step
    run_training(config, tmp_path / "parts", pipelined=True, resume=True)
    assert_same_run(tmp_path / "plain", tmp_path / "parts")


@pytest.mark.parametrize("case", CASES)
def test_all_tables_are_pipelined_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    make_data(tmp_path)
    (tmp_path / "c.config").write_text(config_text(case, tmp_path, 1, steps=STEPS))
    config = load_config(tmp_path / "c.config")
    run_training(config, tmp_path / "plain")
    events: list[tuple[str, int]] = []
    watch(monkeypatch, events)
    run_training(config, tmp_path / "pipelined", pipelined=True)
    assert_same_run(tmp_path / "plain", tmp_path / "pipelined")
    an_epoch = 8 if CASES[case]["rows"] == 189 else 9
    for first in range(0, STEPS, an_epoch):
        count = min(an_epoch, STEPS - first)
        done = [event for event in events if first < event[1] <= first + count]
        expected = [("exchange", first + 1)]
        for batch in range(first + 1, first + count + 1):  # the next batch's ids are under way when a batch is trained
            expected += [("exchange", batch + 1)] * (batch < first + count) + [("train", batch)]
        assert done == expected


def watch(monkeypatch: pytest.MonkeyPatch, events: list[tuple[str, int]]) -> None:
    """Note when a batch's ids are exchanged, by all tables' collections, and when it is trained; batches count from 1."""
    started: dict[nn.Module, int] = {}
    trained = 0
    forward = PipelinedLoop._forward

    def train(self: PipelinedLoop, work: Any) -> Any:
        nonlocal trained
        trained += 1
        events.append(("train", trained))
        return forward(self, work)

    def parts_of(*arguments: Any, **named: Any) -> Any:
        parts = build_parts(*arguments, **named)
        collections = list(parts.model.embedding_group.collections.values())
        assert collections
        for collection in collections:
            collection.input_dist = exchange_of(collection, collection.input_dist, len(collections))
        return parts

    def exchange_of(collection: nn.Module, input_dist: Any, count: int) -> Any:
        def exchange(*arguments: Any, **named: Any) -> Any:
            if collection.training:
                started[collection] = started.get(collection, 0) + 1
                if len(started) == count and len(set(started.values())) == 1:
                    events.append(("exchange", started[collection]))
            return input_dist(*arguments, **named)

        return exchange

    monkeypatch.setattr(PipelinedLoop, "_forward", train)
    monkeypatch.setattr("emberline.train.job_run.build_parts", parts_of)


def test_two_ranks_end_with_the_same_bits_in_both_loops(tmp_path: Path) -> None:
    """Uneven ends of epochs, and stops on one rank."""
    make_data(tmp_path)
    for name in STOPPED_AT:
        case = "deep" if name == "several" else name
        text = config_text(case, tmp_path, 2, steps=STEPS)
        text = text.replace("num_steps", "gradient_accumulation_steps: 3 num_steps") if name == "several" else text
        (tmp_path / f"{name}.config").write_text(text)
        (tmp_path / f"{name}.json").write_text(plan_text(case, 2))
    ((first, second),) = run_forked(tmp_path, [Job(2, [str(tmp_path), "loops"])])
    for name in STOPPED_AT:
        assert_same_run(tmp_path / name / "plain", tmp_path / name / "parts")
    runs = 4 * len(STOPPED_AT)
    assert [first.count(text) for text in ("2 cpu ranks, 2 a machine", "GB/s: ddr", "plan: ")] == [runs] * 3
    assert f"plan: {len(CASES['deep']['plan'])} tables, " in first
    assert "plan: " not in second  # one speaks for all


def test_a_checkpoint_knows_what_was_trained_not_what_was_read(make_config: MakeConfig, tmp_path: Path) -> None:
    result = run_training(make_config(), tmp_path / "run", pipelined=True, stop=StopAfter(4))
    assert result.checkpoint is not None
    state = json.loads((result.checkpoint / "state.json").read_text())
    assert (state["step"], state["rows"]) == (result.step, 32 * result.step)


def test_a_stop_before_the_first_step_trains_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    result = run_training(make_config(), tmp_path / "run", pipelined=True, stop=StopAfter(0))
    assert (result.step, result.stopped, result.checkpoint) == (0, True, None)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_runs_shorter_than_the_pipeline(make_config: MakeConfig, tmp_path: Path, steps: int) -> None:
    for pipelined in (False, True):
        assert run_training(make_config(train=f"num_steps: {steps}"), tmp_path / str(pipelined), pipelined=pipelined).step == steps
    assert_same_run(tmp_path / "False", tmp_path / "True")


def test_a_model_without_tables_is_pipelined_too(make_config: MakeConfig, tmp_path: Path) -> None:
    features = 'feature_configs { raw_feature { feature_name: "age" expression: "user:age" } }'
    groups = 'feature_groups { group_name: "deep" feature_names: "age" }'
    model = 'custom_model { class_path: "no_tables_head.Head" } losses { binary_cross_entropy {} }'
    config = make_config(features=features, groups=groups, model=model, train="num_steps: 4")
    (tmp_path / "no_tables_head.py").write_text(HEAD)
    for pipelined in (False, True):
        run_training(config, tmp_path / str(pipelined), pipelined=pipelined)
    assert_same_run(tmp_path / "False", tmp_path / "True")


def test_labels_that_make_no_sense_are_named(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(train="num_epochs: 1")
    config = replace(config, data=replace(config.data, label_fields=("grade",)))
    with pytest.raises(DataError, match="label 'grade' must be between 0 and 1, found 2"):
        run_training(config, tmp_path / "run", pipelined=True)


def test_gpus_have_the_pipeline_and_cpus_the_plain_loop(make_config: MakeConfig) -> None:
    with process_group() as ranks:
        parts = build_parts(make_config())
        assert type(create_loop(parts, ranks)) is PlainLoop
        assert type(create_loop(parts, Ranks(0, 1, device=torch.device("cuda", 0)))) is PipelinedLoop
        assert type(create_loop(parts, ranks, pipelined=True)) is PipelinedLoop
        assert type(create_loop(parts, Ranks(0, 1, device=torch.device("cuda", 0)), pipelined=False)) is PlainLoop


@pytest.mark.gpu
def test_both_loops_learn_the_same_on_a_gpu(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(train="num_steps: 26")
    found = [run_training(config, tmp_path / str(pipelined), device="cuda", pipelined=pipelined).metrics for pipelined in (False, True)]
    assert found[1] == pytest.approx(found[0], abs=1e-4)
