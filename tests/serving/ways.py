"""Both servers and the four unmodified Triton clients under one interface each, for tests that hold on each of them."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from emberline.errors import MissingDependencyError
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from emberline.serving.triton.install import find_triton
from emberline.serving.triton.launcher import TritonServer
from emberline.serving.triton.settings import TritonSettings

Arrays = Mapping[str, npt.NDArray[Any]]
Urls = Mapping[str, str]
BOTH_SERVERS = ["embedded", pytest.param("triton", marks=pytest.mark.triton)]
DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32", "float64": "FP64", "bool": "BOOL"}


@contextmanager
def served(server: str, models: Path) -> Iterator[Urls]:
    """A folder of models on `embedded` or `triton`: the server's name, and its URLs by protocol, `http` and `grpc`."""
    if server == "embedded":
        with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as embedded:
            yield {"server": server, "http": embedded.http_url, "grpc": embedded.grpc_url}
        return
    try:
        find_triton()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    with TritonServer(models, settings=TritonSettings(num_threads=1), ready_timeout_s=400) as triton:
        yield {"server": server, "http": f"http://127.0.0.1:{triton.http_port}", "grpc": f"grpc://127.0.0.1:{triton.grpc_port}"}


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
