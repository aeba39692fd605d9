"""Who sends prepared requests: over HTTP or gRPC, each by connections that stay open."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
import grpc
import grpc.aio

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
from emberline.serving.observe.context import MODEL_VERSION
from emberline.serving.protocol.status import error_for_grpc, error_for_http
from emberline.serving.security.access import Access

KINDS = {
    RequestError: "bad_request",
    UnauthenticatedError: "unauthenticated",
    NotFoundError: "not_found",
    TooLargeError: "too_large",
    OverloadedError: "overloaded",
    DeadlineError: "deadline",
    UnavailableError: "unavailable",
    ServingError: "internal",
}
"""What the server refused, as its own metrics name it. Two more are the load test's: no connection, and one that ended before the answer."""
UNREACHABLE, CUT = "unreachable", "cut"
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
Told = tuple[str, str]
"""The kind of error, empty for a good answer, and the version that answered, empty where the server does not say."""


@dataclass(frozen=True)
class Prepared:
    """One request.

    Args:
        body: an HTTP body, or a gRPC message.
        path: over HTTP.
        headers: over HTTP.
    """

    body: bytes
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class Sender(Protocol):
    """Sends one of its requests."""

    async def ask(self, number: int, timeout_s: float) -> Told:
        """Send the request of that number, counted round and round, and wait for the answer."""

    async def close(self) -> None:
        """Close all connections."""


class HttpSender:
    """Over HTTP/1.1; to be made where the event loop runs.

    Args:
        url: `http://host:port` or `https`.
        requests: at least one.
        access: what the server is shown, and whom to trust.
        connections: at most; what comes while all are taken waits for one.
    """

    def __init__(self, url: str, requests: Sequence[Prepared], access: Access, connections: int) -> None:
        place, headers = url.rstrip("/"), access.headers
        self._requests = [(f"{place}{one.path}", one.body, {**one.headers, **headers}) for one in requests]
        is_private = url.startswith("https:")
        connector = aiohttp.TCPConnector(limit=connections, ssl=access.context() if is_private else True, ttl_dns_cache=300)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())

    async def ask(self, number: int, timeout_s: float) -> Told:
        """See `Sender`."""
        url, body, headers = self._requests[number % len(self._requests)]
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.post(url, data=body, headers=headers, allow_redirects=False, timeout=_NO_TIMEOUT) as answer,
            ):
                await answer.read()
                return _http_kind(answer.status), answer.headers.get(MODEL_VERSION, "")
        except TimeoutError:
            return KINDS[DeadlineError], ""
        except aiohttp.ClientConnectorError:
            return UNREACHABLE, ""
        except (aiohttp.ClientError, OSError):
            return CUT, ""

    async def close(self) -> None:
        """See `Sender`."""
        await self._session.close()


_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)


class GrpcSender:
    """Over gRPC; to be made where the event loop runs.

    Args:
        url: `grpc://host:port` or `grpcs`.
        requests: at least one.
        access: what the server is shown, and whom to trust.
        connections: how many; requests take turns on them.
    """

    def __init__(self, url: str, requests: Sequence[Prepared], access: Access, connections: int) -> None:
        scheme, _, place = url.rstrip("/").partition("://")
        self._bodies = [one.body for one in requests]
        self._metadata = tuple(access.headers.items())
        credentials = access.credentials() if scheme == "grpcs" else None
        self._channels = [_channel(place, credentials) for _ in range(connections)]
        self._calls = itertools.cycle([channel.unary_unary(_INFER, None, None) for channel in self._channels])

    async def ask(self, number: int, timeout_s: float) -> Told:
        """See `Sender`."""
        call = next(self._calls)(self._bodies[number % len(self._bodies)], timeout=timeout_s, metadata=self._metadata)
        try:
            await call
            return "", _version(await call.initial_metadata())
        except grpc.aio.AioRpcError as error:
            return _grpc_kind(error.code(), error.details() or ""), ""

    async def close(self) -> None:
        """See `Sender`."""
        for channel in self._channels:
            await channel.close(None)


def _channel(place: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(place, options=_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(place, credentials, options=_CHANNEL_OPTIONS)


def _version(metadata: grpc.aio.Metadata | None) -> str:
    found = None if metadata is None else metadata.get(MODEL_VERSION)
    return found if isinstance(found, str) else ""


def _http_kind(status: int) -> str:
    if 200 <= status < 300:
        return ""
    return KINDS[type(error_for_http(status, ""))]


def _grpc_kind(code: grpc.StatusCode, details: str) -> str:
    if code is grpc.StatusCode.UNAVAILABLE:
        if "onnect" in details and "failed" in details:
            return UNREACHABLE
        if "Socket closed" in details or "reset" in details or "closed" in details:
            return CUT
    return KINDS[type(error_for_grpc(code.name, details))]
