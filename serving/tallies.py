"""Histograms that cost a fraction of a microsecond to add to: a request of one row adds to several."""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from threading import Lock

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_MOST_NEW = 256


class Tally:
    """Values counted by how large they are; any number of threads may add. They are kept until there are some, and then sorted in together.

    Args:
        bounds: ascending; a value belongs to the first that is not below it.
    """

    __slots__ = ("_bounds", "_counts", "_lock", "_new", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = Lock()
        self._new: deque[float] = deque()

    def add(self, value: float) -> None:
        """One more value."""
        new = self._new
        new.append(value)  # no thread sees half of it
        if len(new) >= _MOST_NEW:
            with self._lock:
                self._sort_in()

    def read(self) -> tuple[list[int], float]:
        """How many values belong to each bound, and to none; and their sum."""
        with self._lock:
            self._sort_in()
            return list(self._counts), self._sum

    def _sort_in(self) -> None:
        """What is new by now: others may add meanwhile, but only who has the lock takes away."""
        take = self._new.popleft
        values = [take() for _ in range(len(self._new))]
        for place, count in Counter(map(bisect_left, repeat(self._bounds), values)).items():
            self._counts[place] += count
        self._sum += sum(values)


class Tallies(Collector):
    """One histogram of a registry, with a `Tally` for each set of labels.

    Args:
        name: of the metric.
        documentation: of the metric.
        labels: their names.
        bounds: of all tallies.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name, self._documentation, self._labels, self._bounds = name, documentation, labels, bounds
        self._tallies: dict[tuple[str, ...], Tally] = {}

    def of(self, *labels: str) -> Tally:
        """The tally of these labels, from the first time on."""
        found = self._tallies.get(labels)
        return self._tallies.setdefault(labels, Tally(self._bounds)) if found is None else found

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """What the registry asks for at each scrape."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        limits = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, tally in list(self._tallies.items()):
            counts, total = tally.read()
            family.add_metric(labels, list(zip(limits, accumulate(counts), strict=True)), total)
        yield family
