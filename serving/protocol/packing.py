"""From a v2 request's tensors to what the engine takes, and from its answers to v2 tensors."""

from collections.abc import Mapping

import numpy as np
import torch

from emberline.errors import RequestError
from emberline.schema import ModelSchema
from emberline.serving.protocol.messages import check_names
from emberline.serving.protocol.strict_json import quote
from emberline.serving.protocol.tensors import Tensor
from emberline.serving.protocol.wire import WireTensor
from emberline.serving.request import PackedRequest

_DATATYPES = {torch.float32: "FP32", torch.bool: "BOOL", torch.int64: "INT64"}


def pack_inputs(declared: Mapping[str, WireTensor], inputs: tuple[Tensor, ...]) -> PackedRequest:
    """The named tensors of a request as the engine's packed form.

    Args:
        declared: the model's inputs by name.
        inputs: what came.

    Raises:
        RequestError: a name is unknown, missing or comes twice, or a datatype is wrong; the message names the tensor.
    """
    check_names("the input", [tensor.name for tensor in inputs])
    for tensor in inputs:
        if tensor.name not in declared:
            raise RequestError(f"the model has no input {quote(tensor.name)}; it takes {', '.join(declared)}")
        datatypes = declared[tensor.name].datatypes
        if tensor.datatype not in datatypes:
            raise RequestError(f"input {quote(tensor.name)} must be {' or '.join(datatypes)}, found {tensor.datatype}")
    arrays = {tensor.name: tensor.values.reshape(tensor.shape) for tensor in inputs}
    for name, wanted in declared.items():
        if name not in arrays and not wanted.optional:
            raise RequestError(f"input {quote(name)} is missing; the model takes {', '.join(declared)}")
    return PackedRequest(**arrays)


def estimate_rows(schema: ModelSchema, request: PackedRequest) -> int:
    """B, from the sizes alone: what the scheduler counts with before the request is checked."""
    if request.lengths is not None and schema.sparse_features:
        return request.lengths.size // len(schema.sparse_features)
    if request.dense is not None and schema.dense_dim:
        return request.dense.size // schema.dense_dim
    return request.steps.size // len(schema.sequences) if request.steps is not None and schema.sequences else 0


def empty_row(schema: ModelSchema) -> PackedRequest:
    """A request of one row with nothing in it."""
    return PackedRequest(
        ids=np.empty(0, np.int64),
        lengths=np.zeros(len(schema.sparse_features), np.int32),
        dense=np.zeros(schema.dense_dim, np.float32),
        steps=np.zeros(len(schema.sequences), np.int32),
        step_lengths=np.empty(0, np.int32),
        dense_steps=np.empty(0, np.float32),
    )


def answer_tensors(answers: Mapping[str, torch.Tensor], names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The named answers, each with the leading 1 that Triton's batch dimension has."""
    found = []
    for name in names:
        answer = answers[name]
        values: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = answer.cpu().contiguous().numpy()
        found.append(Tensor(name, _DATATYPES[answer.dtype], (1, *answer.shape), values.reshape(-1)))
    return tuple(found)
