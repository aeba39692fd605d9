"""What is asked over HTTP and what is answered, whichever way the bytes came: through FastAPI or straight from the connection."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from emberline.serving.engine import KNOWN
from emberline.serving.http.infer import HEADER_LENGTH, decode_infer, encode_infer, json_size_of
from emberline.serving.http.rows import decode_rows, encode_answers, explain_answers, lookup_names, predict_names
from emberline.serving.model import LoadedModel
from emberline.serving.protocol.status import describe_error
from emberline.serving.protocol.tensors import Buffer
from emberline.serving.service import Service

JSON, BYTES = "application/json", "application/octet-stream"
_BIG_JSON_BYTES = 1 << 16
"""More JSON is parsed in a thread, so that it does not hold up the event loop."""
VERBS: Mapping[str, Callable[[LoadedModel, tuple[str, ...] | None], dict[str, str]]] = {"predict": predict_names, "lookup": lookup_names}
"""By the verb of a plain request: which answers of a model it asks for, and what they are called in the reply."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: its status, the parts of its body, what that is, and the bytes of JSON before binary tensors, where there are any."""

    status: int
    parts: Sequence[Buffer]
    media_type: str = JSON
    header_length: int | None = None

    @property
    def body(self) -> bytes:
        """The body as one piece."""
        return b"".join(self.parts)

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(map(len, self.parts))


def json_reply(data: Any, status: int = 200) -> Reply:
    """Plain data as JSON."""
    return Reply(status, [orjson.dumps(data)])


def error_reply(error: Exception) -> Reply:
    """Any error as its status and `{"error": ...}`; one that is no answer to a caller is logged, and not told."""
    status, message = describe_error(error)
    return json_reply({"error": message}, status.http)


async def reply_infer(service: Service, body: Buffer, header_length: str | None, model: str, version: str) -> Reply:
    """Answer a v2 request; see `decode_infer` for what it takes.

    Raises:
        ServingError: it was refused, or the time was up.
    """
    json_size = json_size_of(header_length, len(body))
    asked = await _parse(json_size, decode_infer, body, header_length, model, version)
    answer, size = encode_infer(await service.infer(asked.request, "http", len(body)), asked)
    return Reply(200, answer) if size is None else Reply(200, answer, BYTES, size)


async def reply_rows(service: Service, body: Buffer, model: str, verb: str) -> Reply:
    """Answer plain rows; `verb` is one of `VERBS`.

    Raises:
        ServingError: it was refused, or the time was up.
    """
    choose = VERBS[verb]
    asked = await _parse(len(body), decode_rows, body)

    def names(loaded: LoadedModel) -> tuple[str, ...]:
        known = (KNOWN,) if asked.explain and loaded.schema.sparse_features else ()
        return (*choose(loaded, asked.outputs), *known)

    found, answers = await service.answer_rows(model, asked.rows, names, "http", len(body))
    explanation = await asyncio.to_thread(explain_answers, found, asked.rows, answers) if asked.explain else None
    return Reply(200, [encode_answers(found, answers, choose(found, asked.outputs), explanation)])


async def _parse(json_size: int, function: Callable[..., T], body: Buffer, *rest: Any) -> T:
    if json_size > _BIG_JSON_BYTES:
        return await asyncio.to_thread(function, body, *rest)
    return function(body, *rest)


__all__ = ["BYTES", "HEADER_LENGTH", "JSON", "Reply", "VERBS", "error_reply", "json_reply", "reply_infer", "reply_rows"]
