"""Spans of requests, sent to a collector over OTLP/HTTP by OpenTelemetry's SDK: in its own thread, so that no request waits for the collector."""

import threading
import time
from time import perf_counter

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from emberline import __version__
from emberline.serving.observe.context import RequestContext

_SEND_S = 5.0
"""What a collector may take for one message."""
_LAST_S = 2.0
"""How long a server that stops waits for its last spans to be sent."""
_PATH = "/v1/traces"


class Traces:
    """Makes a span of each request that is over, and one in it for each stage that its batch went through.

    A caller's `traceparent` is the parent, and says whether the request is recorded at all; without one it is.

    Args:
        endpoint: the collector's URL; `/v1/traces` is added where it does not end so.
    """

    def __init__(self, endpoint: str) -> None:
        resource = Resource({"service.name": "emberline", "service.version": __version__})
        self._provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource, shutdown_on_exit=False)
        url = endpoint.rstrip("/")
        exporter = OTLPSpanExporter(endpoint=url if url.endswith(_PATH) else url + _PATH, timeout=_SEND_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("emberline")
        self._propagator = TraceContextTextMapPropagator()

    def add(self, context: RequestContext, protocol: str, status: int, kind: str) -> None:
        """A request is over; see `Observer.finished`."""
        end = time.time_ns()
        start = end - int((perf_counter() - context.started) * 1e9)
        parent = self._propagator.extract({"traceparent": context.traceparent} if context.traceparent else {})
        told: dict[str, str | int] = {"request.id": context.id, "rpc.protocol": protocol, "http.response.status_code": status}
        if context.model:
            told |= {"model.name": context.model, "model.version": context.version}
        if context.rows:
            told["request.rows"] = context.rows
        if kind:
            told["error.type"] = kind
        span = self._tracer.start_span(context.call, parent, SpanKind.SERVER, told, start_time=start)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        begun = min((first for name, first, _ in context.stages if name != "queue"), default=end)
        for name, first, last in context.stages:
            shift = begun - last if name == "queue" else 0  # it is told of after the batch
            self._tracer.start_span(name, inside, start_time=first + shift).end(last + shift)
        span.end(end)

    def close(self) -> None:
        """Send what is left, unless that takes too long."""
        closing = threading.Thread(target=self._provider.shutdown, name="emberline-traces", daemon=True)
        closing.start()
        closing.join(_LAST_S)
