"""Every setting of the embedded server, in one place."""

from dataclasses import dataclass
from pathlib import Path

from emberline.serving.deltas.watcher import DEFAULT_PERIOD_S

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
        max_batch_rows: waiting requests are merged into batches of at most this many rows; a larger request is a batch of its own.
        max_waiting: requests that may wait for one model; further ones are refused as overload.
        timeout_s: a request is given up after this; a shorter timeout of its own goes first.
        drain_s: how long a stop waits for requests in flight.
        num_threads: threads of one batch's computation; None leaves it to the engine.
        format: of the programs to run; None takes, of each model, the first of its formats that runs here.
        delta_poll_s: seconds between two looks for new deltas of each model; 0 never looks.
        cache: where artifacts that come from a URL are kept; None for `~/.cache/emberline/artifacts`.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int | None = None
    max_request_bytes: int = 16 * MIB
    max_batch_rows: int = 4096
    max_waiting: int = 1024
    timeout_s: float = 30.0
    drain_s: float = 20.0
    num_threads: int | None = None
    delta_poll_s: float = DEFAULT_PERIOD_S
    format: str | None = None
    cache: Path | None = None
