"""Named tensors of KServe v2 messages, from JSON numbers or from raw bytes, checked against the shape and datatype they claim."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emberline.errors import RequestError
from emberline.serving.protocol.strict_json import json_type, quote

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP32": np.dtype("<f4"),
}
"""The datatypes that a model's tensors can have."""

MAX_DIMENSIONS = 8
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named tensor: its KServe datatype, its shape, and its values as a flat little-endian array."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: np.ndarray[Any, Any]


def check_shape(name: str, shape: object) -> tuple[int, ...]:
    """A shape from a message: a list of whole numbers, none negative."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not 0 < len(shape) <= MAX_DIMENSIONS:
        raise RequestError(f"input {quote(name)}: the shape must be a list of 1 to {MAX_DIMENSIONS} sizes, such as [1, 26]")
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise RequestError(f"input {quote(name)}: the shape holds {quote(size)}; sizes are whole numbers, none negative")
    return tuple(shape)


def check_datatype(name: str, datatype: object) -> np.dtype[Any]:
    """The numpy type of a KServe datatype."""
    found = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if found is None:
        raise RequestError(f"input {quote(name)}: the datatype {quote(datatype)} is not supported; there are {', '.join(DTYPES)}")
    return found


def tensor_from_bytes(name: str, datatype: str, shape: tuple[int, ...], buffer: Buffer) -> Tensor:
    """A tensor from its little-endian bytes; no copy unless they are badly aligned.

    Raises:
        RequestError: the byte count does not fit shape and datatype.
    """
    dtype = check_datatype(name, datatype)
    expected = math.prod(shape) * dtype.itemsize
    if len(buffer) != expected:
        raise RequestError(f"input {quote(name)}: shape {list(shape)} of {datatype} takes {expected} bytes, but {len(buffer)} came")
    values: np.ndarray[Any, Any] = np.frombuffer(buffer, dtype=dtype)
    return Tensor(name, datatype, shape, values if values.flags.aligned else values.copy())


def tensor_from_json(name: str, datatype: str, shape: tuple[int, ...], data: object) -> Tensor:
    """A tensor from JSON numbers, flat or nested, in row-major order.

    Integers stay exact; a number with a fraction or exponent, true, false, null or a string is no integer.

    Raises:
        RequestError: the values' number or type does not fit shape and datatype, or one is out of range.
    """
    dtype = check_datatype(name, datatype)
    if not isinstance(data, list):
        raise RequestError(f"input {quote(name)}: data must be an array, not {json_type(data)}")
    flat = _flatten(name, data, len(shape))
    expected = math.prod(shape)
    if len(flat) != expected:
        raise RequestError(f"input {quote(name)}: shape {list(shape)} takes {expected} values, but {len(flat)} came")
    return Tensor(name, datatype, shape, _to_array(name, dtype, flat))


def tensor_from_numbers(name: str, datatype: str, shape: tuple[int, ...], numbers: Sequence[int] | Sequence[float] | Sequence[bool]) -> Tensor:
    """A tensor from values that a typed message field already holds as numbers of the right kind."""
    dtype = check_datatype(name, datatype)
    expected = math.prod(shape)
    if len(numbers) != expected:
        raise RequestError(f"input {quote(name)}: shape {list(shape)} takes {expected} values, but {len(numbers)} came")
    return Tensor(name, datatype, shape, np.array(numbers, dtype=dtype))


def _flatten(name: str, data: list[Any], depth: int) -> list[Any]:
    for _ in range(depth - 1):
        if list not in set(map(type, data)):
            break
        if any(type(item) is not list for item in data):
            raise RequestError(f"input {quote(name)}: data mixes arrays and numbers")
        data = [value for item in data for value in item]
    if list in set(map(type, data)):
        raise RequestError(f"input {quote(name)}: data is nested deeper than its shape")
    return data


_ALLOWED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "b": ((bool,), "true or false"),
    "i": ((int,), "integers"),
    "f": ((int, float), "numbers"),
}
"""By kind of numpy type: the Python types that JSON may bring, and what to call them."""


def _to_array(name: str, dtype: np.dtype[Any], flat: list[Any]) -> np.ndarray[Any, Any]:
    allowed, wanted = _ALLOWED[dtype.kind]
    if not set(map(type, flat)) <= set(allowed):
        place = next(index for index, value in enumerate(flat) if type(value) not in allowed)
        raise RequestError(f"input {quote(name)}: value {place} is {_show(flat[place])}; its datatype takes {wanted}")
    if dtype.kind == "b":
        return np.array(flat, dtype=dtype)
    low, high = _limits(dtype)
    try:
        wide = np.array(flat, dtype=np.float64 if dtype.kind == "f" else np.int64)
        fits = not wide.size or bool(low <= wide.min() and wide.max() <= high)
    except OverflowError:
        fits = False
    if not fits:
        place = next(index for index, value in enumerate(flat) if not low <= value <= high)
        raise RequestError(f"input {quote(name)}: value {place} is {_show(flat[place])}; its datatype takes {low} to {high}")
    return wide.astype(dtype, copy=False)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int] | tuple[float, float]:
    if dtype.kind == "i":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return float(np.finfo(dtype).min), float(np.finfo(dtype).max)


def _show(value: object) -> str:
    if isinstance(value, str):
        return f"the string {quote(value)}"
    return json_type(value) if value is None or isinstance(value, bool | list | dict) else str(value)[:80]
