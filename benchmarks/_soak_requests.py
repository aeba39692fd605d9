"""What `soak.py` sends over HTTP: good requests of every form with the answers that they must get, and malformed ones."""

import gzip
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks._serving_model import ANSWER, DIM, FEATURES, INT64_MIN, NAME, NUM_STATIC, WIDTH, Data
from benchmarks._serving_servers import INFER, LENGTH, binary, post

Ids = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
BOUND = 1e-5


@dataclass(frozen=True)
class Bags:
    """A request: ids [N], feature after feature, and lengths [F * B]."""

    ids: Ids
    lengths: Lengths

    @property
    def num_rows(self) -> int:
        """B."""
        return self.lengths.size // len(FEATURES)

    def answer(self, data: Data) -> npt.NDArray[np.float32]:
        """The vectors of each row's bags, added up: float32 [B, 448]."""
        found, end = np.zeros((self.num_rows, len(FEATURES), DIM)), 0
        for place, name in enumerate(FEATURES):
            lengths = self.lengths.reshape(len(FEATURES), -1)[place]
            start, end = end, end + int(lengths.sum())
            vectors = data.tables[name].numpy()[data.find_rows(name, self.ids[start:end])]
            np.add.at(found[:, place], np.repeat(np.arange(self.num_rows), lengths), vectors)
        return found.reshape(self.num_rows, WIDTH).astype(np.float32)


@dataclass(frozen=True)
class Good:
    """A request that must be answered.

    Args:
        name: of its kind.
        raw: the bytes to send.
        read: headers and body of an answer -> float32 [B, 448].
        want: the answer.
        call: over gRPC, the call whose message the bytes are.
        compressed: over gRPC, whether they are sent compressed.
    """

    name: str
    raw: bytes
    read: Callable[[dict[str, str], bytes], npt.NDArray[np.float32]]
    want: npt.NDArray[np.float32]
    call: str = ""
    compressed: bool = False

    def is_right(self, headers: dict[str, str], body: bytes) -> bool:
        """Whether an answer is the one that it must get."""
        return self.is_one_of([self.want], headers, body) == 0

    def is_one_of(self, wants: Sequence[npt.NDArray[np.float32]], headers: dict[str, str], body: bytes) -> int | None:
        """Which of some answers it is; None for none of them."""
        try:
            found = self.read(headers, body)
        except (KeyError, ValueError):  # it has another form
            return None
        for place, want in enumerate(wants):
            if found.shape == want.shape and np.allclose(found, want, rtol=BOUND, atol=BOUND):
                return place
        return None


@dataclass(frozen=True)
class Bad:
    """Bytes that must be refused.

    Args:
        name: of its kind.
        raw: the bytes to send.
        hangs_up: the caller leaves without an answer.
        call: over gRPC, the call whose message the bytes are; empty where they are for the socket.
        compressed: over gRPC, whether they are sent compressed.
    """

    name: str
    raw: bytes
    hangs_up: bool = False
    call: str = ""
    compressed: bool = False


def good_requests(data: Data, backend: str) -> list[Good]:
    """Every form, with bags of every kind."""
    source = np.random.default_rng(5)
    found = []
    for name, bags in draw_bags(data, source).items():
        want = bags.answer(data)
        found.append(Good(f"binary, {name}", post(INFER, *binary(bags.ids, bags.lengths)), read_binary, want))
        found.append(Good(f"JSON, {name}", post(INFER, {}, in_json(bags)), read_json, want))
        packed = {"Content-Encoding": "gzip"}
        headers, body = binary(bags.ids, bags.lengths)
        found.append(Good(f"gzip, {name}", post(INFER, headers | packed, gzip.compress(body)), read_binary, want))
        if backend == "embedded":
            found.append(Good(f"rows, {name}", post(f"/v1/models/{NAME}:lookup", {}, as_rows(bags)), read_rows, want))
    return found


def draw_bags(data: Data, source: np.random.Generator) -> dict[str, Bags]:
    """Requests with bags of every kind, by name."""

    def ones(num_rows: int) -> Bags:
        return Bags(data.draw(num_rows, source).reshape(-1), np.ones(num_rows * len(FEATURES), np.int32))

    def several(num_rows: int, most: int) -> Bags:
        lengths = source.integers(0, most + 1, num_rows * len(FEATURES)).astype(np.int32)
        totals = lengths.reshape(len(FEATURES), -1).sum(1)
        drawn = data.draw(int(totals.max()), source)
        return Bags(np.concatenate([drawn[place, :total] for place, total in enumerate(totals)]), lengths)

    def only(place: int, ids: list[int]) -> Bags:
        lengths = np.zeros((len(FEATURES), 1), np.int32)
        lengths[place] = len(ids)
        return Bags(np.array(ids, np.int64), lengths.reshape(-1))

    return {
        "one row": ones(1),
        "seven rows": ones(7),
        "a hundred rows": ones(100),
        "no rows": Bags(np.empty(0, np.int64), np.empty(0, np.int32)),
        "empty bags": Bags(np.empty(0, np.int64), np.zeros(3 * len(FEATURES), np.int32)),
        "several ids": several(20, 4),
        "one id": only(0, [0]),
        "a long bag": only(NUM_STATIC, [int(one) for one in source.choice(data.maps[FEATURES[NUM_STATIC]].raw_ids, 300)]),
        "ids at the ends": only(NUM_STATIC, [INT64_MIN, -1, 0, 2**53 + 1, 2**63 - 2, 2**63 - 1]),
    }


def in_json(bags: Bags) -> bytes:
    """A body with the values as JSON."""
    tensors = [
        {**_tensor(name, datatype, values.size), "data": values.tolist()}
        for name, datatype, values in (("ids", "INT64", bags.ids), ("lengths", "INT32", bags.lengths))
    ]
    return json.dumps({"inputs": tensors, "outputs": [{"name": ANSWER}]}).encode()


def as_rows(bags: Bags) -> bytes:
    """A body of plain rows; every second feature's ids are texts."""
    rows: list[dict[str, list[int] | list[str]]] = [{} for _ in range(bags.num_rows)]
    parts = iter(np.split(bags.ids, np.cumsum(bags.lengths)[:-1])) if bags.lengths.size else iter(())
    for place, name in enumerate(FEATURES):
        for row in rows:
            ids = next(parts).tolist()
            row[name] = [str(one) for one in ids] if place % 2 else ids
    return json.dumps({"rows": rows}).encode()


def read_binary(headers: dict[str, str], body: bytes) -> npt.NDArray[np.float32]:
    """The answer of a request with binary tensors; Triton leaves the header out where they are empty."""
    return np.frombuffer(body[int(headers.get(LENGTH.lower(), len(body))) :], np.float32).reshape(-1, WIDTH)


def read_json(headers: dict[str, str], body: bytes) -> npt.NDArray[np.float32]:
    """The answer of a request with JSON tensors."""
    (output,) = json.loads(body)["outputs"]
    return np.array(output["data"], np.float32).reshape(-1, WIDTH)


def read_rows(headers: dict[str, str], body: bytes) -> npt.NDArray[np.float32]:
    """The answer of plain rows."""
    return np.array(json.loads(body)["outputs"]["deep"], np.float32).reshape(-1, WIDTH)


def bad_requests(data: Data) -> list[Bad]:
    """Malformed in every layer: TCP, HTTP, JSON, tensors, ids."""
    row = Bags(data.draw(1, np.random.default_rng(9)).reshape(-1), np.ones(len(FEATURES), np.int32))
    headers, body = binary(row.ids, row.lengths)
    text = in_json(row)
    outside = Bags(np.where(np.arange(row.ids.size) == 3, data.num_rows, row.ids), row.lengths)
    negative = Bags(row.ids, np.where(np.arange(row.lengths.size) == 2, -1, row.lengths).astype(np.int32))
    whole = post(INFER, headers, body)
    return [
        Bad("JSON cut short", post(INFER, {}, text[:-20])),
        Bad("no JSON", post(INFER, {}, b"\x00\xff\xfe" * 50)),
        Bad("empty body", post(INFER, {}, b"")),
        Bad("header length too large", post(INFER, {LENGTH: str(len(body) + 1)}, body)),
        Bad("header length no number", post(INFER, {LENGTH: "many"}, body)),
        Bad("tensors cut short", post(INFER, headers, body[:-7])),
        Bad("tensors too long", post(INFER, headers, body + b"1234")),
        Bad("negative length", post(INFER, *binary(negative.ids, negative.lengths))),
        Bad("ids missing", post(INFER, *binary(row.ids[:-1], row.lengths))),
        Bad("too many ids", post(INFER, *binary(np.append(row.ids, 1), row.lengths))),
        Bad("no whole rows", post(INFER, *binary(row.ids[:-1], row.lengths[:-1]))),
        Bad("id outside the table", post(INFER, *binary(outside.ids, outside.lengths))),
        Bad("unknown output", post(INFER, *binary(row.ids, row.lengths, "nothing"))),
        Bad("unknown model", post("/v2/models/other/infer", headers, body)),
        Bad("unknown path", post("/v2/../etc/passwd", {}, b"{}")),
        Bad("wrong type", post(INFER, {}, text.replace(b"INT64", b"FP32"))),
        Bad("fraction as an id", post(INFER, {}, text.replace(b'"data": [', b'"data": [1.5, ', 1))),
        Bad("input twice", post(INFER, {}, text.replace(b'"lengths"', b'"ids"'))),
        Bad("wrong encoding", post(INFER, {**headers, "Content-Encoding": "gzip"}, body)),
        Bad("no HTTP", b"\x16\x03\x01\x02\x00" + struct.pack("<Q", 7) * 20 + b"\r\n\r\n"),
        Bad("half a request", whole[: len(whole) // 2], hangs_up=True),
        Bad("half a head", whole[:40], hangs_up=True),
        Bad("a whole one, not waited for", whole, hangs_up=True),
    ]


def _tensor(name: str, datatype: str, size: int) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": [1, size]}
