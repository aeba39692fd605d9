"""What a server tells of its requests in its log."""

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from emberline.errors import ConfigError, MissingDependencyError
from emberline.serving.log import LOG_FORMATS, TEXT


@dataclass(frozen=True, kw_only=True)
class ObserveSettings:
    """How a server logs.

    Args:
        log_format: of the lines, of `LOG_FORMATS`.
        log_requests: whether each request has a line.
        otel_endpoint: URL of a collector that spans of requests are sent to; None for none.
    """

    log_format: str = TEXT
    log_requests: bool = False
    otel_endpoint: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From what `to_dict` gave."""
        return cls(**data)


QUIET = ObserveSettings()
"""Lines of text, and none for requests that went well."""


def configure_observe(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline serve`."""
    parser.add_argument("--log-format", choices=LOG_FORMATS, help=f"embedded: how lines of the log look (default: {TEXT})")
    parser.add_argument("--log-requests", action="store_true", help="embedded: log each request")
    parser.add_argument(
        "--otel-endpoint", type=_endpoint, metavar="URL", help="embedded: send spans of requests to this collector, by OTLP over HTTP (default: none)"
    )


def observe_of(args: argparse.Namespace) -> ObserveSettings:
    """What the options say.

    Raises:
        MissingDependencyError: the packages that send spans are not installed.
    """
    if args.otel_endpoint is not None:
        try:
            importlib.import_module("emberline.serving.observe.traces")
        except ImportError as error:
            raise MissingDependencyError(f"--otel-endpoint needs the package {error.name!r}: `pip install 'emberline[otel]'`") from error
    return ObserveSettings(log_format=args.log_format or TEXT, log_requests=args.log_requests, otel_endpoint=args.otel_endpoint)


def refuse_observe(args: argparse.Namespace) -> None:
    """Refuse what Triton's server does not do.

    Raises:
        ConfigError: one of the options was given.
    """
    if args.log_format is not None:
        raise ConfigError("--log-format is for the embedded server; with --backend triton lines are Triton's own")
    if args.log_requests:
        raise ConfigError("--log-requests is for the embedded server; with --backend triton, a proxy in front of it can log requests")
    if args.otel_endpoint is not None:
        raise ConfigError("--otel-endpoint is for the embedded server; Triton has --trace-config of its own")


def _endpoint(text: str) -> str:
    found = urlsplit(text)
    if found.scheme not in ("http", "https") or not found.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL of a collector: http://host:port")
    return text
