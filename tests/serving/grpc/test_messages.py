"""Bytes of requests and answers, against protobuf's own reading of them."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from emberline.errors import RequestError
from emberline.serving.grpc import messages
from emberline.serving.grpc.messages import decode_infer, encode_infer
from emberline.serving.protocol.messages import InferRequest, InferResponse
from emberline.serving.protocol.tensors import Tensor

DTYPES = {"INT64": np.int64, "INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_}
NAMES = st.text(max_size=5)
SIZES = st.sampled_from([0, 1, 2, 7, 40, 5000])


def build(draw: st.DrawFn) -> Any:
    """A well-formed request with raw contents."""
    message = pb.ModelInferRequest(model_name=draw(NAMES), model_version=draw(NAMES), id=draw(st.one_of(NAMES, st.just("x" * 3000))))
    for number in range(draw(st.integers(0, 3))):
        datatype, size = draw(st.sampled_from(sorted(DTYPES))), draw(SIZES)
        message.inputs.add(name=f"{number}{draw(NAMES)}", datatype=datatype, shape=[1, size])
        values = np.random.default_rng(size).integers(0, 2, size).astype(DTYPES[datatype])
        message.raw_input_contents.append(values.tobytes())
    for number in range(draw(st.integers(0, 2))):
        message.outputs.add(name=f"out{number}")
    if draw(st.booleans()):
        message.parameters["timeout"].int64_param = 5000
    return message


def as_protobuf_reads(body: bytes) -> dict[str, Any]:
    message = pb.ModelInferRequest.FromString(body)
    return {
        "model": message.model_name,
        "version": message.model_version,
        "id": message.id,
        "inputs": [(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in message.inputs],
        "raw": list(message.raw_input_contents) or [b""] * len(message.inputs),  # of no values, neither raw nor typed
        "outputs": tuple(output.name for output in message.outputs) or None,
        "timeout_s": 0.005 if message.parameters else None,
    }


def told(request: InferRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "version": request.version,
        "id": request.id,
        "inputs": [(tensor.name, tensor.datatype, tensor.shape) for tensor in request.inputs],
        "raw": [tensor.values.tobytes() for tensor in request.inputs],
        "outputs": request.outputs,
        "timeout_s": request.timeout_s,
    }


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_requests_are_read_as_protobuf_reads_them(data: st.DataObject) -> None:
    message = data.draw(st.composite(build)())
    body = message.SerializeToString()
    assert told(decode_infer(body, None)) == as_protobuf_reads(body)
    # Protobuf lets fields come in any order, and takes the last of those that come twice.
    later = pb.ModelInferRequest(id="later", model_name="other").SerializeToString()
    for whole in (body + later, later + body):
        assert told(decode_infer(whole, None)) == as_protobuf_reads(whole)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_read_as_protobuf_reads_them(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.composite(build)()).SerializeToString() or b"\x0a\x00")
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, min(len(body) - 1, 200)))] = data.draw(st.integers(0, 255))
    damaged = bytes(body[: data.draw(st.integers(0, len(body)))])
    try:
        found = told(decode_infer(damaged, None))
    except RequestError:
        return
    want = as_protobuf_reads(damaged)
    assert {**found, "timeout_s": None} == {**want, "timeout_s": None}


def test_inputs_whose_raw_contents_became_another_field_are_those_without_values() -> None:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="ids", datatype="INT64", shape=[1, 0])
    damaged = message.SerializeToString() + b"\x42\x00"
    found = told(decode_infer(damaged, None))
    assert found == as_protobuf_reads(damaged)
    assert found["inputs"] == [("ids", "INT64", (1, 0))]


def test_a_head_is_read_once_whatever_the_id_and_the_values() -> None:
    messages._remembered_head.cache_clear()
    for number in range(5):
        message = pb.ModelInferRequest(model_name="m", id=f"request {number}")
        message.inputs.add(name="ids", datatype="INT64", shape=[1, 3])
        message.raw_input_contents.append(np.full(3, number).tobytes())
        found = decode_infer(message.SerializeToString(), 7.5)
        assert (found.id, found.inputs[0].values.tolist(), found.timeout_s) == (f"request {number}", [number] * 3, 7.5)
    assert messages._remembered_head.cache_info().misses == 1


def test_many_tiny_fields_are_refused_in_no_time() -> None:
    with pytest.raises(RequestError, match="raw_input_contents has 100000 entries for 0 inputs"):
        decode_infer(b"\x3a\x00" * 100_000, None)
    with pytest.raises(RequestError, match="the request has 100000 inputs; it may have 4096"):
        decode_infer(b"\x2a\x00" * 100_000, None)
    outputs = pb.ModelInferRequest(outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=str(number)) for number in range(5000)])
    with pytest.raises(RequestError, match="the request has 5000 outputs; it may have 4096"):
        decode_infer(outputs.SerializeToString(), None)
    del outputs.outputs[4096:]
    assert decode_infer(outputs.SerializeToString(), None).outputs == tuple(map(str, range(4096)))


def test_values_are_those_bytes_not_a_copy() -> None:
    message = pb.ModelInferRequest()
    message.inputs.add(name="known", datatype="BOOL", shape=[1, 1000])
    message.raw_input_contents.append(bytes(1000))
    body = message.SerializeToString()
    (tensor,) = decode_infer(body, None).inputs
    assert np.shares_memory(tensor.values, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("body", [b"\x0a", b"\x0a\x05ab", b"\xff" * 9, b"\x3a\xff\xff\xff\xff\x7f", b"\x1a\x02\xc3\x28\x3a\x00", b"\x08"])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match=r"the request is no ModelInferRequest of protobuf|raw_input_contents has 1 entries for 0 inputs"):
        decode_infer(body, None)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 300_000])
@pytest.mark.parametrize("request_id", ["", "an id"])
def test_answers_are_what_protobuf_would_write(size: int, request_id: str) -> None:
    values = np.arange(size, dtype=np.float32)
    response = InferResponse(
        model="m", version="3", id=request_id, outputs=(Tensor("a", "FP32", (1, size), values), Tensor("b", "BOOL", (1, 2), np.array([True, False])))
    )
    found = pb.ModelInferResponse.FromString(encode_infer(response))
    assert found == pb.ModelInferResponse(
        model_name="m",
        model_version="3",
        id=request_id,
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name="a", datatype="FP32", shape=[1, size]),
            pb.ModelInferResponse.InferOutputTensor(name="b", datatype="BOOL", shape=[1, 2]),
        ],
        raw_output_contents=[struct.pack(f"<{size}f", *values), b"\x01\x00"],
    )
