"""Answers as tensors, whatever their layout in memory."""

import json

import numpy as np
import pytest
import torch
from tritonclient.grpc import service_pb2 as pb

from emberline.serving.grpc import messages
from emberline.serving.http.infer import decode_infer, encode_infer
from emberline.serving.protocol.messages import InferResponse
from emberline.serving.protocol.packing import answer_tensors

WHOLE = torch.arange(12, dtype=torch.float32).reshape(3, 4)
ANSWERS = {"column": WHOLE[:, 1], "columns": WHOLE[:, 1:3], "turned": WHOLE.t(), "whole": WHOLE, "one": WHOLE[:1, 3], "none": WHOLE[:0, 2]}


@pytest.mark.parametrize("name", ANSWERS)
def test_values_are_in_one_piece_row_after_row(name: str) -> None:
    (tensor,) = answer_tensors(ANSWERS, (name,))
    assert (tensor.name, tensor.datatype, tensor.shape) == (name, "FP32", (1, *ANSWERS[name].shape))
    assert tensor.values.tolist() == ANSWERS[name].flatten().tolist()
    assert tensor.values.flags.c_contiguous


def test_answers_with_strides_can_be_written_in_every_form() -> None:
    response = InferResponse(model="m", version="1", id="", outputs=answer_tensors(ANSWERS, ("column", "turned")))
    want = [ANSWERS[name].flatten().tolist() for name in ("column", "turned")]
    raw = pb.ModelInferResponse.FromString(messages.encode_infer(response)).raw_output_contents
    assert [np.frombuffer(one, np.float32).tolist() for one in raw] == want
    asked = decode_infer(b'{"inputs": []}', None, "m", "")
    (body,), _ = encode_infer(response, asked)
    assert [output["data"] for output in json.loads(bytes(body))["outputs"]] == want


def test_answers_in_one_piece_are_not_copied() -> None:
    (tensor,) = answer_tensors(ANSWERS, ("whole",))
    assert np.shares_memory(tensor.values, WHOLE.numpy())
