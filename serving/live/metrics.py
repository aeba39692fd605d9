"""What Prometheus sees of versions that were refused."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class UpdateMetrics:
    """Shows how switching to new versions goes.

    `emberline_model_update_failures_total` counts the attempts to serve what the models folder says that failed, by model;
    `emberline_model_update_failing` is 1 where the last one did and nothing has mended it since.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = Counter(
            "emberline_model_update_failures", "Attempts to serve what the models folder says that failed", ("model",), registry=registry
        )
        self._failing = Gauge("emberline_model_update_failing", "1 while the version that is to be served is refused", ("model",), registry=registry)

    def failed(self, model: str) -> None:
        """An attempt failed."""
        self._failures.labels(model).inc()
        self._failing.labels(model).set(1)

    def is_well(self, model: str) -> None:
        """What is to be served is."""
        self._failures.labels(model)
        self._failing.labels(model).set(0)
