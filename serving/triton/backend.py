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

from emberline.cpus import usable_cpus
from emberline.errors import EmberlineError, NotFoundError, OverloadedError, RequestError, ServingError, TooLargeError, UnavailableError
from emberline.serving.deltas.watcher import DEFAULT_PERIOD_S, DeltaWatcher
from emberline.serving.engine import Engine
from emberline.serving.limits import LimitChecker, RequestLimits
from emberline.serving.log import start_logging
from emberline.serving.packed_request import PackedRequest
from emberline.serving.protocol.by_feature import FeaturePacker
from emberline.serving.protocol.packing import Packer
from emberline.serving.tables import PRIVATE
from emberline.serving.triton.config import (
    ARTIFACT_PARAMETER,
    CACHE_PARAMETER,
    DELTA_POLL_PARAMETER,
    DELTAS_PARAMETER,
    FORMAT_PARAMETER,
    LIMITS_PARAMETER,
    LOOKUP_PARAMETER,
    TABLES_PARAMETER,
    THREADS_PARAMETER,
)
from emberline.serving.triton.metrics import MetricsReporter
from emberline.serving.warm_up import MOST_ROWS, usual_sizes
from emberline.storage import join, to_place

_LOG = logging.getLogger(__name__)
_BAD_REQUEST = (RequestError, TooLargeError)
_BUSY = (OverloadedError, UnavailableError)
_WORTH_ASKING_BYTES = 1 << 20
"""Whether a request was cancelled is asked for those of so many bytes: the question crosses processes, 50 microseconds, and ten times as long where
processors are busy; requests of less are computed in such a time. Triton itself drops what is cancelled while it waits, so that only what was
cancelled since it was handed over is left."""


class CancelledRequestError(ServingError):
    """The client has gone: its request is not computed."""

    def __init__(self) -> None:
        super().__init__("the request was cancelled")


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
                num_threads=int(threads) if threads else share_of_cpus(config),
                cache=Path(parameters[CACHE_PARAMETER]) if CACHE_PARAMETER in parameters else None,
                format=parameters.get(FORMAT_PARAMETER),
                lookup=parameters.get(LOOKUP_PARAMETER),
                tables=parameters.get(TABLES_PARAMETER, PRIVATE),
                warm_up=usual_sizes(MOST_ROWS),
                deltas=int(parameters[DELTAS_PARAMETER]) if DELTAS_PARAMETER in parameters else None,
            )
        except EmberlineError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        poll_s = 0.0 if DELTAS_PARAMETER in parameters else float(parameters.get(DELTA_POLL_PARAMETER, DEFAULT_PERIOD_S))
        self._watcher = DeltaWatcher(self._engine, poll_s)
        self._pack = FeaturePacker(self._engine.schema)
        self._num_rows = Packer(self._engine.schema).num_rows
        self._limits = LimitChecker(self._engine.schema, RequestLimits(**json.loads(parameters.get(LIMITS_PARAMETER, "{}"))))
        self._metrics = MetricsReporter(self._engine)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order; a bad one gets an error and spoils no other."""
        responses: list[Any] = [None] * len(requests)
        ready: list[tuple[int, PackedRequest, list[str]]] = []
        for place, request in enumerate(requests):
            try:
                ready.append((place, self._read(request), request.requested_output_names()))
            except ServingError as error:
                responses[place] = self._failure(error)
        results = self._engine.predict_many([packed for _, packed, _ in ready], [names for _, _, names in ready])
        for (place, _, names), result in zip(ready, results, strict=True):
            responses[place] = self._failure(result) if isinstance(result, ServingError) else self._success(result, names)
        self._metrics.batches += 1
        return responses

    def finalize(self) -> None:
        """Let go of tables and programs."""
        self._watcher.close()
        self._metrics.close()
        del self._watcher, self._metrics, self._engine

    def _read(self, request: Any) -> PackedRequest:
        """The request, by whichever inputs it has.

        Raises:
            RequestError: its inputs by feature do not go together.
            TooLargeError: it is over a limit.
            CancelledRequestError: nobody waits for it any more.
        """
        arrays = {tensor.name(): host_array(tensor) for tensor in request.inputs()}
        if sum(array.nbytes for array in arrays.values()) >= _WORTH_ASKING_BYTES and request.is_cancelled():
            raise CancelledRequestError
        packed = self._pack(arrays)
        self._limits.check(packed, self._num_rows(packed))
        return packed

    def _failure(self, error: ServingError) -> Any:
        self._metrics.ended[_ending(error)] += 1
        return error_response(error)

    def _success(self, answer: Mapping[str, torch.Tensor], names: Sequence[str]) -> Any:
        """The named answers as one response, each with a leading 1: the request was one batch item."""
        self._metrics.ended["ok"] += 1
        return pb_utils.InferenceResponse(output_tensors=[given_tensor(name, answer[name], as_item=True) for name in names])


class TritonLookupModel(TritonPythonModel):
    """The lookups alone: what the model's programs take, for a dense model that another backend runs."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order."""
        self._metrics.batches += 1
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            found = self._engine.program_inputs(self._read(request))
        except ServingError as error:
            return self._failure(error)
        self._metrics.ended["ok"] += 1
        return pb_utils.InferenceResponse(output_tensors=[given_tensor(name, found[name]) for name in request.requested_output_names()])


def host_array(tensor: Any) -> npt.NDArray[Any]:
    """A Triton tensor's values in host memory: a view where they are there already, else a copy by DLPack.

    [1, n] is given on as [n], which the engine reads by its shortest way; any other shape as it is, to be refused by name.
    """
    array: npt.NDArray[Any] = tensor.as_numpy() if tensor.is_cpu() else from_dlpack(tensor.to_dlpack()).cpu().numpy()
    return array[0] if array.ndim == 2 and len(array) == 1 else array


def given_tensor(name: str, answer: torch.Tensor, *, as_item: bool = False) -> Any:
    """An answer as Triton's tensor: where it is on a GPU it stays there, unless it holds nothing, which Triton takes from the host only.

    Args:
        name: of the output.
        answer: of any shape.
        as_item: give it a leading 1, as one item of Triton's batch.
    """
    whole = answer.contiguous()
    if answer.is_cpu or answer.numel() == 0:
        array = whole.cpu().numpy()
        return pb_utils.Tensor(name, array[None] if as_item else array)
    return pb_utils.Tensor.from_dlpack(name, whole.unsqueeze(0) if as_item else whole)


def error_response(error: ServingError) -> Any:
    """An error as Triton renders it: its text, and a code that becomes the HTTP and gRPC status."""
    code = pb_utils.TritonError.INTERNAL
    if isinstance(error, CancelledRequestError):
        code = pb_utils.TritonError.CANCELLED
    elif isinstance(error, _BAD_REQUEST):
        code = pb_utils.TritonError.INVALID_ARG
    elif isinstance(error, NotFoundError):
        code = pb_utils.TritonError.NOT_FOUND
    elif isinstance(error, _BUSY):
        code = pb_utils.TritonError.UNAVAILABLE
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def _ending(error: ServingError) -> str:
    """How a request ended, for metrics."""
    if isinstance(error, CancelledRequestError):
        return "cancelled"
    return "refused" if isinstance(error, _BAD_REQUEST) else "failed"


def share_of_cpus(config: Mapping[str, Any]) -> int:
    """Threads of one process of a model, so that all processes of it keep the CPUs busy that this one may use, and no more."""
    return max(1, usable_cpus() // max(1, sum(int(group.get("count", 1)) for group in config.get("instance_group", []))))


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
