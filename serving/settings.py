"""Every setting of the embedded server, in one place."""

from dataclasses import dataclass
from pathlib import Path

from emberline.serving.deltas.watcher import DEFAULT_PERIOD_S
from emberline.serving.limits import DEFAULT_LIMITS, RequestLimits
from emberline.serving.observe.settings import QUIET, ObserveSettings
from emberline.serving.scheduler import QueueLimits
from emberline.serving.security.settings import EVERYONE, SecuritySettings
from emberline.serving.sockets import is_loopback
from emberline.serving.tables import PRIVATE

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How the embedded server listens and what it allows.

    Args:
        host: the address that both transports bind; loopback unless told otherwise.
        http_port: 0 takes a free port.
        grpc_port: 0 takes a free port.
        metrics_port: a port that has only /metrics, beside the HTTP port's own; None for none, 0 for a free one.
        max_request_bytes: largest HTTP body or gRPC message, after decompression.
        max_request_rows: most rows of a request.
        max_request_ids: most ids of a request, of all features together.
        max_padded_steps: most steps that a padded sequence of a request may have once its rows are filled up to the longest.
        max_batch_rows: waiting requests are merged into batches of at most this many rows; a larger request is a batch of its own.
        max_waiting: requests that may wait for one model; further ones are refused as overload.
        max_waiting_bytes: bytes of requests that may wait for one model; further ones are refused as overload.
        timeout_s: a request is given up after this; a shorter timeout of its own goes first.
        drain_s: how long a stop waits for requests in flight.
        num_threads: threads of one batch's computation; None takes as many as there are CPUs that this process may use.
        tables: where tables are, of `TABLE_MEMORIES`.
        row_growth: by what share private ones may be larger than their files, so that rows straddle fewer lines of the cache; None for the usual.
        version_poll_s: seconds between two looks into the models folder for new versions and models, and versions rolled back to; 0 never looks.
        format: of the programs to run; None takes, of each model, the first of its formats that runs here.
        lookup: what looks rows up; None takes the first that works here.
        delta_poll_s: seconds between two looks for new deltas of each model; 0 never looks.
        workers: processes that serve; more than one share the ports.
        model_control: whether callers may load and unload models; None where only this machine can reach the server.
        observe: what is logged of requests, and how.
        cache: where artifacts that come from a URL are kept; None for `~/.cache/emberline/artifacts`.
        security: who may ask, and TLS.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int | None = None
    max_request_bytes: int = 16 * MIB
    max_request_rows: int = DEFAULT_LIMITS.rows
    max_request_ids: int = DEFAULT_LIMITS.ids
    max_padded_steps: int = DEFAULT_LIMITS.padded_steps
    max_batch_rows: int = 4096
    max_waiting: int = 1024
    max_waiting_bytes: int = 512 * MIB
    timeout_s: float = 30.0
    drain_s: float = 20.0
    num_threads: int | None = None
    tables: str = PRIVATE
    row_growth: float | None = None
    delta_poll_s: float = DEFAULT_PERIOD_S
    version_poll_s: float = 5.0
    format: str | None = None
    lookup: str | None = None
    workers: int = 1
    model_control: bool | None = None
    observe: ObserveSettings = QUIET
    cache: Path | None = None
    security: SecuritySettings = EVERYONE

    @property
    def allows_model_control(self) -> bool:
        """Whether callers may load and unload models."""
        return is_loopback(self.host) if self.model_control is None else self.model_control

    @property
    def request_limits(self) -> RequestLimits:
        """How large one request may be."""
        return RequestLimits(rows=self.max_request_rows, ids=self.max_request_ids, padded_steps=self.max_padded_steps)

    @property
    def queue_limits(self) -> QueueLimits:
        """How much of a model's requests is merged, and how much may wait."""
        return QueueLimits(max_batch_rows=self.max_batch_rows, max_waiting=self.max_waiting, max_waiting_bytes=self.max_waiting_bytes)
