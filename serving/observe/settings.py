"""What a server tells of its requests in its log."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from emberline.errors import ConfigError
from emberline.serving.log import LOG_FORMATS, TEXT


@dataclass(frozen=True, kw_only=True)
class ObserveSettings:
    """How a server logs.

    Args:
        log_format: of the lines, of `LOG_FORMATS`.
        log_requests: whether each request has a line.
    """

    log_format: str = TEXT
    log_requests: bool = False

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


def observe_of(args: argparse.Namespace) -> ObserveSettings:
    """What the options say."""
    return ObserveSettings(log_format=args.log_format or TEXT, log_requests=args.log_requests)


def refuse_observe(args: argparse.Namespace) -> None:
    """Refuse what Triton's server does not do.

    Raises:
        ConfigError: one of the options was given.
    """
    if args.log_format is not None:
        raise ConfigError("--log-format is for the embedded server; with --backend triton lines are Triton's own")
    if args.log_requests:
        raise ConfigError("--log-requests is for the embedded server; with --backend triton, a proxy in front of it can log requests")
