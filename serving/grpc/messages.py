"""v2 inference over gRPC: protobuf messages to the data plane's requests, and answers back."""

from collections.abc import Mapping, Sequence
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from emberline.errors import RequestError
from emberline.serving.protocol.messages import InferRequest, InferResponse, check_names, check_tensor_parameters, read_parameters
from emberline.serving.protocol.strict_json import quote
from emberline.serving.protocol.tensors import Tensor, check_shape, tensor_from_bytes, tensor_from_numbers

_FIELDS = {"BOOL": "bool_contents", "INT32": "int_contents", "INT64": "int64_contents", "FP32": "fp32_contents"}
"""Where a typed tensor's values are, by datatype."""


def decode_infer(message: Any, remaining_s: float | None) -> InferRequest:
    """Read a `ModelInferRequest`.

    Args:
        message: raw bytes for every input, or typed contents in each.
        remaining_s: seconds until the call's own deadline, if it has one.

    Raises:
        RequestError: it is malformed; the message names the tensor.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} inputs; send one for each, or none")
    inputs = tuple(_read_input(tensor, raw[place] if raw else None) for place, tensor in enumerate(message.inputs))
    for output in message.outputs:
        check_tensor_parameters("output", output.name, read_map(output.parameters))
    names = check_names("the output", [output.name for output in message.outputs])
    waits = [seconds for seconds in (read_parameters(read_map(message.parameters)), remaining_s) if seconds is not None]
    return InferRequest(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        inputs=inputs,
        outputs=names or None,
        timeout_s=min(waits, default=None),
    )


def encode_infer(response: InferResponse) -> Any:
    """The `ModelInferResponse`, its tensors as raw bytes."""
    return pb.ModelInferResponse(
        model_name=response.model,
        model_version=response.version,
        id=response.id,
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape) for tensor in response.outputs
        ],
        raw_output_contents=[tensor.values.tobytes() for tensor in response.outputs],
    )


def read_map(parameters: Mapping[str, Any]) -> dict[str, object]:
    """A message's parameters as plain values."""
    return {name: getattr(value, value.WhichOneof("parameter_choice") or "", None) for name, value in parameters.items()}


def _read_input(message: Any, raw: bytes | None) -> Tensor:
    name, datatype = message.name, message.datatype
    check_tensor_parameters("input", name, read_map(message.parameters))
    shape = check_shape(name, list(message.shape))
    filled = [field.name for field, _ in message.contents.ListFields()]
    if raw is not None:
        if filled:
            raise RequestError(f"input {quote(name)} has values both in raw_input_contents and in {filled[0]}")
        return tensor_from_bytes(name, datatype, shape, raw)
    field = _FIELDS.get(datatype)
    wrong = [other for other in filled if other != field]
    if field is not None and wrong:
        raise RequestError(f"input {quote(name)} is {datatype}: its values belong in {field}, found {wrong[0]}")
    numbers: Sequence[Any] = getattr(message.contents, field) if field is not None else ()
    return tensor_from_numbers(name, datatype, shape, numbers)
