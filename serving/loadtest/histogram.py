"""Times in buckets whose bounds grow by a constant factor: any quantile within 1 %, however many there were."""

import math
from collections import Counter
from collections.abc import Iterator

_GROWTH = 1.02
_UNIT_S = 1e-6
"""Shorter times are told as this long."""
_LOG_GROWTH = math.log(_GROWTH)


class Histogram:
    """How many times there were of which length; memory does not depend on their number.

    Attributes:
        count: of times.
        total_s: their sum.
        largest_s: the longest, exactly; 0 where there is none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.largest_s = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, time_s: float) -> None:
        """Count one."""
        time_s = max(time_s, _UNIT_S)
        self._buckets[int(math.log(time_s / _UNIT_S) / _LOG_GROWTH)] += 1
        self.count += 1
        self.total_s += time_s
        self.largest_s = max(self.largest_s, time_s)

    def quantile(self, share: float, *, more: int = 0) -> float:
        """The time that a share of all were at most as long as, in seconds, within 1 %; the longest one exactly.

        Args:
            share: above 0 and up to 1.
            more: so many are to be counted beside these, as longer than any.

        Returns:
            NaN where there is none, infinity where it is one of `more`.
        """
        if self.count + more == 0:
            return math.nan
        rank = max(1, math.ceil(share * (self.count + more) - 1e-9))
        if rank > self.count:
            return math.inf
        if rank == self.count:
            return self.largest_s
        for low_s, high_s, below in self._rising():
            if below >= rank:
                return min(math.sqrt(low_s * high_s), self.largest_s)
        raise AssertionError(rank)

    def buckets(self) -> list[tuple[float, float, int]]:
        """Bounds in seconds and the count of every bucket that has some, in order."""
        return [(_bound(place), _bound(place + 1), self._buckets[place]) for place in sorted(self._buckets)]

    def _rising(self) -> Iterator[tuple[float, float, int]]:
        below = 0
        for low_s, high_s, count in self.buckets():
            below += count
            yield low_s, high_s, below


def _bound(place: int) -> float:
    return _UNIT_S * _GROWTH**place
