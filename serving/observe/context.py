"""What is known of the request that is being answered: its id, who asked, and which model answers."""

import itertools
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from time import perf_counter, time_ns

REQUEST_ID, MODEL_VERSION = "x-request-id", "x-model-version"
"""Names of the headers of answers, and of gRPC's initial metadata."""
_TAKEN = frozenset((REQUEST_ID, "traceparent", "authorization"))
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestContext:
    """One request, from its head to its answer.

    Args:
        request_id: the caller's; one of ours is made where it is empty, or no id: 1 to 128 visible ASCII characters.
        traceparent: the caller's span, as W3C writes it; empty for none. Nobody has looked yet whether it is well formed.
        authorization: what the caller shows to be let in; empty for nothing.
        call: method and path, or gRPC's name of the method.

    Attributes:
        id: of the request, for the answer, logs and traces.
        started: when it was begun with, by `time.perf_counter`.
        model: the name of the model that answers; empty while none is found.
        version: of that model; 0 while none is found.
        rows: that it asks for; 0 while that is not known.
        stages: of its batch, where somebody wants to know: name, beginning and end, in nanoseconds since 1970.
    """

    model = ""
    version = 0
    rows = 0
    stages: Sequence[tuple[str, int, int]] = ()

    def __init__(self, request_id: str = "", traceparent: str = "", authorization: str = "", call: str = "") -> None:
        self.id = request_id or _prefix + str(next(_numbers))
        self.traceparent = traceparent
        self.authorization = authorization
        self.call = call
        self.started = perf_counter()


CURRENT: ContextVar[RequestContext | None] = ContextVar("emberline_request", default=None)
"""The request that this task, or this callback of a connection, is about."""


BATCH: ContextVar[Sequence[RequestContext | None]] = ContextVar("emberline_batch", default=())
"""The requests of the batch that this thread computes; None for those that no caller asked for."""


def read_context(fields: Iterable[tuple[str, str | bytes]]) -> RequestContext:
    """From a head's fields, or gRPC's metadata; names in lower case. Of a field that comes twice, the first counts."""
    found: dict[str, str] = {}
    for name, value in fields:
        if name in _TAKEN:
            found.setdefault(name, value if isinstance(value, str) else value.decode("latin-1"))
    return RequestContext(usable_id(found.get(REQUEST_ID, "")), found.get("traceparent", ""), found.get("authorization", ""))


def usable_id(text: str) -> str:
    """A caller's id of its request; empty where it is none."""
    return text if _ID.fullmatch(text) else ""


def note_model(name: str, version: int) -> None:
    """Say which model answers the request that this task is about."""
    context = CURRENT.get()
    if context is not None:
        context.model, context.version = name, version


def note_rows(num_rows: int) -> None:
    """Say how many rows the request that this task is about asks for."""
    context = CURRENT.get()
    if context is not None:
        context.rows = num_rows


def note_stage(name: str, seconds: float) -> None:
    """Say of the requests that are being computed that a stage of theirs took so long, and is over."""
    end, own = time_ns(), CURRENT.get()
    for context in BATCH.get() if own is None else (own,):
        if context is not None:
            context.stages = (*context.stages, (name, end - int(seconds * 1e9), end))


def new_id() -> str:
    """An id that no other request has: of this process, and counted."""
    return _prefix + str(next(_numbers))


def _begin() -> None:
    global _prefix, _numbers
    _prefix, _numbers = secrets.token_hex(4) + "-", itertools.count(1)


_prefix, _numbers = "", itertools.count(1)
_begin()
os.register_at_fork(after_in_child=_begin)
