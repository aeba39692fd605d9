import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.serving.loadtest.histogram import Histogram


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200), st.floats(0.001, 1.0))
def test_quantiles_are_those_of_the_sorted_times_within_one_percent(times: list[float], share: float) -> None:
    histogram = Histogram()
    for time_s in times:
        histogram.add(time_s)
    want = sorted(times)[max(1, math.ceil(share * len(times) - 1e-9)) - 1]
    assert histogram.quantile(share) == pytest.approx(want, rel=0.0101)
    assert (histogram.count, histogram.largest_s) == (len(times), max(times))
    assert histogram.total_s == pytest.approx(sum(times))
    assert sum(count for _, _, count in histogram.buckets()) == len(times)


def test_the_longest_is_exact_and_those_that_never_ended_are_longer() -> None:
    histogram = Histogram()
    assert math.isnan(histogram.quantile(0.5))
    assert histogram.quantile(0.5, more=1) == math.inf
    for time_s in np.linspace(0.01, 0.99, 99).tolist():
        histogram.add(time_s)
    assert histogram.quantile(1.0) == 0.99
    assert histogram.quantile(0.99, more=1) == 0.99
    assert histogram.quantile(0.99, more=2) == math.inf
    assert histogram.quantile(0.5, more=99) == 0.99


def test_nothing_is_too_short() -> None:
    histogram = Histogram()
    histogram.add(0.0)
    histogram.add(-1.0)
    assert (histogram.count, histogram.quantile(1.0)) == (2, 1e-6)
