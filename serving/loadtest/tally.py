"""What came of the requests of one step of a load test."""

import time
from collections import Counter
from dataclasses import dataclass, field

from emberline.serving.loadtest.histogram import Histogram


@dataclass
class Second:
    """What became of the requests that were due in one second.

    Args:
        asked: how many there were.
        errors: by kind.
        latencies: of good answers.
    """

    asked: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latencies: Histogram = field(default_factory=Histogram)


class Tally:
    """Counts requests and measures latencies, from the moment that each was due.

    Args:
        rate: requests a second that are asked for; None where callers ask as fast as they are answered.
        connections: how many requests can be under way; those beyond wait for one to end. 0 for any number.

    Attributes:
        asked: requests that were begun.
        good: answers.
        errors: what failed, by kind.
        versions: good answers by the version that gave them, as far as the server says.
        latencies: of good answers.
        delays: how late requests were begun, for which the load test itself is to blame.
        waited: requests that found no free connection.
        seconds: the same by the second that requests were due in.
        took_s: from the first moment to the last answer, at least as long as requests were due.
        cpu_s: processor time that the load test took meanwhile.
    """

    def __init__(self, rate: float | None, connections: int = 0) -> None:
        self.rate, self._connections = rate, connections
        self.asked = self.good = self.waited = 0
        self.errors: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self.latencies, self.delays = Histogram(), Histogram()
        self.seconds: list[Second] = []
        self.took_s = self.cpu_s = 0.0
        self._start_s, self._start_cpu_s = time.monotonic(), time.process_time()

    @property
    def under_way(self) -> int:
        """Requests that were begun and have not ended; after the step, those that were given up because the load test was stopped."""
        return self.asked - self.good - sum(self.errors.values())

    def begin(self, start_s: float) -> None:
        """The step begins at this moment of `time.monotonic()`."""
        self._start_s, self._start_cpu_s = start_s, time.process_time()

    def ask(self, due_s: float, delay_s: float) -> None:
        """A request that was due so long after the start is begun, so much later than that."""
        if self._connections and self.under_way >= self._connections:
            self.waited += 1
        self.asked += 1
        self.delays.add(delay_s)
        self.second(due_s).asked += 1

    def end(self, due_s: float, latency_s: float, kind: str, version: str) -> None:
        """It was answered, or failed where there is a kind of error."""
        second = self.second(due_s)
        if kind:
            self.errors[kind] += 1
            second.errors[kind] += 1
            return
        self.good += 1
        if version:
            self.versions[version] += 1
        self.latencies.add(latency_s)
        second.latencies.add(latency_s)

    def finish(self, duration_s: float) -> None:
        """All is answered that will be; requests were due for so long."""
        self.took_s = max(time.monotonic() - self._start_s, duration_s)
        self.cpu_s = time.process_time() - self._start_cpu_s

    def second(self, due_s: float) -> Second:
        """The one that a request is due in."""
        while len(self.seconds) <= int(due_s):
            self.seconds.append(Second())
        return self.seconds[int(due_s)]
