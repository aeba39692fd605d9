"""What `soak.py` sends over gRPC: as over HTTP, good requests of every form and malformed ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2 as pb

from benchmarks._serving_model import ANSWER, FEATURES, NAME, WIDTH, Data
from benchmarks._soak_requests import Bad, Bags, Good, draw_bags

INFER = "ModelInfer"
_CONTENTS = {"ids": ("INT64", "int64_contents"), "lengths": ("INT32", "int_contents")}


def good_calls(data: Data) -> list[Good]:
    """Raw contents, with an id and compressed too, and typed ones, with bags of every kind."""
    found = []
    for name, bags in draw_bags(data, np.random.default_rng(5)).items():
        want = bags.answer(data)
        raw, typed = message(bags), message(bags, typed=True)
        with_id = message(bags)
        with_id.id = f"request of {name}"
        for form, sent, compressed in (("raw", raw, False), ("with an id", with_id, False), ("gzip", raw, True), ("typed", typed, False)):
            found.append(Good(f"{form}, {name}", sent.SerializeToString(), _reader(sent.id), want, call=INFER, compressed=compressed))
    return found


def message(bags: Bags, *, typed: bool = False) -> Any:
    """A `ModelInferRequest`."""
    request = pb.ModelInferRequest(model_name=NAME)
    request.outputs.add(name=ANSWER)
    for name, values in (("ids", bags.ids), ("lengths", bags.lengths)):
        datatype, field = _CONTENTS[name]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[1, values.size])
        if typed:
            getattr(tensor.contents, field).extend(values.tolist())
        else:
            request.raw_input_contents.append(values.tobytes())
    return request


def _reader(request_id: str) -> Callable[[dict[str, str], bytes], npt.NDArray[np.float32]]:
    def read(headers: dict[str, str], body: bytes) -> npt.NDArray[np.float32]:
        answer = pb.ModelInferResponse.FromString(body)
        if answer.id != request_id or [output.name for output in answer.outputs] != [ANSWER]:
            raise ValueError(f"an answer to {answer.id!r}, with {len(answer.outputs)} outputs")
        return np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(-1, WIDTH)

    return read


def bad_calls(data: Data, backend: str) -> list[Bad]:
    """Malformed in every layer: TCP, HTTP/2, protobuf, tensors, ids."""
    row = Bags(data.draw(1, np.random.default_rng(9)).reshape(-1), np.ones(len(FEATURES), np.int32))
    whole = message(row).SerializeToString()

    def changed(change: Callable[[Any], object], *, typed: bool = False) -> bytes:
        request = message(row, typed=typed)
        change(request)
        return bytes(request.SerializeToString())

    def with_values(place: int, values: npt.NDArray[Any]) -> bytes:
        def change(request: Any) -> None:
            request.inputs[place].shape[1] = values.size
            request.raw_input_contents[place] = values.tobytes()

        return changed(change)

    outside = np.where(np.arange(row.ids.size) == 3, data.num_rows, row.ids)
    negative = np.where(np.arange(row.lengths.size) == 2, -1, row.lengths).astype(np.int32)
    calls = {
        "message cut short": whole[:-20],
        "no protobuf": b"\x00\xff\xfe" * 50,
        "empty message": b"",
        "raw contents missing": changed(lambda request: request.raw_input_contents.pop()),
        "tensors cut short": changed(lambda request: _replace(request, 0, row.ids.tobytes()[:-7])),
        "tensors too long": changed(lambda request: _replace(request, 1, row.lengths.tobytes() + b"1234")),
        "raw and typed": changed(lambda request: request.inputs[0].contents.int64_contents.append(1)),
        "typed in the wrong field": changed(lambda request: request.inputs[0].contents.int_contents.append(1), typed=True),
        "typed, one too many": changed(lambda request: request.inputs[0].contents.int64_contents.append(1), typed=True),
        "negative length": with_values(1, negative),
        "ids missing": with_values(0, row.ids[:-1]),
        "too many ids": with_values(0, np.append(row.ids, 1)),
        "no whole rows": with_values(1, row.lengths[:-1]),
        "id outside the table": with_values(0, outside),
        "negative size": changed(lambda request: request.inputs[0].shape.__setitem__(1, -1)),
        "wrong type": changed(lambda request: setattr(request.inputs[0], "datatype", "FP32")),
        "input twice": changed(lambda request: setattr(request.inputs[1], "name", "ids")),
        "unknown output": changed(lambda request: setattr(request.outputs[0], "name", "nothing")),
        "unknown model": changed(lambda request: setattr(request, "model_name", "other")),
        "a path for a model": changed(lambda request: setattr(request, "model_name", "../etc")),
    }
    if backend == "embedded":  # Triton takes the first ones and answers
        calls["raw contents too many"] = changed(lambda request: request.raw_input_contents.append(b""))
    found = [Bad(name, raw, call=INFER) for name, raw in calls.items()]
    found.append(Bad("unknown call", whole, call="ModelNothing"))
    found.append(Bad("a whole one, cancelled", whole, hangs_up=True, call=INFER))
    found.append(Bad("no HTTP/2", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"))
    found.append(Bad("half a preface", b"PRI * HTTP/2.0\r\n", hangs_up=True))
    found.append(Bad("broken frames", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 200, hangs_up=True))
    return found


def _replace(request: Any, place: int, values: bytes) -> None:
    request.raw_input_contents[place] = values
