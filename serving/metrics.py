"""What Prometheus sees of a server: each server has its own registry, so two in one process don't mix."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from emberline.serving.scheduler import BatchReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = tuple(float(4**power) for power in range(9))


class Metrics:
    """Counters and histograms of one server.

    `emberline_requests_total` counts requests by model (empty where there is no such model), protocol (`http`, `grpc`) and status (`ok`, or the
    gRPC code's name); `emberline_request_seconds` has their latency; `emberline_batch_*` tell what was merged.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter("emberline_requests", "Requests answered", ("model", "protocol", "status"), registry=self.registry)
        self._seconds = Histogram(
            "emberline_request_seconds",
            "Seconds from request to answer",
            ("model", "protocol"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._batch_requests = Histogram("emberline_batch_requests", "Requests in a batch", ("model",), buckets=_SIZES, registry=self.registry)
        self._batch_rows = Histogram("emberline_batch_rows", "Rows in a batch", ("model",), buckets=_SIZES, registry=self.registry)
        self._batch_seconds = Histogram("emberline_batch_seconds", "Seconds of a batch", ("model",), buckets=_SECONDS, registry=self.registry)
        self._waiting = Gauge("emberline_waiting_requests", "Requests in a model's queue", ("model",), registry=self.registry)
        self._version = Gauge("emberline_model_version", "The version that is served", ("model",), registry=self.registry)

    def add_model(self, model: str, version: int, num_waiting: Callable[[], int]) -> None:
        """Show a model from now on; `num_waiting` is asked at each scrape."""
        self._version.labels(model).set(version)
        self._waiting.labels(model).set_function(num_waiting)

    def count_request(self, model: str, protocol: str, status: str, seconds: float) -> None:
        """One request was answered, or refused."""
        self._requests.labels(model, protocol, status).inc()
        self._seconds.labels(model, protocol).observe(seconds)

    def count_batch(self, model: str, report: BatchReport) -> None:
        """One batch was computed."""
        self._batch_requests.labels(model).observe(report.num_requests)
        self._batch_rows.labels(model).observe(report.num_rows)
        self._batch_seconds.labels(model).observe(report.took_s)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)
