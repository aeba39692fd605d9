"""From a v2 request's tensors to what the engine takes, and from its answers to v2 tensors."""

from collections.abc import Mapping

import numpy as np
import torch

from emberline.errors import RequestError
from emberline.schema import ModelSchema
from emberline.serving.protocol.messages import check_names
from emberline.serving.protocol.strict_json import quote
from emberline.serving.protocol.tensors import Tensor
from emberline.serving.protocol.wire import wire_inputs
from emberline.serving.request import PackedRequest

_DATATYPES = {"f": "FP32", "b": "BOOL", "i": "INT64"}
"""By numpy's kind of a type: answers have no others."""


class Packer:
    """Packs requests for one model; what it needs of the schema is looked up once, since it is asked for every request.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._declared = {tensor.name: tensor for tensor in wire_inputs(schema)}
        self._required = frozenset(tensor.name for tensor in self._declared.values() if not tensor.optional)
        self._num_features, self._dense_dim, self._num_sequences = len(schema.sparse_features), schema.dense_dim, len(schema.sequences)

    def pack(self, inputs: tuple[Tensor, ...]) -> PackedRequest:
        """The named tensors of a request as the engine's packed form.

        Args:
            inputs: what came.

        Raises:
            RequestError: a name is unknown, missing or comes twice, or a datatype is wrong; the message names the tensor.
        """
        # [1, n] is given on as [n], which the engine reads by its shortest way; any other shape as it is, to be refused by name.
        arrays = {tensor.name: tensor.values if is_flat(tensor.shape) else tensor.values.reshape(tensor.shape) for tensor in inputs}
        if len(arrays) != len(inputs):
            check_names("the input", [tensor.name for tensor in inputs])
        declared = self._declared
        for tensor in inputs:
            if tensor.name not in declared:
                raise RequestError(f"the model has no input {quote(tensor.name)}; it takes {', '.join(declared)}")
            datatypes = declared[tensor.name].datatypes
            if tensor.datatype not in datatypes:
                raise RequestError(f"input {quote(tensor.name)} must be {' or '.join(datatypes)}, found {tensor.datatype}")
        if not self._required <= arrays.keys():
            name = next(name for name in declared if name in self._required and name not in arrays)
            raise RequestError(f"input {quote(name)} is missing; the model takes {', '.join(declared)}")
        return PackedRequest(**arrays)

    def num_rows(self, request: PackedRequest) -> int:
        """B, from the sizes alone: what limits and the scheduler count with before the request is checked. Of a tiled request its users, if more."""
        if request.rows_per_user is not None:
            return max(int(request.rows_per_user.sum(dtype=np.float64)), request.rows_per_user.size)
        if request.lengths is not None and self._num_features:
            return request.lengths.size // self._num_features
        if request.dense is not None and self._dense_dim:
            return request.dense.size // self._dense_dim
        return request.steps.size // self._num_sequences if request.steps is not None and self._num_sequences else 0


def is_flat(shape: tuple[int, ...]) -> bool:
    """Whether a tensor's shape is [n] or [1, n], the only ones that requests have."""
    return len(shape) == 1 or (len(shape) == 2 and shape[0] == 1)


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
    """The named answers, each with the leading 1 that Triton's batch dimension has, its values in one piece whatever strides a program gave it."""
    found = []
    for name in names:
        values: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = answers[name].numpy(force=True)
        found.append(Tensor(name, _DATATYPES[values.dtype.kind], (1, *values.shape), values.ravel()))
    return tuple(found)
