"""Schedules against loops that follow them one step at a time, and against torch's own where it has them."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.train.config.schedule_configs import (
    ConstantLrConfig,
    CosineAnnealingLrConfig,
    CosineAnnealingWarmRestartsLrConfig,
    ExponentialDecayLrConfig,
    LearningRate,
    ManualStepLrConfig,
)
from emberline.train.optim.schedules import learning_rate

STEPS = 60
sizes, rates = st.integers(1, 20), st.floats(0.0, 1.0)
warmups = st.integers(0, 20)


def followed(schedule: LearningRate, base: float, steps: int = STEPS) -> list[float]:
    return [learning_rate(schedule, base, step, 0) for step in range(steps)]


def warmed(size: int, first: float, base: float, after: list[float]) -> list[float]:
    """A straight line of `size` steps, and then `after`."""
    line = [first + (base - first) * step / size for step in range(size)]
    return [*line, *after][:STEPS]


@given(sizes, st.floats(0.01, 1.0), warmups, rates, rates)
def test_exponential_decay_multiplies_after_each_period(size: int, factor: float, warmup: int, first: float, least: float) -> None:
    schedule = ExponentialDecayLrConfig(decay_size=size, decay_factor=factor, warmup_size=warmup, warmup_learning_rate=first, min_learning_rate=least)
    rate, decayed = 0.5, []
    for step in range(1, STEPS + 1):
        decayed.append(max(rate, least))
        if step % size == 0:
            rate *= factor
    assert followed(schedule, 0.5) == pytest.approx(warmed(warmup, first, 0.5, decayed), rel=1e-12, abs=1e-300)


def test_without_a_staircase_the_rate_falls_a_little_each_step() -> None:
    schedule = ExponentialDecayLrConfig(decay_size=4, decay_factor=0.5, staircase=False, warmup_size=2, warmup_learning_rate=0.1)
    assert followed(schedule, 0.8, 7) == pytest.approx([0.1, 0.45, 0.8, 0.8 * 0.5**0.25, 0.8 * 0.5**0.5, 0.8 * 0.5**0.75, 0.4])


def test_a_manual_rate_begins_after_its_size() -> None:
    schedule = ManualStepLrConfig(schedule_sizes=(2, 5), learning_rates=(0.5, 0.25))
    assert followed(schedule, 1.0, 8) == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]
    warm = ManualStepLrConfig(schedule_sizes=(4, 6), learning_rates=(0.8, 0.1), warmup=True)
    assert followed(warm, 0.4, 9) == pytest.approx([0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.1, 0.1])
    at_once = ManualStepLrConfig(schedule_sizes=(0,), learning_rates=(0.5,))
    assert followed(at_once, 1.0, 3) == [1.0, 0.5, 0.5]


@given(warmups, rates)
def test_a_constant_rate_may_warm_up(warmup: int, first: float) -> None:
    schedule = ConstantLrConfig(warmup_size=warmup, warmup_learning_rate=first)
    assert followed(schedule, 0.5) == pytest.approx(warmed(warmup, first, 0.5, [0.5] * STEPS), rel=1e-12)
    by_epoch = ConstantLrConfig(warmup_size=warmup, warmup_learning_rate=first, by_epoch=True)
    assert [learning_rate(by_epoch, 0.5, 999, epoch) for epoch in range(STEPS)] == followed(schedule, 0.5)


@given(warmups, rates, st.lists(sizes, min_size=1, max_size=4), st.booleans())
def test_manual_rates_count_from_the_end_of_a_warm_up(warmup: int, first: float, gaps: list[int], line: bool) -> None:
    ends = [sum(gaps[: place + 1]) for place in range(len(gaps))]
    by_hand = [0.25 / (place + 1) for place in range(len(gaps))]
    schedule = ManualStepLrConfig(
        schedule_sizes=tuple(ends), learning_rates=tuple(by_hand), warmup=line, warmup_size=warmup, warmup_learning_rate=first
    )
    after = []
    for step in range(STEPS):
        rate = 0.5 + (by_hand[0] - 0.5) * step / ends[0] if line else 0.5
        for end, one in zip(ends, by_hand, strict=True):
            rate = one if step > end else rate
        after.append(rate)
    assert followed(schedule, 0.5) == pytest.approx(warmed(warmup, first, 0.5, after), rel=1e-12)


def of_torch(kind: str, steps: int = STEPS, **arguments: object) -> list[float]:
    """The rates of torch's scheduler of that name, from 0.5 on."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = getattr(torch.optim.lr_scheduler, kind)(optimizer, **arguments)
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step()
    return found


@given(sizes, rates, warmups, rates)
def test_a_cosine_ends_at_the_least_rate_and_stays(size: int, least: float, warmup: int, first: float) -> None:
    schedule = CosineAnnealingLrConfig(T_max=size, min_learning_rate=least, warmup_size=warmup, warmup_learning_rate=first)
    falling = [least + (0.5 - least) * (1 + math.cos(math.pi * step / size)) / 2 for step in range(size)] + [least] * STEPS
    assert followed(schedule, 0.5) == pytest.approx(warmed(warmup, first, 0.5, falling), rel=1e-12, abs=1e-12)
    assert falling[: size + 1] == pytest.approx(of_torch("CosineAnnealingLR", size + 1, T_max=size, eta_min=least), rel=1e-9, abs=1e-12)


@given(st.integers(1, 12), st.integers(1, 4), rates, warmups, rates)
def test_restarts_come_exactly_where_torch_has_them(first_size: int, factor: int, least: float, warmup: int, first: float) -> None:
    schedule = CosineAnnealingWarmRestartsLrConfig(
        T_0=first_size, T_mult=factor, min_learning_rate=least, warmup_size=warmup, warmup_learning_rate=first
    )
    cycles: list[float] = []
    size = first_size
    while len(cycles) < STEPS:
        cycles += [least + (0.5 - least) * (1 + math.cos(math.pi * step / size)) / 2 for step in range(size)]
        size *= factor
    assert followed(schedule, 0.5) == pytest.approx(warmed(warmup, first, 0.5, cycles), rel=1e-12, abs=1e-12)
    torchs = of_torch("CosineAnnealingWarmRestarts", T_0=first_size, T_mult=factor, eta_min=least)
    assert cycles[:STEPS] == pytest.approx(torchs, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("factor", [2, 3, 10])
def test_the_first_step_of_a_late_cycle_is_at_the_base(factor: int) -> None:
    schedule = CosineAnnealingWarmRestartsLrConfig(T_0=7, T_mult=factor)
    start = sum(7 * factor**cycle for cycle in range(8))
    assert learning_rate(schedule, 0.3, start, 0) == 0.3
    assert learning_rate(schedule, 0.3, start - 1, 0) < 1e-6


SCHEDULES: list[LearningRate] = [
    ConstantLrConfig(),
    ConstantLrConfig(warmup_size=3, warmup_learning_rate=0.1),
    ExponentialDecayLrConfig(decay_size=2, warmup_size=3, warmup_learning_rate=0.1, min_learning_rate=0.05),
    ManualStepLrConfig(schedule_sizes=(1,), learning_rates=(0.7,), warmup=True),
    ManualStepLrConfig(schedule_sizes=(1,), learning_rates=(0.7,), warmup_size=2, warmup_learning_rate=0.1),
    CosineAnnealingLrConfig(T_max=3, min_learning_rate=0.1, warmup_size=2, warmup_learning_rate=0.1),
    CosineAnnealingWarmRestartsLrConfig(T_0=2, min_learning_rate=0.1),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rate_of_0_stays_0(schedule: LearningRate) -> None:
    assert followed(schedule, 0.0) == [0.0] * STEPS


def test_epochs_count_where_the_schedule_says_so() -> None:
    by_epoch = ExponentialDecayLrConfig(decay_size=1, decay_factor=0.5, by_epoch=True)
    assert [learning_rate(by_epoch, 1.0, 999, epoch) for epoch in range(4)] == [1.0, 0.5, 0.25, 0.125]
    by_hand = ManualStepLrConfig(schedule_sizes=(1,), learning_rates=(0.5,), by_epoch=True)
    assert [learning_rate(by_hand, 1.0, 999, epoch) for epoch in range(3)] == [1.0, 1.0, 0.5]
    cosine = CosineAnnealingLrConfig(T_max=2, by_epoch=True)
    assert [learning_rate(cosine, 1.0, 999, epoch) for epoch in range(4)] == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_rates_stay_numbers_however_long_a_run_is() -> None:
    steps = 10**12
    for schedule in SCHEDULES:
        assert 0.0 <= learning_rate(schedule, 0.5, steps, 0) <= 0.7
    assert learning_rate(ExponentialDecayLrConfig(decay_size=1, decay_factor=0.5), 0.5, steps, 0) == 0.0
    assert learning_rate(ExponentialDecayLrConfig(decay_size=1, decay_factor=0.5, staircase=False), 0.5, steps, 0) == 0.0
