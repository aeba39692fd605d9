"""Request bodies: read within a limit, decompressed within the same limit."""

import asyncio
import zlib

from fastapi import Request

from emberline.errors import DeadlineError, RequestError, TooLargeError
from emberline.serving.protocol.strict_json import quote

_SKIP_FACTOR = 8
"""A body over the limit is still read to its end, unkept, up to this many times the limit, so that its sender gets to see the answer."""


async def read_body(request: Request, limit: int, timeout_s: float) -> bytearray:
    """The body, decompressed where `Content-Encoding` says gzip or deflate.

    Args:
        request: the request.
        limit: most bytes, as sent and after decompression.
        timeout_s: how long it may take to come.

    Raises:
        DeadlineError: it did not come in time.
        TooLargeError: it is over the limit; the message gives limit and size.
        RequestError: the compression is unknown or broken.
    """
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdigit() else 0
    if size > limit * _SKIP_FACTOR:
        raise _too_large(str(size), limit)
    try:
        async with asyncio.timeout(timeout_s):
            body, read = await _read(request, limit)
    except TimeoutError:
        raise DeadlineError(f"the body did not come within {timeout_s:g} s") from None
    if read > limit:
        raise _too_large(str(read), limit)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    return body if encoding == "identity" else _decompress(body, encoding, limit)


async def _read(request: Request, limit: int) -> tuple[bytearray, int]:
    """The body up to the limit, and how many bytes came."""
    body, read = bytearray(), 0
    async for chunk in request.stream():
        read += len(chunk)
        if read <= limit:
            body += chunk
        elif read > limit * _SKIP_FACTOR:
            raise _too_large(f"over {read}", limit)
    return body, read


def _decompress(body: bytearray, encoding: str, limit: int) -> bytearray:
    if encoding not in ("gzip", "deflate"):
        raise RequestError(f"the content encoding {quote(encoding)} is not supported; there are gzip and deflate")
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))
    try:
        plain = bytearray(inflater.decompress(body, limit + 1))
    except zlib.error:
        raise RequestError(f"the body is not {encoding} data") from None
    if len(plain) > limit:
        raise _too_large(f"over {limit}", limit)
    if not inflater.eof or inflater.unused_data:
        raise RequestError(f"the body's {encoding} data is cut short, or more follows its end")
    return plain


def _too_large(size: str, limit: int) -> TooLargeError:
    return TooLargeError(f"the body has {size} bytes; this server takes at most {limit}")
