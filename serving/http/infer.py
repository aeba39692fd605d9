"""v2 inference over HTTP: a JSON header, and after it the raw bytes of the tensors that it calls binary."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy.typing as npt
import orjson

from emberline.errors import RequestError
from emberline.serving.protocol.messages import InferRequest, InferResponse, check_count, check_names, check_tensor_parameters, read_parameters
from emberline.serving.protocol.strict_json import json_type, parse_object, quote
from emberline.serving.protocol.tensors import Buffer, Tensor, check_shape, tensor_from_bytes, tensor_from_json

HEADER_LENGTH = "Inference-Header-Content-Length"
"""Bytes of JSON at the start of a body that carries binary tensors, in request and answer."""

_REQUEST_KEYS = ("id", "parameters", "inputs", "outputs")
_INPUT_KEYS = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT_KEYS = ("name", "parameters")
SMALL_HEADER_BYTES = 2048
"""Headers up to this size are remembered: callers that send binary tensors send the same header again and again."""
_MOST_COPIED = 1 << 14
"""Bytes of an answer that are copied: a part less to send is worth more than a short copy."""


@dataclass(frozen=True)
class HttpInfer:
    """A request, and how its answer is to look: `binary` by output, `binary_default` for outputs that it does not name."""

    request: InferRequest
    binary: Mapping[str, bool]
    binary_default: bool


@dataclass(frozen=True, slots=True)
class HeaderInput:
    """One input as the header tells of it: its tensor where the header holds that, else how many bytes after the header are its own."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int
    tensor: Tensor | None


@dataclass(frozen=True, slots=True)
class Header:
    """All that a header says."""

    id: str
    inputs: tuple[HeaderInput, ...]
    outputs: tuple[str, ...] | None
    timeout_s: float | None
    binary: Mapping[str, bool]
    binary_default: bool


def decode_infer(body: Buffer, header_length: str | None, model: str, version: str) -> HttpInfer:
    """Read a request's body.

    Args:
        body: JSON, with binary tensors after it where `header_length` says so.
        header_length: the `Inference-Header-Content-Length` header, if it came.
        model: from the path.
        version: from the path; empty for the newest.

    Raises:
        RequestError: it is malformed; the message names the key or tensor.
    """
    json_size = json_size_of(header_length, len(body))
    view = memoryview(body)
    if json_size == len(body):
        header = _read_header(view, "the request")
    elif json_size <= SMALL_HEADER_BYTES:
        header = remembered_header(bytes(view[:json_size]))
    else:
        header = _read_header(view[:json_size], "the request's header")
    request = InferRequest(
        model=model,
        version=version,
        id=header.id,
        inputs=_cut_inputs(header.inputs, view[json_size:]),
        outputs=header.outputs,
        timeout_s=header.timeout_s,
    )
    return HttpInfer(request, header.binary, header.binary_default)


def _read_header(text: bytes | memoryview, what: str) -> Header:
    header = parse_object(text, what)
    _check_keys(header, _REQUEST_KEYS, "the request")
    parameters = _parameters(header, "the request")
    binary_default = _flag(parameters, "binary_data_output")
    inputs = tuple(_read_input(entry) for entry in _objects("inputs", header.get("inputs")))
    outputs = _objects("outputs", header.get("outputs", []))
    names = check_names("the output", [_read_output(output) for output in outputs]) or None
    timeout_s, request_id = read_parameters(parameters), _text(header.get("id", ""), "id")
    binary = {output["name"]: _flag(_parameters(output, "an output"), "binary_data", binary_default) for output in outputs}
    return Header(request_id, inputs, names, timeout_s, binary, binary_default)


@lru_cache(maxsize=256)
def remembered_header(text: bytes) -> Header:
    """What a small header says, read once.

    Raises:
        RequestError: it is malformed; the message names the key or tensor.
    """
    return _read_header(text, "the request's header")


def encode_infer(response: InferResponse, asked: HttpInfer) -> tuple[list[Buffer], int | None]:
    """The parts of the answer's body, and the bytes of its JSON header, the first part, where binary tensors follow it."""
    entries: list[dict[str, Any]] = []
    parts: list[Buffer] = []
    for tensor in response.outputs:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if asked.binary.get(tensor.name, asked.binary_default):
            entry["parameters"] = {"binary_data_size": tensor.values.nbytes}
            parts.append(to_bytes(tensor.values))
        else:
            entry["data"] = tensor.values
        entries.append(entry)
    header: dict[str, Any] = {"model_name": response.model, "model_version": response.version, "outputs": entries}
    if response.id:
        header["id"] = response.id
    text = orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY)
    return [text, *parts], len(text) if parts else None


def to_bytes(values: npt.NDArray[Any]) -> Buffer:
    """An array's bytes: those of a large one are not copied, as long as it is in one piece."""
    return memoryview(values.data).cast("B") if values.nbytes > _MOST_COPIED and values.flags.c_contiguous else values.tobytes()


def json_size_of(header_length: str | None, body_size: int) -> int:
    """Bytes of JSON at the start of a body: what `Inference-Header-Content-Length` says, or all.

    Raises:
        RequestError: it is no number of these bytes.
    """
    if header_length is None:
        return body_size
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20 and int(header_length) <= body_size):
        raise RequestError(f"the header {HEADER_LENGTH} is {quote(header_length)}; it must be a whole number up to the body's {body_size} bytes")
    return int(header_length)


def _read_input(entry: dict[str, Any]) -> HeaderInput:
    name = _text(entry.get("name"), "the name of an input")
    _check_keys(entry, _INPUT_KEYS, "input", name)
    parameters = _parameters(entry, "input", name)
    check_tensor_parameters("input", name, parameters)
    shape, datatype = check_shape(name, entry.get("shape")), _text(entry.get("datatype"), "the datatype of input", name)
    size = parameters.get("binary_data_size")
    if size is None:
        return HeaderInput(name, datatype, shape, 0, tensor_from_json(name, datatype, shape, entry.get("data")))
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise RequestError(f"input {quote(name)}: binary_data_size must be a whole number of bytes")
    if "data" in entry:
        raise RequestError(f"input {quote(name)} has data both in JSON and in binary form")
    return HeaderInput(name, datatype, shape, size, None)


def _cut_inputs(inputs: tuple[HeaderInput, ...], binary: memoryview) -> tuple[Tensor, ...]:
    found, start = [], 0
    for entry in inputs:
        if entry.tensor is not None:
            found.append(entry.tensor)
            continue
        end = start + entry.size
        if end > len(binary):
            raise RequestError(f"input {quote(entry.name)}: {entry.size} bytes should follow the JSON header, but {len(binary) - start} are left")
        found.append(tensor_from_bytes(entry.name, entry.datatype, entry.shape, binary[start:end]))
        start = end
    if start != len(binary):
        raise RequestError(f"{len(binary) - start} bytes after the JSON header belong to no input")
    return tuple(found)


def _read_output(entry: dict[str, Any]) -> str:
    name = _text(entry.get("name"), "the name of an output")
    _check_keys(entry, _OUTPUT_KEYS, "output", name)
    check_tensor_parameters("output", name, _parameters(entry, "output", name))
    return name


def _objects(key: str, value: object) -> list[dict[str, Any]]:
    if value is None:
        raise RequestError(f"the request has no {quote(key)}")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RequestError(f"{key} must be an array of objects")
    check_count(key, len(value))
    return value


def _text(value: object, *what: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{_join(what)} must be a string, not {json_type(value)}")
    return value


def _parameters(entry: dict[str, Any], *what: str) -> dict[str, Any]:
    parameters = entry.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(f"{_join(what)}: parameters must be an object, not {json_type(parameters)}")
    return parameters


def _flag(parameters: Mapping[str, object], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"the parameter {quote(name)} must be true or false")
    return value


def _check_keys(entry: Mapping[str, object], known: tuple[str, ...], *what: str) -> None:
    for key in entry:
        if key not in known:
            raise RequestError(f"{_join(what)}: there is no key {quote(key)}; there are {', '.join(known)}")


def _join(what: tuple[str, ...]) -> str:
    """What a message is about: a phrase, and the name that it ends with, if any."""
    return " ".join([what[0], *map(quote, what[1:])])
