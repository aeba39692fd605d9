"""Learning-rate schedules, by the names of `optimizer.proto`. `emberline.train.optim.schedules` has their formulas.

Sizes count optimiser steps, or passes over the data where `by_epoch` is set. A rate of 0 stays 0 under every schedule.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WarmedLr:
    """What all schedules have: the rate may first go up to the optimiser's.

    Args:
        warmup_learning_rate: what the rate begins with where there is a warm-up.
        warmup_size: how long the rate takes to get to the optimiser's, in a straight line.
        by_epoch: whether sizes count epochs.
    """

    warmup_learning_rate: float = 0.0
    warmup_size: int = 0
    by_epoch: bool = False


@dataclass(frozen=True, kw_only=True)
class FallingLr(WarmedLr):
    """What schedules have whose rate falls from the optimiser's.

    Args:
        min_learning_rate: the least rate after the warm-up.
    """

    min_learning_rate: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ConstantLrConfig(WarmedLr):
    """The learning rate stays what the optimiser says."""


@dataclass(frozen=True, kw_only=True)
class ExponentialDecayLrConfig(FallingLr):
    """The rate is multiplied by `decay_factor` every `decay_size`.

    Args:
        decay_size: how long each factor lasts.
        decay_factor: in (0, 1].
        staircase: whether the rate falls in steps, or a little each time.
    """

    decay_size: int
    decay_factor: float = 0.95
    staircase: bool = True


@dataclass(frozen=True, kw_only=True)
class ManualStepLrConfig(WarmedLr):
    """Rates by hand.

    Args:
        schedule_sizes: ascending, counted from the end of the warm-up; after so many steps the rate of the same place begins.
        learning_rates: one for each.
        warmup: whether the rate goes from the optimiser's to the first of them in a straight line.
    """

    schedule_sizes: tuple[int, ...]
    learning_rates: tuple[float, ...]
    warmup: bool = False


@dataclass(frozen=True, kw_only=True)
class CosineAnnealingLrConfig(FallingLr):
    """Half a cosine from the optimiser's rate to the least one, which then stays.

    Args:
        T_max: how long the way takes, after the warm-up.
    """

    T_max: int


@dataclass(frozen=True, kw_only=True)
class CosineAnnealingWarmRestartsLrConfig(FallingLr):
    """Half cosines one after the other (Loshchilov and Hutter, "SGDR", ICLR 2017).

    Args:
        T_0: how long the first takes, after the warm-up.
        T_mult: how many times as long as the one before each further one takes.
    """

    T_0: int
    T_mult: int = 1


LearningRate = ConstantLrConfig | ExponentialDecayLrConfig | ManualStepLrConfig | CosineAnnealingLrConfig | CosineAnnealingWarmRestartsLrConfig
