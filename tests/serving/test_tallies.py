"""Histograms that many threads add to."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from emberline.serving.tallies import Tally

BOUNDS = (1.0, 2.0, 4.0)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_values_are_counted_by_the_first_bound_that_is_not_below_them(count: int) -> None:
    tally, values = Tally(BOUNDS), [number % 11 / 2 for number in range(count)]
    for value in values:
        tally.add(value)
    right = [sum(low < value <= high for value in values) for low, high in ((-1.0, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, 9.0))]
    for _ in range(2):  # reading changes nothing
        assert tally.read() == (right, sum(values))


def test_no_value_is_lost_where_threads_add_and_read_together() -> None:
    tally, each, threads = Tally(BOUNDS), 5000, 4

    def add(number: int) -> None:
        for place in range(each):
            tally.add(float(number))
            if place % 100 == 0:
                counts, total = tally.read()
                assert 0 < sum(counts) <= threads * each
                assert 0 <= total <= each * sum(range(threads))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(add, range(threads)))
    assert tally.read() == ([2 * each, each, each, 0], each * 6.0)
