from itertools import pairwise

import numpy as np
import pytest

from emberline.serving.loadtest.arrivals import arrivals


@pytest.mark.parametrize(("rate", "duration_s", "count"), [(10, 2.0, 20), (3, 1.0, 3), (0.5, 1.0, 1), (100, 0.001, 1)])
def test_constant_ones_come_at_equal_distances(rate: float, duration_s: float, count: int) -> None:
    found = list(arrivals("constant", rate, duration_s, np.random.default_rng(0)))
    assert found == [number / rate for number in range(count)]


def test_poisson_ones_are_as_many_and_as_far_apart_as_they_should() -> None:
    found = list(arrivals("poisson", 1000, 20.0, np.random.default_rng(1)))
    gaps = np.array([later - earlier for earlier, later in pairwise([0.0, *found])])
    assert abs(len(found) - 20_000) < 5 * 20_000**0.5
    assert gaps.min() >= 0
    assert found[-1] < 20.0
    assert gaps.std() == pytest.approx(1e-3, rel=0.05)  # as large as their mean: nothing remembers
    assert found == list(arrivals("poisson", 1000, 20.0, np.random.default_rng(1)))
