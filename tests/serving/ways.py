"""The four unmodified Triton clients under one interface, for tests that hold on each of them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

Arrays = Mapping[str, npt.NDArray[Any]]
DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32", "float64": "FP64", "bool": "BOOL"}


@dataclass(frozen=True)
class Way:
    """One client module and the URL that it asks.

    Args:
        name: http, grpc, http-aio or grpc-aio; http-json sends and asks for JSON tensors.
        place: `host:port`.
    """

    name: str
    place: str

    @property
    def is_http(self) -> bool:
        return self.name.startswith("http")

    @property
    def module(self) -> Any:
        modules = {
            "http": tritonclient.http,
            "http-json": tritonclient.http,
            "grpc": tritonclient.grpc,
            "http-aio": tritonclient.http.aio,
            "grpc-aio": tritonclient.grpc.aio,
        }
        return modules[self.name]

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """One call on a client of its own."""
        if not self.name.endswith("aio"):
            with self.module.InferenceServerClient(self.place) as client:
                return getattr(client, method)(*args, **kwargs)

        async def ask() -> Any:
            async with self.module.InferenceServerClient(self.place) as client:
                return await getattr(client, method)(*args, **kwargs)

        return asyncio.run(ask())

    def tensor(self, name: str, values: npt.NDArray[Any], datatype: str = "") -> Any:
        """An input tensor, sent as it is."""
        tensor = self.module.InferInput(name, list(values.shape), datatype or DATATYPES[values.dtype.name])
        return tensor.set_data_from_numpy(values, **self._binary)

    def infer(self, arrays: Arrays, outputs: Sequence[str] | None = None, model: str = "toy", **kwargs: Any) -> Any:
        """The raw result for a request's flat arrays."""
        wanted = None if outputs is None else [self.module.InferRequestedOutput(name, **self._binary) for name in outputs]
        if wanted is None and self.name == "http-json":
            wanted = [
                self.module.InferRequestedOutput(name, binary_data=False) for name in ("probs", "scores", "lookup.deep", "lookup.wide", "known")
            ]
        return self.call("infer", model, [self.tensor(name, values.reshape(1, -1)) for name, values in arrays.items()], outputs=wanted, **kwargs)

    @property
    def _binary(self) -> dict[str, bool]:
        return {"binary_data": self.name != "http-json"} if self.is_http else {}


def fails(ask: Callable[[], object]) -> tuple[str, str]:
    """Status and message of a call that must fail: `400` and `StatusCode.INVALID_ARGUMENT` come out alike."""
    try:
        ask()
    except tritonclient.utils.InferenceServerException as error:
        names = {"400": "INVALID_ARGUMENT", "404": "NOT_FOUND", "413": "TOO_LARGE", "429": "RESOURCE_EXHAUSTED", "503": "UNAVAILABLE"}
        names |= {"504": "DEADLINE_EXCEEDED", "500": "INTERNAL"}
        status = str(error.status()).removeprefix("StatusCode.")
        return names.get(status, status), error.message()
    raise AssertionError("it was answered")


def same(found: npt.NDArray[Any], want: Any) -> None:
    """Equal shapes, and values within rounding of a batch of another size."""
    assert (found.dtype, found.shape) == (np.asarray(want).dtype, np.asarray(want).shape)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
