"""Small v2 requests with binary tensors, answered at once: what their JSON header comes to for a model is worked out once, and remembered.

Whatever such a request has that is out of the ordinary is left to `decode_infer` and the model's thread, which give the same answers and know all
the messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from emberline.errors import ServingError
from emberline.serving.http.heads import Head
from emberline.serving.http.infer import SMALL_HEADER_BYTES, Header, HttpInfer, encode_infer, remembered_header, to_bytes
from emberline.serving.http.replies import BYTES, HEADER_LENGTH
from emberline.serving.model import Answers, LoadedModel
from emberline.serving.observe.context import MODEL_VERSION
from emberline.serving.packed_request import PackedRequest
from emberline.serving.protocol.messages import InferRequest, InferResponse
from emberline.serving.protocol.packing import answer_tensors, is_flat
from emberline.serving.protocol.tensors import Buffer, tensor_from_bytes
from emberline.serving.service import Service

_MOST_PLANS = 256


@dataclass(frozen=True, slots=True)
class _Plan:
    """One header, for one model.

    Args:
        fields: of the packed request: name, type, number of values and first byte of each tensor.
        size: bytes of all of them.
        num_rows: of the request.
        names: of the answers.
        asked: how the answer is to look.
        starts: by the answers' shapes, the rest of the answer's head, and its JSON.
    """

    fields: tuple[tuple[str, np.dtype[Any], int, int], ...]
    size: int
    num_rows: int
    names: tuple[str, ...]
    asked: HttpInfer
    starts: dict[tuple[tuple[int, ...], ...], bytes] = field(default_factory=dict)


class QuickAnswers:
    """Answers small requests of one server.

    Args:
        service: what answers.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._plans: WeakKeyDictionary[LoadedModel, dict[bytes, _Plan | None]] = WeakKeyDictionary()

    def answer(self, head: Head, body: Buffer) -> list[Buffer] | None:
        """The answer from its `content-type` on: the rest of its head, and the parts of its body; None where the request must go the long way.

        Raises:
            ServingError: it was refused.
        """
        if head.json_size is None or not (head.json_size.isascii() and head.json_size.isdigit()) or len(head.json_size) > 4:
            return None
        json_size = int(head.json_size)
        try:
            model = self._service.repository.get(head.model, head.version)
        except ServingError:
            return None
        size = len(body) - json_size
        if size < 0 or json_size > SMALL_HEADER_BYTES or not model.pace.is_quick(size):
            return None
        plan = self._find_plan(model, bytes(body[:json_size]))
        if plan is None or plan.size != size:
            return None
        binary = bytes(body[json_size:])
        arrays: dict[str, Any] = {name: np.frombuffer(binary, dtype, count, start) for name, dtype, count, start in plan.fields}
        found = self._service.answer_quick(model, PackedRequest(**arrays), plan.num_rows, plan.names, "http")
        return _encode(model, plan, found)

    def _find_plan(self, model: LoadedModel, text: bytes) -> _Plan | None:
        plans = self._plans.get(model)
        if plans is None:
            plans = self._plans[model] = {}
        if text not in plans:
            if len(plans) >= _MOST_PLANS:
                plans.clear()
            plans[text] = _make_plan(model, text)
        return plans[text]


def _make_plan(model: LoadedModel, text: bytes) -> _Plan | None:
    """None where anything is wrong, or differs from request to request with the same header."""
    try:
        header = remembered_header(text)
        fields, size = _place(header)
        if fields is None or not 0 < size <= model.pace.most_bytes or header.timeout_s is not None:
            return None
        zeros = bytes(size)
        inputs = [tensor_from_bytes(given.name, given.datatype, given.shape, zeros[: given.size]) for given in header.inputs]
        _, num_rows = model.pack(tuple(inputs))
        names = model.names_of(header.outputs)
    except ServingError:
        return None
    if any(given.name == "rows_per_user" for given in header.inputs) or not all(header.binary.get(name, header.binary_default) for name in names):
        return None
    request = InferRequest(model=model.name, id=header.id, inputs=(), outputs=header.outputs)
    return _Plan(fields, size, num_rows, names, HttpInfer(request, header.binary, header.binary_default))


def _place(header: Header) -> tuple[tuple[tuple[str, np.dtype[Any], int, int], ...] | None, int]:
    """Where tensors lie in the bytes after the header, and all of these bytes; None where one is not in them, badly aligned, or not flat."""
    fields, start = [], 0
    for given in header.inputs:
        dtype = _NUMBERS.get(given.datatype)
        if given.tensor is not None or dtype is None or not is_flat(given.shape) or start % dtype.itemsize or given.size % dtype.itemsize:
            return None, 0
        fields.append((given.name, dtype, given.size // dtype.itemsize, start))
        start += given.size
    return tuple(fields), start


_NUMBERS: Mapping[str, np.dtype[Any]] = {"INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"), "FP32": np.dtype("<f4")}


def _encode(model: LoadedModel, plan: _Plan, found: Answers) -> list[Buffer]:
    shapes = tuple([tuple(found[name].shape) for name in plan.names])
    start = plan.starts.get(shapes)
    if start is None:
        if len(plan.starts) >= _MOST_PLANS:
            plan.starts.clear()
        start = plan.starts[shapes] = _start(model, plan, found)
    return [start, *[to_bytes(found[name].numpy(force=True)) for name in plan.names]]


def _start(model: LoadedModel, plan: _Plan, found: Answers) -> bytes:
    response = InferResponse(model=model.name, version=str(model.version), id=plan.asked.request.id, outputs=answer_tensors(found, plan.names))
    parts, size = encode_infer(response, plan.asked)
    return head_fields(BYTES, size, sum(map(len, parts)), model.version) + bytes(parts[0])


def head_fields(media_type: str, header_length: int | None, size: int, version: int = 0) -> bytes:
    """The end of an answer's head; `version` of the model that answered, 0 where none did."""
    fields = [b"content-type: %b" % media_type.encode(), b"content-length: %d" % size, b"", b""]
    if version:
        fields.insert(1, b"%b: %d" % (MODEL_VERSION.encode(), version))
    if header_length is not None:
        fields.insert(1, b"%b: %d" % (HEADER_LENGTH.lower().encode(), header_length))
    return b"\r\n".join(fields)
