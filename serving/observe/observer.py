"""What becomes known of a request when it is over: counted by what was wrong, and logged."""

import logging
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from emberline.serving.metrics import Metrics
from emberline.serving.observe.context import RequestContext
from emberline.serving.observe.settings import ObserveSettings

if TYPE_CHECKING:
    from emberline.serving.observe.traces import Traces

_LOG = logging.getLogger("emberline.requests")
CANCELLED = 499
"""The status of a request whose caller left."""
KINDS: Mapping[int, str] = {
    400: "bad_request",
    401: "unauthenticated",
    404: "not_found",
    413: "too_large",
    429: "overloaded",
    CANCELLED: "cancelled",
    503: "unavailable",
    504: "deadline",
}
"""What was wrong with a request, by its HTTP status, or that which gRPC's stands for; others are `bad_request` below 500, else `internal`."""


class Observer:
    """Sees the requests of one server.

    Args:
        metrics: where errors are counted.
        settings: what is logged, and where traces go.

    Attributes:
        sees_all: whether it wants to know of requests that went well.
    """

    def __init__(self, metrics: Metrics, settings: ObserveSettings) -> None:
        self._metrics = metrics
        self._logs_all = settings.log_requests
        self._traces = None if settings.otel_endpoint is None else _traces_to(settings.otel_endpoint)
        self.sees_all = self._logs_all or self._traces is not None

    def finished(self, context: RequestContext, protocol: str, status: int) -> None:
        """A request was answered, or refused.

        Args:
            context: it.
            protocol: `http` or `grpc`.
            status: HTTP's, or that which gRPC's stands for.
        """
        kind = kind_of(status)
        if kind:
            self._metrics.count_error(context.model, protocol, kind)
        if self._traces is not None:
            self._traces.add(context, protocol, status, kind)
        if self._logs_all:  # what is behind a 500 was logged where it happened, and has its id
            took_s = perf_counter() - context.started
            model = f", model {context.model} version {context.version}" if context.model else ""
            fields = {"protocol": protocol, "call": context.call, "status": status, "seconds": round(took_s, 6)}
            if context.model:
                fields |= {"model": context.model, "version": context.version}
            if kind:
                fields["kind"] = kind
            level = logging.WARNING if status >= 500 else logging.INFO
            text = "%s %s: %d%s, %.2f ms%s"
            told = (protocol, context.call, status, f" {kind}" if kind else "", took_s * 1e3, model)
            _LOG.log(level, text, *told, extra={"request_id": context.id, "fields": fields})

    def close(self) -> None:
        """Send what is left of traces."""
        if self._traces is not None:
            self._traces.close()


def _traces_to(endpoint: str) -> "Traces":
    from emberline.serving.observe.traces import Traces  # its packages are an extra

    return Traces(endpoint)


def kind_of(status: int) -> str:
    """What was wrong; empty where nothing was."""
    if status < 400:
        return ""
    return KINDS.get(status, "bad_request" if status < 500 else "internal")
