"""What a server says of itself and its models, as plain JSON data in the form of Triton's own answers."""

import json
from collections.abc import Iterable
from typing import Any

from emberline import __version__
from emberline.schema import ModelSchema
from emberline.serving.model_state import ModelState
from emberline.serving.protocol.wire import WireTensor, wire_inputs, wire_outputs
from emberline.serving.triton.config import SCHEMA_PARAMETER, VERSION_PARAMETER

EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "model_repository(unload_dependents)", "parameters", "statistics")


def server_metadata() -> dict[str, Any]:
    """Name, version and protocol extensions."""
    return {"name": "emberline", "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(name: str, version: int, schema: ModelSchema) -> dict[str, Any]:
    """A model's versions, inputs and outputs."""

    def describe(tensor: WireTensor) -> dict[str, Any]:
        return {"name": tensor.name, "datatype": tensor.datatypes[0], "shape": [-1, *tensor.dims]}

    return {
        "name": name,
        "versions": [str(version)],
        "platform": "emberline",
        "inputs": [describe(tensor) for tensor in wire_inputs(schema)],
        "outputs": [describe(tensor) for tensor in wire_outputs(schema)],
    }


def model_config(name: str, version: int, schema: ModelSchema) -> dict[str, Any]:
    """A model's config as `/config` shows it; its parameters are those of the config that Triton gets."""

    def data_type(tensor: WireTensor) -> str:
        return "TYPE_" + tensor.datatypes[0]

    inputs = [
        {"name": tensor.name, "data_type": data_type(tensor), "dims": list(tensor.dims), "optional": tensor.optional, "allow_ragged_batch": True}
        for tensor in wire_inputs(schema)
    ]
    outputs = [{"name": tensor.name, "data_type": data_type(tensor), "dims": list(tensor.dims)} for tensor in wire_outputs(schema)]
    return {
        "name": name,
        "platform": "",
        "backend": "emberline",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 1,
        "input": inputs,
        "output": outputs,
        "parameters": {
            SCHEMA_PARAMETER: {"string_value": json.dumps(schema.to_dict(), separators=(",", ":"))},
            VERSION_PARAMETER: {"string_value": str(version)},
        },
    }


def repository_index(states: Iterable[ModelState], taking_requests: bool, *, only_ready: bool = False) -> list[dict[str, str]]:
    """Each model's name, version, state and what is wrong with it; where the server stops, none is ready."""
    found = []
    for model in states:
        is_ready = bool(model.version) and taking_requests
        if is_ready or not only_ready:
            found.append({"name": model.name, "version": model.version, "state": "READY" if is_ready else "UNAVAILABLE", "reason": model.reason})
    return found
