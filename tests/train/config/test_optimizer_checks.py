"""What a config may say of optimisers, schedules and steps: defaults, and every mistake by the field's name."""

import math

import pytest

from emberline.errors import ConfigError
from emberline.train.config import (
    AdamConfig,
    AdamWConfig,
    ConstantLrConfig,
    CosineAnnealingLrConfig,
    CosineAnnealingWarmRestartsLrConfig,
    DenseEmaConfig,
    ExponentialDecayLrConfig,
    FusedAdadeltaConfig,
    FusedAdamConfig,
    FusedLambConfig,
    FusedLarsSgdConfig,
    FusedPartialRowWiseAdamConfig,
    FusedPartialRowWiseLambConfig,
    FusedRmsPropConfig,
    FusedRowWiseAdagradConfig,
    FusedSgdConfig,
    GradClippingConfig,
    GradScalerConfig,
    ManualStepLrConfig,
    PartOptimizerConfig,
    RmsPropConfig,
    parse_config,
    parse_train_config,
)
from emberline.train.config.optimizer_configs import WeightDecayMode
from emberline.train.config.train_config import ClippingType, MixedPrecision

SPARSE = "sparse_optimizer { sgd_optimizer {} } "
DENSE = "dense_optimizer { sgd_optimizer {} } "


def schedule_of(text: str) -> object:
    return parse_train_config(f"sparse_optimizer {{ sgd_optimizer {{}} {text} }} {DENSE}").sparse_optimizer.learning_rate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ConstantLrConfig()),
        ("constant_learning_rate {}", ConstantLrConfig()),
        (
            "constant_learning_rate { warmup_size: 7 warmup_learning_rate: 1e-4 by_epoch: true }",
            ConstantLrConfig(warmup_size=7, warmup_learning_rate=1e-4, by_epoch=True),
        ),
        (
            "exponential_decay_learning_rate { decay_size: 5 }",
            ExponentialDecayLrConfig(
                decay_size=5, decay_factor=0.95, staircase=True, warmup_learning_rate=0, warmup_size=0, min_learning_rate=0, by_epoch=False
            ),
        ),
        (
            "exponential_decay_learning_rate { decay_size: 5 decay_factor: 0.5 staircase: false warmup_learning_rate: 1e-4 warmup_size: 7 "
            "min_learning_rate: 1e-5 by_epoch: true }",
            ExponentialDecayLrConfig(
                decay_size=5, decay_factor=0.5, staircase=False, warmup_learning_rate=1e-4, warmup_size=7, min_learning_rate=1e-5, by_epoch=True
            ),
        ),
        (
            "manual_step_learning_rate { schedule_sizes: [1, 2] learning_rates: [0.5, 0.25] warmup: true }",
            ManualStepLrConfig(schedule_sizes=(1, 2), learning_rates=(0.5, 0.25), warmup=True),
        ),
        (
            "manual_step_learning_rate { schedule_sizes: 1 learning_rates: 0.5 warmup_size: 7 warmup_learning_rate: 1e-4 }",
            ManualStepLrConfig(schedule_sizes=(1,), learning_rates=(0.5,), warmup_size=7, warmup_learning_rate=1e-4),
        ),
        ("cosine_annealing_learning_rate { T_max: 9 }", CosineAnnealingLrConfig(T_max=9)),
        ("cosine_annealing_warm_restarts_learning_rate { T_0: 9 }", CosineAnnealingWarmRestartsLrConfig(T_0=9, T_mult=1)),
    ],
)
def test_schedules_and_their_defaults(text: str, expected: object) -> None:
    assert schedule_of(text) == expected


def test_parts_have_a_pattern_an_optimiser_and_perhaps_a_schedule() -> None:
    parts = """
    part_optimizers { regex_pattern: ".*bias" adamw_optimizer { weight_decay: 0.1 } }
    part_optimizers { regex_pattern: "head.*" rmsprop_optimizer {} cosine_annealing_learning_rate { T_max: 3 } }
    """
    dense = parse_train_config(f"{SPARSE} dense_optimizer {{ adam_optimizer {{}} {parts} }}").dense_optimizer
    assert type(dense.optimizer) is AdamConfig
    assert dense.part_optimizers == (
        PartOptimizerConfig(regex_pattern=".*bias", optimizer=AdamWConfig(weight_decay=0.1)),
        PartOptimizerConfig(regex_pattern="head.*", optimizer=RmsPropConfig(), learning_rate=CosineAnnealingLrConfig(T_max=3)),
    )


def test_a_step_and_its_defaults() -> None:
    plain = parse_train_config(SPARSE + DENSE)
    assert (plain.mixed_precision, plain.grad_scaler, plain.grad_clipping, plain.ema) == (MixedPrecision.NONE, None, None, None)
    steps = "mixed_precision: 'FP16' grad_scaler {} grad_clipping { clipping_type: 'norm' norm_type: inf } ema {}"
    full = parse_train_config(SPARSE + DENSE + steps)
    assert full.mixed_precision is MixedPrecision.FP16
    assert full.grad_scaler == GradScalerConfig(init_scale=65536, growth_factor=2, backoff_factor=0.5, growth_interval=2000)
    assert full.grad_clipping == GradClippingConfig(clipping_type=ClippingType.NORM, max_gradient=1.0, norm_type=math.inf)
    assert full.ema == DenseEmaConfig(decay=0.999)
    clipped = parse_train_config("sparse_optimizer { sgd_optimizer { gradient_clipping: true } } " + DENSE).sparse_optimizer.optimizer
    assert clipped == FusedSgdConfig(lr=0.002, gradient_clipping=True, max_gradient=1.0)


def test_tables_may_have_any_of_ten_optimisers() -> None:
    texts = {
        "rowwise_adagrad_optimizer { weight_decay: 0.5 weight_decay_mode: DECOUPLE initial_accumulator_value: 2 }": FusedRowWiseAdagradConfig(
            weight_decay=0.5, weight_decay_mode=WeightDecayMode.DECOUPLE, initial_accumulator_value=2
        ),
        "adam_optimizer { beta1: 0.5 }": FusedAdamConfig(lr=0.002, beta1=0.5, beta2=0.999, weight_decay=0),
        "partial_rowwise_adam_optimizer { lr: 1 }": FusedPartialRowWiseAdamConfig(lr=1),
        "lamb_optimizer { beta2: 0.5 gradient_clipping: true max_gradient: 3 }": FusedLambConfig(
            beta1=0.9, beta2=0.5, gradient_clipping=True, max_gradient=3
        ),
        "partial_rowwise_lamb_optimizer { weight_decay: 1 }": FusedPartialRowWiseLambConfig(weight_decay=1),
        "lars_sgd_optimizer {}": FusedLarsSgdConfig(lr=0.002, momentum=0.9, weight_decay=0),
        "adadelta_optimizer {}": FusedAdadeltaConfig(lr=0.002, rho=0.9, eps=1e-6, weight_decay=0),
        "rmsprop_optimizer {}": FusedRmsPropConfig(lr=0.002, alpha=0.99, eps=1e-8, weight_decay=0),
    }
    for text, expected in texts.items():
        found = parse_train_config(f"sparse_optimizer {{ {text} }} {DENSE}").sparse_optimizer.optimizer
        assert type(found) is type(expected)
        assert found == expected


def test_averages_are_used_where_there_are_some_and_nobody_says_no() -> None:
    train = "train_config { %s %s %s }" % (SPARSE, DENSE, "%s")  # noqa: UP031
    assert not parse_config(train % "").uses_dense_ema
    assert parse_config(train % "ema {}").uses_dense_ema
    assert parse_config(train % "ema {}" + "export_config { use_dense_ema: true }").uses_dense_ema
    assert not parse_config(train % "ema {}" + "export_config { use_dense_ema: false }").uses_dense_ema
    assert not parse_config("").uses_dense_ema


CONSTANT, DECAY, MANUAL, COSINE, RESTARTS = (
    f"{name}_learning_rate" for name in ("constant", "exponential_decay", "manual_step", "cosine_annealing", "cosine_annealing_warm_restarts")
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{CONSTANT} {{ warmup_size: 3 warmup_learning_rate: nan }}", "warmup_learning_rate must be a number of 0 or more, found nan"),
        (f"{MANUAL} {{ schedule_sizes: 3 learning_rates: 1 warmup_learning_rate: -1 }}", "warmup_learning_rate must be a number of 0 or more"),
        (f"{DECAY} {{}}", "decay_size is missing"),
        (f"{DECAY} {{ decay_size: 0 }}", "decay_size must be at least 1, found 0"),
        (f"{DECAY} {{ decay_size: 1 decay_factor: 0 }}", "decay_factor must be above 0 and at most 1, found 0.0"),
        (f"{DECAY} {{ decay_size: 1 decay_factor: 1.5 }}", "decay_factor must be above 0 and at most 1, found 1.5"),
        (f"{DECAY} {{ decay_size: 1 decay_factor: nan }}", "decay_factor must be above 0 and at most 1, found nan"),
        (f"{DECAY} {{ decay_size: 1 warmup_learning_rate: -1 }}", "warmup_learning_rate must be a number of 0 or more, found -1.0"),
        (f"{DECAY} {{ decay_size: 1 min_learning_rate: inf }}", "min_learning_rate must be a number of 0 or more, found inf"),
        (f"{DECAY} {{ decay_size: 1 min_learning_rate: 0.5 }}", "min_learning_rate 0.5 lies above lr 0.002, which it should fall from"),
        (f"{MANUAL} {{}}", "schedule_sizes is missing"),
        (f"{MANUAL} {{ schedule_sizes: 3 }}", "learning_rates is missing"),
        (
            f"{MANUAL} {{ schedule_sizes: [3, 4] learning_rates: 1 }}",
            "schedule_sizes has 2 values, and learning_rates has 1; give a rate for each size",
        ),
        (f"{MANUAL} {{ schedule_sizes: [3, 3] learning_rates: [1, 1] }}", "schedule_sizes must ascend, found 3, 3"),
        (f"{MANUAL} {{ schedule_sizes: 0 learning_rates: 1 warmup: true }}", "schedule_sizes must begin with 1 or more where there is a warmup"),
        (f"{MANUAL} {{ schedule_sizes: 3 learning_rates: -0.5 }}", "learning_rates must be numbers of 0 or more, found -0.5"),
        (f"{COSINE} {{}}", "T_max is missing"),
        (f"{COSINE} {{ T_max: 0 }}", "T_max must be at least 1, found 0"),
        (f"{COSINE} {{ T_max: 3 min_learning_rate: nan }}", "min_learning_rate must be a number of 0 or more, found nan"),
        (f"{RESTARTS} {{ T_mult: 2 }}", "T_0 is missing"),
        (f"{RESTARTS} {{ T_0: 1 T_mult: 0 }}", "T_mult must be at least 1, found 0"),
    ],
)
def test_schedules_that_make_no_sense(text: str, message: str) -> None:
    places = {
        "sparse_optimizer": f"sparse_optimizer {{ sgd_optimizer {{}} {text} }} {DENSE}",
        "dense_optimizer": f"{SPARSE} dense_optimizer {{ sgd_optimizer {{}} {text} }}",
        "part_optimizers": f"{SPARSE} dense_optimizer {{ sgd_optimizer {{}} part_optimizers {{ regex_pattern: 'a' sgd_optimizer {{}} {text} }} }}",
    }
    for place, config in places.items():
        with pytest.raises(ConfigError) as caught:
            parse_train_config(config)
        assert any(message in problem and place in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixed_precision: 'FP8'", "mixed_precision: must be BF16 or FP16, found 'FP8'"),
        ("mixed_precision: 'bf16'", "mixed_precision: must be BF16 or FP16, found 'bf16'"),
        ("grad_scaler { init_scale: 0 }", "grad_scaler: init_scale must be a number above 0, found 0.0"),
        ("grad_scaler { growth_factor: 1 }", "grad_scaler: growth_factor must be a number above 1, found 1.0"),
        ("grad_scaler { backoff_factor: 1 }", "grad_scaler: backoff_factor must be above 0 and below 1, found 1.0"),
        ("grad_scaler { growth_interval: 0 }", "grad_scaler: growth_interval must be at least 1, found 0"),
        ("grad_clipping {}", "grad_clipping: clipping_type is missing"),
        ("grad_clipping { clipping_type: 'l2' }", "grad_clipping: clipping_type: must be none or norm or value, found 'l2'"),
        ("grad_clipping { clipping_type: 'norm' max_gradient: 0 }", "grad_clipping: max_gradient must be a number above 0, found 0.0"),
        ("grad_clipping { clipping_type: 'norm' norm_type: nan }", "grad_clipping: norm_type must be above 0, found nan"),
        (
            "grad_clipping { clipping_type: 'value' enable_global_grad_clip: true }",
            "grad_clipping: enable_global_grad_clip is for clipping_type 'norm', found 'value'",
        ),
        ("ema { decay: 1 }", "ema: decay must be 0 or more and below 1, found 1.0"),
        ("ema { decay: nan }", "ema: decay must be 0 or more and below 1, found nan"),
    ],
)
def test_steps_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_train_config(SPARSE + DENSE + text)
    assert f"train_config: {message}" in caught.value.problems


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("sgd_optimizer {}", "part_optimizers: regex_pattern is missing"),
        ("regex_pattern: '' sgd_optimizer {}", "part_optimizers: '': regex_pattern must not be empty"),
        ("regex_pattern: 'a(' sgd_optimizer {}", "part_optimizers: 'a(': regex_pattern is no regular expression: missing )"),
        ("regex_pattern: 'a'", "part_optimizers: optimizer is missing; set one of sgd_optimizer, adagrad_optimizer, adam_optimizer"),
        ("regex_pattern: 'a' adamw_optimizer { beta2: 1 }", "part_optimizers: adamw_optimizer: beta1 and beta2 must be below 1"),
        ("regex_pattern: 'a' sgd_optimizer { lr: 0.001 }", "part_optimizers: 'a': min_learning_rate 0.0015 lies above lr 0.001"),
    ],
)
def test_parts_that_make_no_sense(part: str, message: str) -> None:
    schedule = "cosine_annealing_learning_rate { T_max: 3 min_learning_rate: 0.0015 }"
    with pytest.raises(ConfigError) as caught:
        parse_train_config(f"{SPARSE} dense_optimizer {{ sgd_optimizer {{}} {schedule} part_optimizers {{ {part} }} }}")
    (problem,) = caught.value.problems
    assert problem.startswith(f"train_config: dense_optimizer: {message}")


def test_a_clip_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sgd_optimizer: max_gradient must be above 0"):
        parse_train_config("sparse_optimizer { sgd_optimizer { gradient_clipping: true max_gradient: 0 } } " + DENSE)


def test_one_config_tells_all_its_mistakes() -> None:
    text = f"sparse_optimizer {{ sgd_optimizer {{ lr: -1 }} {COSINE} {{ T_max: 0 }} }} {DENSE} ema {{ decay: 2 }} grad_clipping {{}} num_steps: 0"
    with pytest.raises(ConfigError) as caught:
        parse_train_config(text)
    assert len(caught.value.problems) == 5
