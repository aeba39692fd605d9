"""Requests that are nearly right: seeded, and made from valid ones by one to three small wrongs that know where lengths, types and names are."""

import copy
import json
import math
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63), 2**64, 10**40, 0.5, -0.0, 1e308, 1e-320, math.nan, math.inf, -math.inf,
    "", "0", "-9", "9" * 400, "\x00", "\ud800", "\u202e", "../..", "x" * 5000, "NaN", [], [[]], [[[[]]]], {}, {"": {}}, {"a": [1, {"b": None}]},
)  # fmt: skip
"""What no field expects."""
DATATYPES = ("INT64", "INT32", "FP32", "FP64", "BOOL", "BYTES", "UINT8", "FP16", "", "int64")
NUMBERS = (0, 1, -1, 7, 2**16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30)
HEADS = (
    b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked",
    b"Content-Encoding: gzip", b"Content-Encoding: deflate", b"Content-Encoding: br", b"Expect: 100-continue", b"Connection: close",
    b"Connection: upgrade\r\nUpgrade: h2c", b"Inference-Header-Content-Length: 3", b"Inference-Header-Content-Length: -1", b"Host: ",
    b"Inference-Header-Content-Length: 99999999999", b"X-Request-Id: \xff\xfe", b"X: " + b"y" * 5000, b"Content-Type: text/xml", b": no name",
)  # fmt: skip


@dataclass(frozen=True)
class HttpRequest:
    """A request of HTTP whose framing is right, or (`is_framed` false) may be anything."""

    data: bytes
    is_framed: bool = True


class Mutator:
    """Makes requests from valid ones.

    Args:
        seed: the same requests for the same seed.
        infer: a v2 request, as JSON.
        rows: a request of plain rows.
        limit: most bytes that the server takes.
    """

    def __init__(self, seed: int, infer: dict[str, Any], rows: dict[str, Any], limit: int) -> None:
        self.random, self._infer, self._rows, self._limit = random.Random(seed), infer, rows, limit

    def json_request(self) -> HttpRequest:
        """Plain rows or v2 as JSON: values, types, keys, depth and text."""
        is_rows = self.random.random() < 0.5
        value = copy.deepcopy(self._rows if is_rows else self._infer)
        for _ in range(self.random.randint(1, 3)):
            self._change(value)
        text = self._text(json.dumps(value).encode("utf-8", "surrogatepass"))
        path = self.random.choice(("/v1/models/toy:predict", "/v1/models/toy:lookup")) if is_rows else "/v2/models/toy/infer"
        return HttpRequest(frame(path, text))

    def binary_request(self) -> HttpRequest:
        """v2 with binary tensors: sizes, the header's length, datatypes, shapes, and the bytes themselves."""
        header, parts = self._binary()
        for _ in range(self.random.randint(0, 2)):
            self._change(header)
        text, binary = self._text(json.dumps(header).encode("utf-8", "surrogatepass"), 0.1), bytearray(b"".join(parts))
        self._flip(binary, self.random.choice((0, 0, 1, 8, 64)))
        if self.random.random() < 0.2:
            binary = binary[: self.random.randrange(len(binary) + 1)]
        if self.random.random() < 0.1:
            binary += self.random.randbytes(self.random.choice((1, 7, 8, 5000)))
        size = (
            str(len(text)) if self.random.random() < 0.8 else str(self.random.choice((*NUMBERS, "", "x", len(text) - 1, len(text) + 1, "+3", "0x3")))
        )
        return HttpRequest(frame("/v2/models/toy/infer", text + binary, b"Inference-Header-Content-Length: " + size.encode()))

    def raw_request(self) -> HttpRequest:
        """Bytes whose framing is wrong, cut, doubled, compressed or pipelined."""
        good = frame("/v1/models/toy:predict", json.dumps(self._rows).encode())
        return HttpRequest(self.random.choice(self._framings())(good), is_framed=False)

    def grpc_call(self) -> tuple[str, bytes]:
        """A call's name and its message: fields, sizes, and the bytes themselves."""
        if self.random.random() < 0.15:
            name = self.random.choice(("ModelConfig", "ModelMetadata", "ModelReady", "ModelStatistics", "RepositoryIndex", "ServerMetadata"))
            return name, self.random.randbytes(self.random.randrange(40))
        message = self._message()
        for _ in range(self.random.randint(0, 2)):
            self.random.choice(_CHANGES)(self.random, message)
        data = bytearray(message.SerializeToString())
        if self.random.random() < 0.5:
            self._flip(data, self.random.choice((1, 2, 16)))
        if self.random.random() < 0.2:
            data = data[: self.random.randrange(len(data) + 1)]
        if self.random.random() < 0.1:
            data = data + data
        return "ModelInfer", bytes(data)

    def _framings(self) -> tuple[Callable[[bytes], bytes], ...]:
        return (self._flipped, self._cut, self._with_field, self._chunked, self._bomb, lambda good: good * self.random.randint(2, 20), self._line)

    def _flipped(self, good: bytes) -> bytes:
        data = bytearray(good)
        self._flip(data, self.random.choice((1, 2, 5)))
        return bytes(data)

    def _cut(self, good: bytes) -> bytes:
        return good[: self.random.randrange(len(good))]

    def _with_field(self, good: bytes) -> bytes:
        line, rest = good.split(b"\r\n", 1)
        return b"\r\n".join([line, *self.random.sample(HEADS, self.random.randint(1, 2)), rest])

    def _chunked(self, good: bytes) -> bytes:
        head, body = good.split(b"\r\n\r\n", 1)
        head = b"\r\n".join([one for one in head.split(b"\r\n") if not one.startswith(b"Content-Length")]) + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        step = self.random.randint(1, len(body))
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[start : start + step] for start in range(0, len(body), step))]
        whole = head + b"".join([*chunks, b"0\r\n\r\n"])
        return self.random.choice((self._flipped, self._cut, lambda data: data))(whole)

    def _bomb(self, good: bytes) -> bytes:
        kind, wbits = self.random.choice(((b"gzip", 31), (b"deflate", 15)))
        packer = zlib.compressobj(wbits=wbits)
        plain = b" " * self.random.choice((self._limit - 100, self._limit + 1, 20 * self._limit)) + good.split(b"\r\n\r\n", 1)[1]
        body = packer.compress(plain) + packer.flush()
        if self.random.random() < 0.3:
            body = body[: self.random.randrange(len(body))]
        return frame("/v1/models/toy:predict", body, b"Content-Encoding: " + kind)

    def _line(self, good: bytes) -> bytes:
        _, rest = good.split(b"\r\n", 1)
        path = self.random.choice(
            (b"/", b"*", b"/v2/models//infer", b"/v1/models/toy:", b"/v2/models/%00/infer", b"/" + b"a" * 9000, b"http://x:y/v2", b"")
        )
        method = self.random.choice((b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"\x16\x03\x01"))
        return b" ".join([method, path, self.random.choice((b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""))]) + b"\r\n" + rest

    def _change(self, value: Any) -> None:
        """One wrong somewhere in plain data."""
        places = list(_places(value))
        if not places:
            return
        holder, key = self.random.choice(places)
        act = self.random.randrange(6)
        if act == 0:
            del holder[key]
        elif act == 1 and isinstance(holder, dict):
            holder[self.random.choice(("", "ids", "rows", "\x00", key + "x", "__class__"))] = holder.pop(key)
        elif act == 2 and isinstance(holder, list):
            holder.extend([holder[key]] * self.random.choice((1, 2, 300)))
        elif act == 3:
            nested: Any = self.random.choice(ODD)
            for _ in range(self.random.choice((1, 5, 200))):
                nested = self.random.choice(([nested], {"a": nested}))
            holder[key] = nested
        elif act == 4 and key == "datatype":
            holder[key] = self.random.choice(DATATYPES)
        else:
            holder[key] = self.random.choice((*ODD, *NUMBERS))

    def _text(self, text: bytes, share: float = 0.3) -> bytes:
        """Now and then a wrong of the text itself."""
        if self.random.random() > share:
            return text
        act, data = self.random.randrange(6), bytearray(text)
        if act == 0:
            self._flip(data, self.random.choice((1, 3)))
        elif act == 1:
            data = data[: self.random.randrange(len(data) + 1)]
        elif act == 2:
            data = data.replace(b'"rows"', b'"rows": [], "rows"').replace(b'"inputs"', b'"inputs": [], "inputs"')
        elif act == 3:
            depth = self.random.choice((100, 3000))
            data = bytearray(b"[" * depth + data + b"]" * self.random.choice((0, depth)))
        elif act == 4:
            data += self.random.choice((b" ", b"}", b"{}", b"\x00", b"\xff", text))
        else:
            data = data.replace(b"1", self.random.choice((b"1e999", b"-", b"01", b"1.", b"NaN", b"9" * 5000, b"1e-999")), 1)
        return bytes(data)

    def _flip(self, data: bytearray, times: int) -> None:
        for _ in range(times if data else 0):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)

    def _binary(self) -> tuple[dict[str, Any], list[bytes]]:
        header, parts = copy.deepcopy(self._infer), []
        for entry in header["inputs"]:
            message = _tensor(entry)
            parts.append(message)
            del entry["data"]
            entry["parameters"] = {"binary_data_size": len(message)}
        header["parameters"] = {"binary_data_output": self.random.random() < 0.5}
        return header, parts

    def _message(self) -> Any:
        message = pb.ModelInferRequest(model_name="toy", id="7")
        for entry in self._infer["inputs"]:
            tensor = message.inputs.add(name=entry["name"], datatype=entry["datatype"], shape=entry["shape"])
            if self.random.random() < 0.2:
                kind = {"INT64": "int64_contents", "INT32": "int_contents", "FP32": "fp32_contents"}[entry["datatype"]]
                getattr(tensor.contents, kind).extend(entry["data"])
            else:
                message.raw_input_contents.append(_tensor(entry))
        return message


def frame(path: str, body: bytes, *fields: bytes) -> bytes:
    """A request with its right length."""
    return b"\r\n".join([b"POST %b HTTP/1.1" % path.encode(), b"Host: x", *fields, b"Content-Length: %d" % len(body), b"", body])


def _tensor(entry: dict[str, Any]) -> bytes:
    kinds = {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4"}
    return np.asarray(entry["data"], kinds[entry["datatype"]]).tobytes()


def _places(value: Any) -> Any:
    """Every holder and key in plain data."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()):
        yield value, key
        yield from _places(inner)


def _names(source: random.Random, message: Any) -> None:
    for one in message.inputs:
        if source.random() < 0.5:
            one.name = source.choice(("", "ids", "nothing", "\x00", "x" * 9000))


def _shapes(source: random.Random, message: Any) -> None:
    for one in message.inputs:
        if source.random() < 0.5:
            one.shape.append(source.choice([number for number in NUMBERS if number < 2**63]))


def _types(source: random.Random, message: Any) -> None:
    for one in message.inputs:
        one.datatype = source.choice(DATATYPES)


def _bytes(source: random.Random, message: Any) -> None:
    for place, one in enumerate(message.raw_input_contents):
        if source.random() < 0.5:
            message.raw_input_contents[place] = source.choice((b"", one[:-1], one * 3, source.randbytes(len(one)), b"\xff" * len(one)))


def _counts(source: random.Random, message: Any) -> None:
    message.raw_input_contents.append(b"12345678")
    if message.inputs and source.random() < 0.5:
        message.inputs.append(message.inputs[0])


def _rest(source: random.Random, message: Any) -> None:
    message.model_version = source.choice(("1", "2", "", "-1", "9" * 50, "x"))
    message.parameters["timeout"].int64_param = source.choice((0, -1, 1, 2**62))
    message.outputs.add(name=source.choice(("probs", "", "lookup.deep", "none", "known")))


_CHANGES = (_names, _shapes, _types, _bytes, _counts, _rest)
