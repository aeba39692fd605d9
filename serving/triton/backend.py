"""What runs inside Triton's Python backend: one model for all artifacts.

Triton hands over a list of requests and wants one response for each, in order. This module is imported by the thin `model.py` of each version.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack

from emberline.errors import EmberlineError, NotFoundError, OverloadedError, RequestError, ServingError, TooLargeError, UnavailableError
from emberline.serving.deltas.watcher import DEFAULT_PERIOD_S, DeltaWatcher
from emberline.serving.engine import Engine
from emberline.serving.log import start_logging
from emberline.serving.request import PackedRequest
from emberline.serving.triton.config import (
    ARTIFACT_PARAMETER,
    CACHE_PARAMETER,
    DELTA_POLL_PARAMETER,
    DELTAS_PARAMETER,
    FORMAT_PARAMETER,
    THREADS_PARAMETER,
)
from emberline.storage import join, to_place

_LOG = logging.getLogger(__name__)
_BAD_REQUEST = (RequestError, TooLargeError)
_BUSY = (OverloadedError, UnavailableError)


class TritonPythonModel:
    """The three methods that Triton calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the artifact that the configuration names, for the version and device that Triton chose.

        Raises:
            TritonModelException: numpy and Triton do not work together here, or the artifact does not open: the model is not served.
        """
        check_runtime()
        start_logging()
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        threads = parameters.get(THREADS_PARAMETER)
        try:
            self._engine = Engine.open(
                join(to_place(parameters[ARTIFACT_PARAMETER]), args["model_version"]),
                device=device_of(args),
                num_threads=int(threads) if threads else None,
                cache=Path(parameters[CACHE_PARAMETER]) if CACHE_PARAMETER in parameters else None,
                format=parameters.get(FORMAT_PARAMETER),
                deltas=int(parameters[DELTAS_PARAMETER]) if DELTAS_PARAMETER in parameters else None,
            )
        except EmberlineError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        poll_s = 0.0 if DELTAS_PARAMETER in parameters else float(parameters.get(DELTA_POLL_PARAMETER, DEFAULT_PERIOD_S))
        self._watcher = DeltaWatcher(self._engine, poll_s)
        self._given = tuple(tensor["name"] for tensor in config["input"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order; a bad one gets an error and spoils no other."""
        answers: list[Any] = []
        packed: list[tuple[int, PackedRequest, list[str]]] = []
        for place, request in enumerate(requests):
            answers.append(None)
            if request.is_cancelled():
                answers[place] = cancelled_response()
            else:
                packed.append((place, self._read(request), list(request.requested_output_names())))
        results = self._engine.predict_many([item[1] for item in packed], [item[2] for item in packed])
        for (place, _, names), result in zip(packed, results, strict=True):
            answers[place] = error_response(result) if isinstance(result, ServingError) else answer_response(result, names)
        return answers

    def finalize(self) -> None:
        """Let go of tables and programs."""
        self._watcher.close()
        del self._watcher, self._engine

    def _read(self, request: Any) -> PackedRequest:
        tensors = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self._given}
        return PackedRequest(**{name: host_array(tensor) for name, tensor in tensors.items() if tensor is not None})


class TritonLookupModel(TritonPythonModel):
    """The lookups alone: what the model's programs take, for a dense model that another backend runs."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        if request.is_cancelled():
            return cancelled_response()
        try:
            found = self._engine.program_inputs(self._read(request))
        except ServingError as error:
            return error_response(error)
        tensors = [pb_utils.Tensor(name, np.ascontiguousarray(found[name].cpu().numpy())) for name in request.requested_output_names()]
        return pb_utils.InferenceResponse(output_tensors=tensors)


def host_array(tensor: Any) -> npt.NDArray[Any]:
    """A Triton tensor's values in host memory: a view where they are there already, else a copy by DLPack."""
    if tensor.is_cpu():
        array: npt.NDArray[Any] = tensor.as_numpy()
        return array
    return from_dlpack(tensor.to_dlpack()).cpu().numpy()


def answer_response(answer: Mapping[str, torch.Tensor], names: Sequence[str]) -> Any:
    """The named answers as one response, each with a leading 1: the request was one batch item."""
    tensors = [pb_utils.Tensor(name, np.ascontiguousarray(answer[name].unsqueeze(0).cpu().numpy())) for name in names]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def cancelled_response() -> Any:
    """What a request gets whose client has gone."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("the request was cancelled", pb_utils.TritonError.CANCELLED))


def error_response(error: ServingError) -> Any:
    """An error as Triton renders it: its text, and a code that becomes the HTTP and gRPC status."""
    code = pb_utils.TritonError.INTERNAL
    if isinstance(error, _BAD_REQUEST):
        code = pb_utils.TritonError.INVALID_ARG
    elif isinstance(error, NotFoundError):
        code = pb_utils.TritonError.NOT_FOUND
    elif isinstance(error, _BUSY):
        code = pb_utils.TritonError.UNAVAILABLE
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def device_of(args: Mapping[str, str]) -> str:
    """The device, as torch names it, of the instance that Triton starts."""
    return f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"


def check_runtime() -> None:
    """Let Triton's tensor class make numpy arrays, as it does with a request's inputs, and compare.

    Triton's Python backend is built against numpy 1. With numpy 2 it reads a wrong item size: inputs come as their first value repeated,
    and answers go out with status 200 and no data.

    Raises:
        TritonModelException: an array does not come back as it was.
    """
    for want in (
        torch.arange(1, 7).view(1, 6),
        torch.arange(1, 7, dtype=torch.int32).view(1, 6),
        torch.arange(1, 7, dtype=torch.float32).view(1, 2, 3),
    ):
        found = pb_utils.Tensor.from_dlpack("probe", want).as_numpy()
        if not np.array_equal(found, want.numpy()):
            raise pb_utils.TritonModelException(
                f"Triton's Python backend and numpy {np.__version__} do not work together: {want.tolist()} came back as {np.asarray(found).tolist()}."
                " Install numpy below 2 in the Python environment that Triton uses"
            )
