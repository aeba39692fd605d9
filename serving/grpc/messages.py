"""v2 inference over gRPC: bytes of protobuf messages to the data plane's requests, and answers back.

A request that carries its tensors as raw bytes ends with them. What comes before, its head, callers send again and again: a small head is read by
protobuf once and remembered by its bytes, without the caller's id. All other requests are read whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from emberline.errors import RequestError
from emberline.serving.protocol.messages import InferRequest, InferResponse, check_count, check_names, check_tensor_parameters, read_parameters
from emberline.serving.protocol.strict_json import quote
from emberline.serving.protocol.tensors import Buffer, Tensor, check_shape, tensor_from_bytes, tensor_from_numbers

_FIELDS = {"BOOL": "bool_contents", "INT32": "int_contents", "INT64": "int64_contents", "FP32": "fp32_contents"}
"""Where a typed tensor's values are, by datatype."""
_ID, _RAW = 0x1A, 0x3A
"""Tags of a request's `id` and `raw_input_contents`."""
_HEAD = frozenset((0x0A, 0x12, 0x22, 0x2A, 0x32))
"""Tags of what else a head may have: its name, version, parameters, inputs and outputs."""
_RAW_ANSWER = b"\x32"
"""Tag of an answer's `raw_output_contents`."""
_SMALL_HEAD_BYTES = 2048
_MOST_RAW = 64
"""Raw contents of a request that is cut here: protobuf is faster where there are many."""


@dataclass(frozen=True, slots=True)
class _Input:
    """One input as the head tells of it, with the typed values that it has, and the name of the field where they are."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    field: str = ""
    numbers: Sequence[Any] = ()

    def tensor(self, raw: Buffer | None) -> Tensor:
        """Its tensor, of raw bytes where there are such."""
        if raw is None:
            return tensor_from_numbers(self.name, self.datatype, self.shape, self.numbers)
        if self.field:
            raise RequestError(f"input {quote(self.name)} has values both in raw_input_contents and in {self.field}")
        return tensor_from_bytes(self.name, self.datatype, self.shape, raw)


@dataclass(frozen=True, slots=True)
class _Head:
    """All that a request says besides its raw bytes."""

    model: str
    version: str
    id: str
    inputs: tuple[_Input, ...]
    outputs: tuple[str, ...] | None
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class _Cut:
    """A request's bytes, cut.

    Args:
        head: what comes before the raw contents, without the id.
        id: the caller's.
        raw: the raw contents, of the request's own memory.
    """

    head: bytes
    id: str
    raw: list[memoryview]


def decode_infer(body: bytes, remaining_s: float | None) -> InferRequest:
    """Read the bytes of a `ModelInferRequest`.

    Args:
        body: with raw bytes for every input, which are then not copied, or typed contents in each.
        remaining_s: seconds until the call's own deadline, if it has one.

    Raises:
        RequestError: it is malformed; the message names the tensor.
    """
    cut = _cut(body)
    raw: Sequence[Buffer]
    if cut is not None:
        head, request_id, raw = _remembered_head(cut.head), cut.id, cut.raw
    else:
        message = _parse(body)
        head, raw = _read_head(message), message.raw_input_contents
        request_id = head.id
    if raw and len(raw) != len(head.inputs):
        raise RequestError(f"raw_input_contents has {len(raw)} entries for {len(head.inputs)} inputs; send one for each, or none")
    waits = [seconds for seconds in (head.timeout_s, remaining_s) if seconds is not None]
    return InferRequest(
        model=head.model,
        version=head.version,
        id=request_id,
        inputs=tuple([entry.tensor(raw[place] if raw else None) for place, entry in enumerate(head.inputs)]),
        outputs=head.outputs,
        timeout_s=min(waits, default=None),
    )


def encode_infer(response: InferResponse) -> bytes:
    """The bytes of a `ModelInferResponse`, its tensors as raw bytes, each of which is copied once."""
    described = tuple([(tensor.name, tensor.datatype, tensor.shape) for tensor in response.outputs])
    parts: list[Any] = [_answer_head(response.model, response.version, described)]
    if response.id:
        parts.append(pb.ModelInferResponse(id=response.id).SerializeToString())
    for tensor in response.outputs:
        parts += (_RAW_ANSWER, _varint(tensor.values.nbytes), tensor.values)
    return b"".join(parts)


def read_map(parameters: Mapping[str, Any]) -> dict[str, object]:
    """A message's parameters as plain values."""
    return {name: getattr(value, value.WhichOneof("parameter_choice") or "", None) for name, value in parameters.items()}


@lru_cache(maxsize=256)
def _answer_head(model: str, version: str, described: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    outputs = [pb.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape) for name, datatype, shape in described]
    return bytes(pb.ModelInferResponse(model_name=model, model_version=version, outputs=outputs).SerializeToString())


def _cut(body: bytes) -> _Cut | None:
    """The request in parts; None where it is out of the ordinary: no raw contents, a large head, fields in another order, an id that is no text."""
    head_end, request_id, id_start, id_end = -1, "", 0, 0
    raw: list[memoryview] = []
    place, view = 0, memoryview(body)
    while place < len(body):
        tag, start = body[place], place
        place, size = _read_size(body, place + 1)
        end = place + size
        if size < 0 or end > len(body) or len(raw) == _MOST_RAW or (start > _SMALL_HEAD_BYTES and head_end < 0):
            return None
        if tag == _RAW:
            head_end = start if head_end < 0 else head_end
            raw.append(view[place:end])
        elif head_end >= 0:
            return None
        elif tag == _ID and not id_end:
            id_start, id_end = start, end
            try:
                request_id = body[place:end].decode()
            except UnicodeDecodeError:
                return None
        elif tag not in _HEAD:
            return None
        place = end
    if not 0 <= head_end <= _SMALL_HEAD_BYTES:
        return None
    return _Cut(body[:id_start] + body[id_end:head_end], request_id, raw)


def _read_size(body: bytes, place: int) -> tuple[int, int]:
    """Where a number of at most four bytes ends, and the number; below 0 where there is none."""
    number = 0
    for part, byte in enumerate(body[place : place + 4]):
        if byte < 0x80:
            return place + part + 1, number | byte << (7 * part)
        number |= (byte & 0x7F) << (7 * part)
    return place, -1


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _parse(body: bytes) -> Any:
    try:
        return pb.ModelInferRequest.FromString(body)
    except DecodeError:
        raise RequestError("the request is no ModelInferRequest of protobuf") from None


@lru_cache(maxsize=256)
def _remembered_head(head: bytes) -> _Head:
    return _read_head(_parse(head))


def _read_head(message: Any) -> _Head:
    check_count("inputs", len(message.inputs))
    check_count("outputs", len(message.outputs))
    inputs = tuple(_read_input(tensor) for tensor in message.inputs)
    for output in message.outputs:
        check_tensor_parameters("output", output.name, read_map(output.parameters))
    names = check_names("the output", [output.name for output in message.outputs])
    timeout_s = read_parameters(read_map(message.parameters))
    return _Head(message.model_name, message.model_version, message.id, inputs, names or None, timeout_s)


def _read_input(message: Any) -> _Input:
    name, datatype = message.name, message.datatype
    check_tensor_parameters("input", name, read_map(message.parameters))
    shape = check_shape(name, list(message.shape))
    filled = [field.name for field, _ in message.contents.ListFields()]
    field = _FIELDS.get(datatype)
    wrong = [other for other in filled if other != field]
    if field is not None and wrong:
        raise RequestError(f"input {quote(name)} is {datatype}: its values belong in {field}, found {wrong[0]}")
    numbers: Sequence[Any] = getattr(message.contents, field) if field is not None and filled else ()
    return _Input(name, datatype, shape, filled[0] if filled else "", numbers)
