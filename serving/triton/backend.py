"""What runs inside Triton's Python backend: one model for all artifacts.

Triton hands over a list of requests and wants one response for each, in order. This module is imported by the thin `model.py` of each version.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

from emberline.cpus import usable_cpus
from emberline.errors import EmberlineError, NotFoundError, OverloadedError, RequestError, ServingError, TooLargeError, UnavailableError
from emberline.serving.deltas.watcher import DEFAULT_PERIOD_S, DeltaWatcher
from emberline.serving.device_request import DeviceRequest
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
    MERGED_PARAMETER,
    ROW_GROWTH_PARAMETER,
    TABLES_PARAMETER,
    THREADS_PARAMETER,
)
from emberline.serving.triton.metrics import MetricsReporter
from emberline.serving.triton.tensors import check_runtime, device_request, given_tensor, host_array, sent_early
from emberline.serving.warm_up import MOST_ROWS, usual_sizes
from emberline.storage import join, to_place

_LOG = logging.getLogger(__name__)
_BAD_REQUEST = (RequestError, TooLargeError)
_BUSY = (OverloadedError, UnavailableError)
_WORTH_ASKING_BYTES = 1 << 20
"""Whether a request was cancelled is asked for those of so many bytes: the question crosses processes, 50 microseconds, and ten times as long where
processors are busy; requests of less are computed in such a time. Triton itself drops what is cancelled while it waits, so that only what was
cancelled since it was handed over is left; where that is long ago, it is asked for all."""
_LONG_AGO_S = 0.05
"""What was handed over so long before its turn may have been cancelled since."""
_WORTH_SENDING_BYTES = 4 << 20
"""Answers of a batch that come to more are sent at once where other batches follow, so that callers need not wait for those, and shared memory has
room for them all. To send one takes longer than to return it, a tenth of a millisecond."""
_LEAST_S = 0.05
"""How long a process answers at least before it refuses more than half of what it was handed: to refuse 512 takes a part of that, and where refused
callers ask again at once, it would do little else."""
_MOST_S = 30.0
"""How long requests that were handed over together may be worked on: those whose turn has not come by then are refused."""


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
                row_growth=float(parameters[ROW_GROWTH_PARAMETER]) if ROW_GROWTH_PARAMETER in parameters else None,
                warm_up=usual_sizes(MOST_ROWS),
                deltas=int(parameters[DELTAS_PARAMETER]) if DELTAS_PARAMETER in parameters else None,
            )
        except EmberlineError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        poll_s = 0.0 if DELTAS_PARAMETER in parameters else float(parameters.get(DELTA_POLL_PARAMETER, DEFAULT_PERIOD_S))
        self._watcher = DeltaWatcher(self._engine, poll_s)
        self._pack = FeaturePacker(self._engine.schema)
        self._num_rows = Packer(self._engine.schema).num_rows
        self._takes_device_inputs = not self._engine.schema.sequences
        self._limits = LimitChecker(self._engine.schema, RequestLimits(**json.loads(parameters.get(LIMITS_PARAMETER, "{}"))))
        self._metrics = MetricsReporter(self._engine)
        most = int(config.get("max_batch_size", 0))
        self._most_merged = max(1, int(parameters.get(MERGED_PARAMETER, most)))
        self._overload = most if MERGED_PARAMETER in parameters else 0
        self._answered_bytes, self._overloads = 0, 0

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order, or None for one that was sent before; a bad one gets an error and spoils no other."""
        self._overloads = self._overloads + 1 if len(requests) == self._overload else 0
        if len(requests) <= self._most_merged and not self._overloads:
            return self._answer_batch(requests)
        return self._answer_batches(requests)

    def _answer_batches(self, requests: Sequence[Any]) -> list[Any]:
        """All that waited, batch after batch. Where that is too much, or takes too long, the later ones are refused.

        What is too much was waiting when Triton handed it over. The first half is answered, of the next such handover a quarter, and so on, or as
        many of the half as there is time for in `_LEAST_S`: this process is at work all the time, and comes through whatever lies before it.
        """
        half, kept = (max(1, len(requests) >> times) for times in (min(1, self._overloads), self._overloads))
        responses: list[Any] = []
        start = time.monotonic()
        while (passed := time.monotonic() - start) < _MOST_S and len(responses) < (end := half if passed < _LEAST_S else kept):
            batch = requests[len(responses) : min(end, len(responses) + self._most_merged)]
            found = self._answer_batch(batch, waited=passed >= _LONG_AGO_S)
            responses += sent_early(batch, found) if self._answered_bytes > _WORTH_SENDING_BYTES and len(batch) < len(requests) else found
        error = OverloadedError(f"{len(requests)} requests wait for the model, more than it answers in time; try again later")
        return responses + [self._failure(error) for _ in requests[len(responses) :]]

    def _answer_batch(self, requests: Sequence[Any], *, waited: bool = False) -> list[Any]:
        """One response for each request of one batch; those that `waited` for their turn here may have been cancelled meanwhile, however small."""
        responses: list[Any] = [None] * len(requests)
        ready: list[tuple[int, PackedRequest | DeviceRequest, list[str]]] = []
        for place, request in enumerate(requests):
            try:
                if waited:
                    self._require_wanted(request)
                ready.append((place, self._read_where_it_is(request), request.requested_output_names()))
            except Exception as error:  # noqa: BLE001 - each request hears of its own, and of no other's
                responses[place] = self._failure(self._told(error))
        self._answered_bytes = 0
        results: Sequence[Mapping[str, torch.Tensor] | ServingError]
        try:
            results = self._engine.predict_many([packed for _, packed, _ in ready], [names for _, _, names in ready])
        except Exception as error:  # noqa: BLE001 - those whose answers were sent before must not hear of it
            results = [self._told(error)] * len(ready)
        for (place, _, names), result in zip(ready, results, strict=True):
            responses[place] = self._failure(result) if isinstance(result, ServingError) else self._success(result, names)
        self._metrics.batches += 1
        return responses

    def finalize(self) -> None:
        """Let go of tables and programs."""
        self._watcher.close()
        self._metrics.close()
        del self._watcher, self._metrics, self._engine

    def _read_where_it_is(self, request: Any) -> PackedRequest | DeviceRequest:
        """As `_read`, but that a request whose inputs are all on a GPU stays there, where the model has no sequences."""
        found = device_request(request.inputs()) if self._takes_device_inputs else None
        if found is None:
            return self._read(request)
        if found.num_bytes >= _WORTH_ASKING_BYTES:
            self._require_wanted(request)
        self._limits.check_on_device(found)
        return found

    def _read(self, request: Any) -> PackedRequest:
        """The request, by whichever inputs it has.

        Raises:
            RequestError: its inputs by feature do not go together.
            TooLargeError: it is over a limit.
            CancelledRequestError: nobody waits for it any more.
        """
        arrays = {tensor.name(): host_array(tensor) for tensor in request.inputs()}
        if sum(array.nbytes for array in arrays.values()) >= _WORTH_ASKING_BYTES:
            self._require_wanted(request)
        packed = self._pack(arrays)
        self._limits.check(packed, self._num_rows(packed))
        return packed

    @staticmethod
    def _require_wanted(request: Any) -> None:
        if request.is_cancelled():
            raise CancelledRequestError

    def _told(self, error: Exception) -> ServingError:
        """What callers hear of an error; one that is none of ours is told to the log alone, as Triton would send its trace."""
        if isinstance(error, ServingError):
            return error
        _LOG.error("model %s failed", self._engine.name, exc_info=error)
        return ServingError("the model failed on this request; the server's log tells more")

    def _failure(self, error: ServingError) -> Any:
        self._metrics.ended[_ending(error)] += 1
        return error_response(error)

    def _success(self, answer: Mapping[str, torch.Tensor], names: Sequence[str]) -> Any:
        """The named answers as one response, each with a leading 1: the request was one batch item."""
        self._metrics.ended["ok"] += 1
        self._answered_bytes += sum(answer[name].nbytes for name in names)
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
        except Exception as error:  # noqa: BLE001 - as in a batch
            return self._failure(self._told(error))
        self._metrics.ended["ok"] += 1
        return pb_utils.InferenceResponse(output_tensors=[given_tensor(name, found[name]) for name in request.requested_output_names()])


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
    return "refused" if isinstance(error, (*_BAD_REQUEST, OverloadedError)) else "failed"


def share_of_cpus(config: Mapping[str, Any]) -> int:
    """Threads of one process of a model, so that all processes of it keep the CPUs busy that this one may use, and no more."""
    return max(1, usable_cpus() // max(1, sum(int(group.get("count", 1)) for group in config.get("instance_group", []))))


def device_of(args: Mapping[str, str]) -> str:
    """The device, as torch names it, of the instance that Triton starts."""
    return f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"
