"""One table of statuses: each serving error as an HTTP status and a gRPC code."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from emberline.errors import (
    DeadlineError,
    NotFoundError,
    OverloadedError,
    RequestError,
    ServingError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Status:
    """An HTTP status, and the name of a `grpc.StatusCode`."""

    http: int
    grpc: str


STATUSES: Mapping[type[ServingError], Status] = {
    RequestError: Status(400, "INVALID_ARGUMENT"),
    UnauthenticatedError: Status(401, "UNAUTHENTICATED"),
    NotFoundError: Status(404, "NOT_FOUND"),
    TooLargeError: Status(413, "INVALID_ARGUMENT"),
    OverloadedError: Status(429, "RESOURCE_EXHAUSTED"),
    DeadlineError: Status(504, "DEADLINE_EXCEEDED"),
    UnavailableError: Status(503, "UNAVAILABLE"),
    ServingError: Status(500, "INTERNAL"),
}


def status_of(error: Exception) -> Status:
    """The status of an error; one outside the tree is a fault of ours."""
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), STATUSES[ServingError])


def describe_error(error: Exception) -> tuple[Status, str]:
    """Status and text for the caller.

    An error outside the tree is a fault of ours: it is logged with its trace, and the caller is told no more than that it happened.
    """
    if isinstance(error, ServingError):
        return status_of(error), str(error)
    _log.error("a request failed", exc_info=error)
    return STATUSES[ServingError], "the server failed to answer this request; its log says why"


def error_for_http(status: int, message: str) -> ServingError:
    """The error that an HTTP status stands for (client side)."""
    for kind, known in STATUSES.items():
        if known.http == status:
            return kind(message)
    if status == 499:
        return DeadlineError(message)
    return RequestError(message) if 400 <= status < 500 else ServingError(message)


def error_for_grpc(code: str, message: str) -> ServingError:
    """The error that a gRPC code stands for (client side)."""
    if "larger than max" in message:  # gRPC's own words where a message is over the limit
        return TooLargeError(message)
    if code == "CANCELLED":
        return UnavailableError(message)
    for kind, known in STATUSES.items():
        if known.grpc == code:
            return kind(message)
    return ServingError(message)
