"""Heads of requests that are answered straight from the connection: read once, and remembered by their bytes.

A caller sends the same head again and again. What is out of the ordinary in any way is not taken here: uvicorn's parser decides what becomes of it.
"""

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import httptools

from emberline.serving.http.replies import HEADER_LENGTH, Reply, reply_infer, reply_rows
from emberline.serving.observe.context import REQUEST_ID, usable_id
from emberline.serving.protocol.tensors import Buffer
from emberline.serving.service import Service

_INFER = re.compile(rb"/v2/models/([\w.~-]+)(?:/versions/([\w.~-]+))?/infer")
_ROWS = re.compile(rb"/v1/models/([\w.~-]+):(predict|lookup)")
_JSON_SIZE = HEADER_LENGTH.lower().encode()
_STRANGE = frozenset((b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"trailer"))
"""Requests with these are not taken here."""
_TOLD = (REQUEST_ID.encode(), b"traceparent", b"authorization")
_END = b"\r\n\r\n"
MOST_HEAD = 4096
"""Bytes of a head that is taken here."""
Ask = Callable[[Service, Buffer, str | None], Coroutine[Any, Any, Reply]]


@dataclass(frozen=True, slots=True)
class Head:
    """A request's head.

    Args:
        size: bytes of the body.
        json_size: what `Inference-Header-Content-Length` says, if it came.
        model: from the path.
        version: from the path; empty for the newest.
        ask: what answers the request.
        is_infer: whether it is a v2 request.
        request_id: the caller's; empty for none.
        traceparent: see `RequestContext`.
        authorization: see `RequestContext`.
        call: method and path.
    """

    size: int
    json_size: str | None
    model: str
    version: str
    ask: Ask
    is_infer: bool
    request_id: str = ""
    traceparent: str = ""
    authorization: str = field(default="", repr=False)
    call: str = ""


class _Reader:
    """Takes what the parser finds in a head."""

    def __init__(self) -> None:
        self.url = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.heads = 0

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field."""
        self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The end of a head."""
        self.heads += 1


@lru_cache(maxsize=1024)
def read_head(head: bytes) -> Head | None:
    """What a head says; None where the request is not to be answered here.

    Args:
        head: from the first byte to the empty line, which is its end.
    """
    lines = head.count(b"\r\n")
    if len(head) > MOST_HEAD or head.count(b"\n") != lines or head.count(b"\r") != lines or head.count(_END) != 1:
        return None
    reader = _Reader()
    parser = httptools.HttpRequestParser(reader)
    try:
        parser.feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    fields = dict(reader.fields)
    # A field on two lines, or one that comes twice, is left to those who say what it means.
    if reader.heads != 1 or len(fields) != len(reader.fields) or len(fields) != lines - 2 or not _STRANGE.isdisjoint(fields):
        return None
    size, json_size = fields.get(b"content-length", b""), fields.get(_JSON_SIZE)
    if not size.isdigit() or len(size) > 18 or fields.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    if parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
        return None
    found = _route(reader.url, int(size), None if json_size is None else json_size.decode("latin-1"))
    if found is None or not any(name in fields for name in _TOLD):
        return found
    request_id, traceparent, authorization = [fields.get(name, b"").decode("latin-1") for name in _TOLD]
    return replace(found, request_id=usable_id(request_id), traceparent=traceparent, authorization=authorization)


def _route(url: bytes, size: int, json_size: str | None) -> Head | None:
    call = f"POST {url.decode('ascii', 'backslashreplace')}"
    if (found := _INFER.fullmatch(url)) is not None:
        name, version = found[1].decode(), (found[2] or b"").decode()
        return Head(size, json_size, name, version, lambda service, body, length: reply_infer(service, body, length, name, version), True, call=call)
    if (found := _ROWS.fullmatch(url)) is not None:
        name, verb = found[1].decode(), found[2].decode()
        return Head(size, json_size, name, "", lambda service, body, _: reply_rows(service, body, name, verb), False, call=call)
    return None
