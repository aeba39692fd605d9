"""What is asked over HTTP and what is answered, whichever way the bytes came: through FastAPI or straight from the connection."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from emberline.serving.http.infer import HEADER_LENGTH, decode_infer, encode_infer
from emberline.serving.http.rows import decode_rows, encode_answers, lookup_names, predict_names
from emberline.serving.model import LoadedModel
from emberline.serving.protocol.status import describe_error
from emberline.serving.service import Service

JSON, BYTES = "application/json", "application/octet-stream"
_BIG_BODY_BYTES = 1 << 16
"""Bodies above this are parsed in a thread, so that a long one does not hold up the event loop."""
VERBS: Mapping[str, Callable[[LoadedModel, tuple[str, ...] | None], dict[str, str]]] = {"predict": predict_names, "lookup": lookup_names}
"""By the verb of a plain request: which answers of a model it asks for, and what they are called in the reply."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: its status, its body, what that is, and the bytes of JSON before binary tensors, where there are any."""

    status: int
    body: bytes
    media_type: str = JSON
    header_length: int | None = None


def json_reply(data: Any, status: int = 200) -> Reply:
    """Plain data as JSON."""
    return Reply(status, orjson.dumps(data))


def error_reply(error: Exception) -> Reply:
    """Any error as its status and `{"error": ...}`; one that is no answer to a caller is logged, and not told."""
    status, message = describe_error(error)
    return json_reply({"error": message}, status.http)


async def reply_infer(service: Service, body: bytearray, header_length: str | None, model: str, version: str) -> Reply:
    """Answer a v2 request; see `decode_infer` for what it takes.

    Raises:
        ServingError: it was refused, or the time was up.
    """
    asked = await _parse(decode_infer, body, header_length, model, version)
    answer, size = encode_infer(await service.infer(asked.request, "http", len(body)), asked)
    return Reply(200, answer) if size is None else Reply(200, answer, BYTES, size)


async def reply_rows(service: Service, body: bytearray, model: str, verb: str) -> Reply:
    """Answer plain rows; `verb` is one of `VERBS`.

    Raises:
        ServingError: it was refused, or the time was up.
    """
    choose = VERBS[verb]
    rows, outputs = await _parse(decode_rows, body)
    found, answers = await service.answer_rows(model, rows, lambda loaded: tuple(choose(loaded, outputs)), "http", len(body))
    return Reply(200, encode_answers(found, answers, choose(found, outputs)))


async def _parse(function: Callable[..., T], body: bytearray, *rest: Any) -> T:
    if len(body) > _BIG_BODY_BYTES:
        return await asyncio.to_thread(function, body, *rest)
    return function(body, *rest)


__all__ = ["BYTES", "HEADER_LENGTH", "JSON", "Reply", "VERBS", "error_reply", "json_reply", "reply_infer", "reply_rows"]
