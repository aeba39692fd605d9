"""What is wrong with optimisers, schedules and the settings of a training step, looked at alone."""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

from emberline.train.config.optimizer_configs import (
    AdadeltaConfig,
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    DenseOptimizer,
    DenseOptimizerConfig,
    FusedAdadeltaConfig,
    FusedAdagradConfig,
    FusedAdamConfig,
    FusedLambConfig,
    FusedLarsSgdConfig,
    FusedPartialRowWiseAdamConfig,
    FusedPartialRowWiseLambConfig,
    FusedRmsPropConfig,
    FusedRowWiseAdagradConfig,
    FusedSgdConfig,
    PartOptimizerConfig,
    RmsPropConfig,
    SgdConfig,
    SparseOptimizer,
    SparseOptimizerConfig,
    WeightDecayMode,
)
from emberline.train.config.ranges import Check, above_zero, at_least_one, zero_or_more
from emberline.train.config.schedule_configs import (
    ConstantLrConfig,
    CosineAnnealingLrConfig,
    CosineAnnealingWarmRestartsLrConfig,
    ExponentialDecayLrConfig,
    FallingLr,
    LearningRate,
    ManualStepLrConfig,
    WarmedLr,
)
from emberline.train.config.train_config import ClippingType, DenseEmaConfig, GradClippingConfig, GradScalerConfig

_AT_MOST_ONE = ("momentum", "beta1", "beta2", "rho", "alpha")
_SIZES = ("decay_size", "T_max", "T_0", "T_mult")
_RATES = ("warmup_learning_rate", "min_learning_rate")


def optimizer_problems(optimizer: SparseOptimizer | DenseOptimizer) -> list[str]:
    """All of an optimiser's numbers are finite and not negative; decay rates of averages are at most 1."""
    found: list[str] = []
    for field in fields(optimizer):
        value = getattr(optimizer, field.name)
        if isinstance(value, bool | WeightDecayMode):
            continue
        if problems := zero_or_more(field.name)(optimizer):
            found += problems
        elif field.name in _AT_MOST_ONE and value > 1.0:
            found.append(f"{field.name} must be at most 1, found {value}")
        elif field.name == "max_gradient" and value == 0.0:
            found.append("max_gradient must be above 0")
    if isinstance(optimizer, AdamConfig | FusedAdamConfig) and max(optimizer.beta1, optimizer.beta2) == 1.0:
        found.append("beta1 and beta2 must be below 1")
    if isinstance(optimizer, SgdConfig) and optimizer.nesterov and (optimizer.momentum <= 0.0 or optimizer.dampening != 0.0):
        found.append("nesterov needs a momentum above 0 and no dampening")
    if isinstance(optimizer, FusedRowWiseAdagradConfig):
        decay, mode = optimizer.weight_decay, optimizer.weight_decay_mode
        if (decay != 0.0) != (mode is not WeightDecayMode.NONE):
            found.append(f"weight_decay {decay} does nothing with weight_decay_mode {mode}; set both, or none")
    if isinstance(optimizer, FusedAdadeltaConfig | FusedRmsPropConfig) and optimizer.eps == 0.0:
        found.append("eps must be above 0")
    return found


def schedule_problems(schedule: WarmedLr) -> list[str]:
    """Sizes are at least 1; rates are finite and not negative; the factor does not let the rate grow."""
    found = at_least_one(*(name for name in _SIZES if hasattr(schedule, name)))(schedule)
    found += zero_or_more(*(name for name in _RATES if hasattr(schedule, name)))(schedule)
    if isinstance(schedule, ExponentialDecayLrConfig) and not 0.0 < schedule.decay_factor <= 1.0:
        found.append(f"decay_factor must be above 0 and at most 1, found {schedule.decay_factor}")
    return found


def manual_problems(schedule: ManualStepLrConfig) -> list[str]:
    """Each size has a rate, and comes after the one before."""
    sizes, rates = schedule.schedule_sizes, schedule.learning_rates
    found = schedule_problems(schedule)
    if len(sizes) != len(rates):
        found.append(f"schedule_sizes has {len(sizes)} values, and learning_rates has {len(rates)}; give a rate for each size")
    if any(after <= before for before, after in pairwise(sizes)):
        found.append(f"schedule_sizes must ascend, found {', '.join(map(str, sizes))}")
    if schedule.warmup and sizes[0] < 1:
        found.append("schedule_sizes must begin with 1 or more where there is a warmup, found 0")
    found += [f"learning_rates must be numbers of 0 or more, found {rate}" for rate in rates if not 0.0 <= rate < math.inf]
    return found


def rate_problems(config: SparseOptimizerConfig | DenseOptimizerConfig | PartOptimizerConfig) -> list[str]:
    """A schedule's least rate does not lie above the optimiser's; a pattern is one."""
    found = _floor_problems(config.learning_rate, config.optimizer.lr)
    if isinstance(config, PartOptimizerConfig):
        found += _pattern_problems(config.regex_pattern)
        return [f"{config.regex_pattern!r}: {text}" for text in found]
    if isinstance(config, DenseOptimizerConfig):
        for part in config.part_optimizers:
            problems = _floor_problems(config.learning_rate, part.optimizer.lr) if part.learning_rate is None else []
            found += [f"part_optimizers: {part.regex_pattern!r}: {text}" for text in problems]
    return found


def _floor_problems(schedule: LearningRate | None, lr: float) -> list[str]:
    least = schedule.min_learning_rate if isinstance(schedule, FallingLr) else 0.0
    return [f"min_learning_rate {least} lies above lr {lr}, which it should fall from"] if least > lr > 0.0 else []


def _pattern_problems(pattern: str) -> list[str]:
    if not pattern:
        return ["regex_pattern must not be empty"]
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return [f"regex_pattern is no regular expression: {error}"]
    return []


def scaler_problems(config: GradScalerConfig) -> list[str]:
    """The scale is a number above 0, grows by its growth and shrinks by its backoff."""
    found = above_zero("init_scale")(config)
    if not 1.0 < config.growth_factor < math.inf:
        found.append(f"growth_factor must be a number above 1, found {config.growth_factor}")
    if not 0.0 < config.backoff_factor < 1.0:
        found.append(f"backoff_factor must be above 0 and below 1, found {config.backoff_factor}")
    return found + at_least_one("growth_interval")(config)


def clipping_problems(config: GradClippingConfig) -> list[str]:
    """Bounds are above 0."""
    found = above_zero("max_gradient")(config)
    if not config.norm_type > 0.0:
        found.append(f"norm_type must be above 0, found {config.norm_type}")
    if config.enable_global_grad_clip and config.clipping_type is not ClippingType.NORM:
        found.append(f"enable_global_grad_clip is for clipping_type 'norm', found {config.clipping_type.value!r}")
    return found


def ema_problems(config: DenseEmaConfig) -> list[str]:
    """Something of each step must come into the average."""
    return [] if 0.0 <= config.decay < 1.0 else [f"decay must be 0 or more and below 1, found {config.decay}"]


_OPTIMIZERS: tuple[type[Any], ...] = (FusedSgdConfig, FusedAdagradConfig, FusedRowWiseAdagradConfig, FusedLarsSgdConfig)
_OPTIMIZERS += (FusedAdamConfig, FusedPartialRowWiseAdamConfig, FusedLambConfig, FusedPartialRowWiseLambConfig)
_OPTIMIZERS += (FusedAdadeltaConfig, FusedRmsPropConfig)
_OPTIMIZERS += (SgdConfig, AdagradConfig, AdamConfig, AdamWConfig, AdadeltaConfig, RmsPropConfig)
_SCHEDULES: tuple[type[Any], ...] = (ConstantLrConfig, ExponentialDecayLrConfig, CosineAnnealingLrConfig, CosineAnnealingWarmRestartsLrConfig)
CHECKS: Mapping[type[Any], Check] = {
    **dict.fromkeys(_OPTIMIZERS, optimizer_problems),
    **dict.fromkeys(_SCHEDULES, schedule_problems),
    **dict.fromkeys((SparseOptimizerConfig, DenseOptimizerConfig, PartOptimizerConfig), rate_problems),
    ManualStepLrConfig: manual_problems,
    GradScalerConfig: scaler_problems,
    GradClippingConfig: clipping_problems,
    DenseEmaConfig: ema_problems,
}
"""What to ask of each of these dataclasses: one sentence for each problem."""
