"""Schedules, part optimisers, moving averages, clipping and half precision in a whole run: logged, evaluated, saved and taken up again."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import load_trained, store
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.config import PipelineConfig
from emberline.train.job import run_training
from tests.train.conftest import FEATURES
from tests.train.job_runs import StopAfter, assert_same_run, logged, measured, tensors_of

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")

SPARSE, DENSE = "adagrad_optimizer { lr: 0.05 }", "adam_optimizer { lr: 0.01 }"
SCHEDULES = {
    "exponential": "exponential_decay_learning_rate { decay_size: 3 decay_factor: 0.8 warmup_size: 4 warmup_learning_rate: 0.001 }",
    "manual": "manual_step_learning_rate { schedule_sizes: [5, 17] learning_rates: [0.02, 0.004] warmup: true }",
    "cosine": "cosine_annealing_learning_rate { T_max: 15 min_learning_rate: 0.002 warmup_size: 5 }",
    "restarts": "cosine_annealing_warm_restarts_learning_rate { T_0: 4 T_mult: 2 warmup_size: 2 }",
    "by_epoch": "exponential_decay_learning_rate { decay_size: 1 decay_factor: 0.5 by_epoch: true }",
}
PARTS = "part_optimizers { regex_pattern: 'head\\\\.output\\\\..*' sgd_optimizer { lr: 0.02 } %s }"
STEPS = {
    "exponential": "ema { decay: 0.9 } grad_clipping { clipping_type: 'norm' max_gradient: 0.05 }",
    "manual": "mixed_precision: 'BF16'",
    "cosine": "mixed_precision: 'FP16' grad_scaler { growth_interval: 5 }",
    "restarts": "grad_clipping { clipping_type: 'value' max_gradient: 0.01 }",
    "by_epoch": "ema {} grad_scaler { init_scale: 1024 growth_interval: 7 }",
}


def scheduled(make_config: MakeConfig, schedule: str, train: str, **parts: Any) -> PipelineConfig:
    """A config whose optimisers all follow the schedule."""
    return make_config(train=train, sparse=f"{SPARSE} {schedule}", dense=f"{DENSE} {PARTS % schedule} {schedule}", **parts)


@pytest.mark.parametrize("kind", list(SCHEDULES))
def test_a_stopped_run_goes_on_bit_for_bit(make_config: MakeConfig, tmp_path: Path, kind: str) -> None:
    config = scheduled(make_config, SCHEDULES[kind], f"num_steps: 24 {STEPS[kind]}", save=50)
    run_training(config, tmp_path / "whole")
    assert run_training(config, tmp_path / "parts", stop=StopAfter(13)).stopped
    run_training(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("sparse", ["adam", "lars_sgd", "lamb", "partial_rowwise_lamb", "partial_rowwise_adam", "adadelta", "rmsprop"])
def test_tables_of_any_optimiser_go_on_bit_for_bit(make_config: MakeConfig, tmp_path: Path, sparse: str) -> None:
    schedule = "cosine_annealing_learning_rate { T_max: 9 warmup_size: 2 }"
    parts = {"train": "num_steps: 12", "sparse": f"{sparse}_optimizer {{ lr: 0.05 }} {schedule}", "dense": DENSE}
    config = make_config(**parts, save=50)
    run_training(config, tmp_path / "whole")
    assert run_training(config, tmp_path / "parts", stop=StopAfter(6)).stopped
    run_training(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_the_rates_of_each_step_are_logged(make_config: MakeConfig, tmp_path: Path) -> None:
    manual = "manual_step_learning_rate { schedule_sizes: [2, 4] learning_rates: [0.02, 0.004] }"
    config = scheduled(make_config, manual, "num_steps: 6", log=1)
    config = replace(config, train=replace(config.need_train(), use_tensorboard=True))
    run_training(config, tmp_path / "run")
    rates = {"sparse": 0.05, "dense": 0.01, "part_0": 0.02}
    lines = [line for line in logged(tmp_path / "run") if line["kind"] == "train"]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for label, base in rates.items():
        expected = [base, base, base, 0.02, 0.02, 0.004]
        assert [line[f"learning_rate/{label}"] for line in lines] == expected
        scalars = events.Scalars(f"train/learning_rate/{label}")
        assert [scalar.value for scalar in scalars] == pytest.approx(expected, rel=1e-6)
        assert [scalar.step for scalar in scalars] == [1, 2, 3, 4, 5, 6]


def test_a_schedule_by_epoch_falls_at_the_end_of_an_epoch(make_config: MakeConfig, tmp_path: Path) -> None:
    run_training(scheduled(make_config, SCHEDULES["by_epoch"], "num_epochs: 3"), tmp_path / "run")
    lines = [line for line in logged(tmp_path / "run") if line["kind"] == "train"]
    found = {line["step"]: line["learning_rate/sparse"] for line in lines}
    assert found == {step: 0.05 * 0.5 ** ((step - 1) // 20) for step in range(5, 61, 5)}


def test_averages_are_what_is_evaluated_and_loaded(make_config: MakeConfig, tmp_path: Path) -> None:
    train = "num_steps: 12 ema { decay: 0.8 }"
    result = run_training(make_config(train=train), tmp_path / "run")
    stored = tensors_of(tmp_path / "run")
    averages = {name.removeprefix("ema/"): value for name, value in stored.items() if name.startswith("ema/")}
    model = load_trained(tmp_path / "run").model
    parameters = dict(model.named_parameters())
    assert len(averages) > 5
    for name, value in averages.items():
        assert torch.equal(parameters[name], value)
        assert not torch.equal(stored[f"dense/{name}"], value)
    assert measured(tmp_path / "run")["log_loss"] == pytest.approx(result.metrics["log_loss"], abs=1e-6)
    live = run_training(make_config(train=f"{train} }} export_config {{ use_dense_ema: false"), tmp_path / "live")
    for name in averages:
        assert torch.equal(dict(load_trained(tmp_path / "live").model.named_parameters())[name], stored[f"dense/{name}"])
    assert live.metrics["log_loss"] != result.metrics["log_loss"]
    assert measured(tmp_path / "live")["log_loss"] == pytest.approx(live.metrics["log_loss"], abs=1e-6)


def test_averages_are_those_of_all_checkpoints(make_config: MakeConfig, tmp_path: Path) -> None:
    run_training(make_config(train="num_steps: 4 ema { decay: 0.5 }", save=1), tmp_path / "run")
    steps = [read_tensors(store.step_path(tmp_path / "run", step) / "tensors") for step in range(1, 5)]
    for name in [name for name in steps[0] if name.startswith("ema/")]:
        dense = name.replace("ema/", "dense/")
        average = steps[0][name].double()
        for step in steps[1:]:
            average = (average + step[dense].double()) / 2
            torch.testing.assert_close(step[name].double(), average, atol=1e-6, rtol=1e-6)


def test_half_precision_learns_much_the_same(make_config: MakeConfig, tmp_path: Path) -> None:
    single = run_training(make_config(train="num_steps: 30", save=50), tmp_path / "single")
    for place, precision in enumerate(("'BF16'", "'FP16'", "'FP16' grad_scaler { init_scale: 512 }")):
        run = tmp_path / str(place)
        half = run_training(make_config(train=f"num_steps: 30 mixed_precision: {precision}", save=50), run)
        assert half.metrics["auc"] == pytest.approx(single.metrics["auc"], abs=0.03)
        assert half.loss != single.loss
        assert measured(run)["log_loss"] == pytest.approx(half.metrics["log_loss"], abs=1e-6)  # evaluated in single precision
        assert {torch.float16, torch.bfloat16}.isdisjoint(value.dtype for value in tensors_of(run).values())


def test_a_scale_that_is_too_large_at_first_finds_its_way(make_config: MakeConfig, tmp_path: Path) -> None:
    run_training(make_config(train="num_steps: 30 mixed_precision: 'FP16' grad_scaler { init_scale: 1e12 }", save=50), tmp_path / "run")
    stored = tensors_of(tmp_path / "run")
    assert 1.0 < stored["scaler/scale"].item() < 1e9
    assert 0 < stored["scaler/steps_since_growth"].item() < 30
    assert stored["dense_optim/head.output.weight/step"].item() == stored["scaler/steps_since_growth"].item()
    assert all(torch.isfinite(value.float()).all() for name, value in stored.items() if not name.startswith(("zch/", "rng/")))


def test_what_needs_the_model_or_other_parts_is_refused_before_training(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(dense=DENSE + "part_optimizers { regex_pattern: 'output.*' adam_optimizer {} }")
    with pytest.raises(ConfigError, match=r"'output\.\*' must fit a parameter's whole name; it fits a part of head\.output\.weight"):
        run_training(config, tmp_path / "run")
    config = make_config(train="} export_config { use_dense_ema: true")
    with pytest.raises(ConfigError, match=r"export_config: use_dense_ema needs averages; add ema \{\} to train_config"):
        run_training(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_only_under_its_own_schedule(make_config: MakeConfig, tmp_path: Path) -> None:
    run_training(make_config(train="num_steps: 2 ema { decay: 0.9 }"), tmp_path / "run")
    changed = make_config(train="num_steps: 4 ema { decay: 0.8 }")
    with pytest.raises(CheckpointError, match=r"train\.ema\.decay: was 0\.9, is 0\.8"):
        run_training(changed, tmp_path / "run", resume=True)
    assert math.isfinite(run_training(make_config(train="num_steps: 3 ema { decay: 0.9 }"), tmp_path / "run", resume=True).loss)


HASHED = FEATURES.replace("zch { zch_size: 40 eviction_interval: 2 lfu {} }", "hash_bucket_size: 40")


def test_steps_of_several_batches(make_config: MakeConfig, tmp_path: Path) -> None:
    """20 batches an epoch make 7 steps of up to 3; nothing stops or is saved within a step."""
    schedule = "exponential_decay_learning_rate { decay_size: 1 decay_factor: 0.9 }"
    train = "num_epochs: 2 gradient_accumulation_steps: 3 mixed_precision: 'FP16' grad_scaler { init_scale: 256 }"
    config = scheduled(make_config, schedule, train, features=HASHED, log=1)
    run_training(config, tmp_path / "whole")
    assert store.list_steps(tmp_path / "whole") == [9, 18, 26, 32, 40]
    rates = {line["step"]: line["learning_rate/sparse"] for line in logged(tmp_path / "whole") if line["kind"] == "train"}
    steps = [(step - 1) // 20 * 7 + (step - 1) % 20 // 3 for step in range(1, 41)]
    assert list(rates.values()) == pytest.approx([0.05 * 0.9**done for done in steps])
    stopped = run_training(config, tmp_path / "parts", stop=StopAfter(4))
    assert (stopped.stopped, stopped.step % 3) == (True, 0)
    assert run_training(config, tmp_path / "parts", resume=True, stop=StopAfter(7)).stopped
    run_training(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_rows_that_may_change_owner_cannot_wait(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps: rows of zch tables \(user_emb\) may change owner within a step"):
        run_training(make_config(train="gradient_accumulation_steps: 2"), tmp_path / "run")
