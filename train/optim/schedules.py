"""Learning rates as functions of how far a run is, so that a run that goes on has the rates of one that never stopped."""

import bisect
import math

from emberline.train.config.schedule_configs import (
    ConstantLrConfig,
    CosineAnnealingLrConfig,
    CosineAnnealingWarmRestartsLrConfig,
    ExponentialDecayLrConfig,
    LearningRate,
    ManualStepLrConfig,
)


def learning_rate(schedule: LearningRate, base: float, steps: int, epochs: int) -> float:
    """The rate of the next optimiser step.

    Args:
        schedule: one that the config's checks have passed.
        base: the optimiser's own rate; 0 stays 0 under every schedule.
        steps: optimiser steps done.
        epochs: passes over the data done, which schedules by epoch count instead.
    """
    if base == 0.0:
        return base
    count = epochs if schedule.by_epoch else steps
    if count < schedule.warmup_size:
        return _between(schedule.warmup_learning_rate, base, count / schedule.warmup_size)
    count -= schedule.warmup_size
    match schedule:
        case ConstantLrConfig():
            return base
        case ManualStepLrConfig():
            return _manual(schedule, base, count)
        case ExponentialDecayLrConfig():
            periods = count // schedule.decay_size if schedule.staircase else count / schedule.decay_size
            return max(base * schedule.decay_factor**periods, schedule.min_learning_rate)
        case CosineAnnealingLrConfig():
            return _cosine(schedule.min_learning_rate, base, min(count, schedule.T_max) / schedule.T_max)
        case CosineAnnealingWarmRestartsLrConfig():
            return _cosine(schedule.min_learning_rate, base, _share_of_cycle(schedule, count))


def _manual(schedule: ManualStepLrConfig, base: float, count: int) -> float:
    """The rate of the last size that lies below `count`; before the first, the base, or what lies on the way from it to the first rate."""
    place = bisect.bisect_left(schedule.schedule_sizes, count)
    if place:
        return schedule.learning_rates[place - 1]
    return _between(base, schedule.learning_rates[0], count / schedule.schedule_sizes[0]) if schedule.warmup else base


def _share_of_cycle(schedule: CosineAnnealingWarmRestartsLrConfig, count: int) -> float:
    """How much of the present cycle is over, in [0, 1); counted in integers, as logarithms miss the first step of a cycle."""
    if schedule.T_mult == 1:
        return count % schedule.T_0 / schedule.T_0
    length = schedule.T_0
    while count >= length:
        count -= length
        length *= schedule.T_mult
    return count / length


def _between(first: float, last: float, share: float) -> float:
    return first + (last - first) * share


def _cosine(least: float, base: float, share: float) -> float:
    return least + (base - least) * 0.5 * (1.0 + math.cos(math.pi * share))
