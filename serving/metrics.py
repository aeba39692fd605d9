"""What Prometheus sees of a server: each server has its own registry, so two in one process don't mix."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from emberline.serving.engine import Engine
from emberline.serving.observe.stages import NotedTally, Stages
from emberline.serving.scheduler import BatchReport
from emberline.serving.tallies import Tallies, Tally
from emberline.serving.unknown import IdCounts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STAGE_SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, *_SECONDS)
_SIZES = tuple(float(4**power) for power in range(9))


class Metrics:
    """Counters and histograms of one server.

    `emberline_requests_total` counts requests by model (empty where there is no such model), protocol (`http`, `grpc`) and status (`ok`, or the
    gRPC code's name); `emberline_request_seconds` has their latency; `emberline_batch_*` tell what was merged;
    `emberline_stage_seconds` tell where a batch's time goes; `emberline_request_errors_total` counts requests that were not answered by what was
    wrong, those that never came to a model too.
    `emberline_table_bytes` and `emberline_table_huge_page_bytes` tell what tables cost, and how much of it lies on huge pages;
    `emberline_table_ids_total` counts the ids that each ZCH or dynamic table was asked for, and `emberline_table_unknown_ids_total` those of them
    without a row of their own.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter("emberline_requests", "Requests answered", ("model", "protocol", "status"), registry=self.registry)
        self._seconds = self._tallies("emberline_request_seconds", "Seconds from request to answer", ("model", "protocol"), _SECONDS)
        self._counters: dict[tuple[str, str, str], tuple[Counter, Tally]] = {}
        """The counters of each model, protocol and status: to find them by their labels costs more than to count."""
        self._batch_requests = self._tallies("emberline_batch_requests", "Requests in a batch", ("model",), _SIZES)
        self._batch_rows = self._tallies("emberline_batch_rows", "Rows in a batch", ("model",), _SIZES)
        self._batch_seconds = self._tallies("emberline_batch_seconds", "Seconds of a batch", ("model",), _SECONDS)
        self._stage_seconds = self._tallies("emberline_stage_seconds", "Seconds of a batch's stages", ("model", "stage"), _STAGE_SECONDS)
        self._errors = Counter(
            "emberline_request_errors", "Requests refused or failed, by kind", ("model", "protocol", "kind"), registry=self.registry
        )
        self._waiting = Gauge("emberline_waiting_requests", "Requests in a model's queue", ("model",), registry=self.registry)
        self._version = Gauge("emberline_model_version", "The version that is served", ("model",), registry=self.registry)
        self._age = Gauge("emberline_model_version_age_seconds", "Seconds since it was exported", ("model",), registry=self.registry)
        self._delta = Gauge("emberline_model_delta", "The last delta that was added to it; 0 for none", ("model",), registry=self.registry)
        self._table_bytes = Gauge(
            "emberline_table_bytes", "Bytes of its tables in memory; of mapped ones others share them", ("model",), registry=self.registry
        )
        self._huge_bytes = Gauge(
            "emberline_table_huge_page_bytes", "Of these, bytes on huge pages when it was opened", ("model",), registry=self.registry
        )
        self._lookup = Gauge("emberline_model_lookup", "1 for what looks its rows up", ("model", "backend"), registry=self.registry)
        self._backends: dict[str, str] = {}
        self._ids = _TableIds()
        self.registry.register(self._ids)

    def _tallies(self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float]) -> Tallies:
        found = Tallies(name, documentation, labels, bounds)
        self.registry.register(found)
        return found

    def add_model(self, engine: Engine, num_waiting: Callable[[], int]) -> None:
        """Show a model from now on; `num_waiting`, its last delta and its counts of ids are asked at each scrape."""
        model = engine.name
        self._ids.models[model] = engine.id_counts
        self._version.labels(model).set(engine.version)
        created_s = seconds_of(engine.artifact.manifest.created)
        self._age.labels(model).set_function(lambda: time.time() - created_s)
        self._forget_backend(model)
        self._backends[model] = engine.lookup_backend
        self._lookup.labels(model, engine.lookup_backend).set(1)
        memory = engine.opened_memory
        self._table_bytes.labels(model).set(memory.num_bytes)
        self._huge_bytes.labels(model).set(memory.huge_bytes or 0)
        self._delta.labels(model).set_function(lambda: engine.delta)
        self._waiting.labels(model).set_function(num_waiting)

    def remove_model(self, model: str) -> None:
        """Show a model no more, but for what was counted of its requests and batches."""
        self._ids.models.pop(model, None)
        self._forget_backend(model)
        for gauge in (self._age, self._delta, self._waiting):  # whose function holds the model: else until the next garbage collection
            gauge.labels(model).set_function(float)
        for gauge in (self._version, self._age, self._delta, self._waiting, self._table_bytes, self._huge_bytes):
            gauge.remove(model)

    def _forget_backend(self, model: str) -> None:
        if (backend := self._backends.pop(model, None)) is not None:
            self._lookup.remove(model, backend)

    def count_request(self, model: str, protocol: str, status: str, seconds: float) -> None:
        """One request was answered, or refused."""
        key = (model, protocol, status)
        counters = self._counters.get(key)
        if counters is None:
            counters = self._counters[key] = (self._requests.labels(*key), self._seconds.of(model, protocol))
        counters[0].inc()
        counters[1].add(seconds)

    def batch_tallies(self, model: str) -> "BatchTallies":
        """What the batches of a model are added to."""
        return BatchTallies(self._batch_requests.of(model), self._batch_rows.of(model), self._batch_seconds.of(model))

    def stages(self, model: str, *, noted: bool = False) -> Stages:
        """What the stages of a model's batches are added to; `noted`: requests are told of them too."""

        def tally(stage: str) -> Tally:
            found = self._stage_seconds.of(model, stage)
            return NotedTally(stage, found) if noted else found

        return Stages.of(tally)

    def count_error(self, model: str, protocol: str, kind: str) -> None:
        """One request was refused, or failed; `model` is empty where it named none that is there, or was too malformed to be looked at."""
        self._errors.labels(model, protocol, kind).inc()

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)


def seconds_of(created: str) -> float:
    """A manifest's time of creation in seconds since 1970; NaN where it is no time."""
    try:
        found = datetime.fromisoformat(created)
    except ValueError:
        return math.nan
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


class BatchTallies(NamedTuple):
    """Histograms of one model's batches."""

    requests: Tally
    rows: Tally
    seconds: Tally

    def add(self, report: BatchReport) -> None:
        """One batch was computed."""
        self.requests.add(report.num_requests)
        self.rows.add(report.num_rows)
        self.seconds.add(report.took_s)


class _TableIds(Collector):
    """What the engines of `models` have counted, by table."""

    def __init__(self) -> None:
        self.models: dict[str, Callable[[], Mapping[str, IdCounts]]] = {}

    def collect(self) -> Iterable[CounterMetricFamily]:
        labels = ("model", "table")
        asked = CounterMetricFamily("emberline_table_ids", "Ids that a table was asked for", labels=labels)
        unknown = CounterMetricFamily("emberline_table_unknown_ids", "Of these, ids without a row of their own", labels=labels)
        for model, read in list(self.models.items()):
            for table, counts in read().items():
                asked.add_metric((model, table), counts.asked)
                unknown.add_metric((model, table), counts.unknown)
        return asked, unknown
