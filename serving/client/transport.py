"""HTTP and gRPC under one interface, through tritonclient's asynchronous clients."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import numpy.typing as npt

from emberline.errors import DeadlineError, MissingDependencyError, NotFoundError, RequestError, ServingError, UnavailableError
from emberline.serving.protocol.status import error_for_grpc, error_for_http
from emberline.serving.security.access import Access

Arrays = dict[str, npt.NDArray[Any]]
_DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", 2**31 - 1),
    ("grpc.max_receive_message_length", 2**31 - 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
"""No limit of the client's own, as tritonclient has it; and a server that was away is found again as soon as a retry asks for it."""
_INSTALL = "the client needs tritonclient: `pip install 'tritonclient[http,grpc]'`"


class Transport(Protocol):
    """Asks one server."""

    async def parameters(self, model: str, version: str, timeout_s: float) -> Mapping[str, str]:
        """The string parameters of a model's config."""

    async def infer(self, model: str, version: str, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str], timeout_s: float) -> Arrays:
        """The named outputs, as they come."""

    async def close(self) -> None:
        """Close every connection."""


def make_transport(url: str, access: Access) -> Transport:
    """A transport for `http://host:port`, `grpc://host:port` or `file:///folder`; to be called where an event loop runs.

    Args:
        url: `https` and `grpcs` speak TLS.
        access: what the server is shown, and whom to trust.

    Raises:
        RequestError: the URL has another form.
        ConfigError: a file of `access` is wrong.
        MissingDependencyError: tritonclient is not installed.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        from emberline.serving.client.in_process import InProcessTransport

        return InProcessTransport(Path(url2pathname(parts.path)))
    is_private, kind = parts.scheme in ("https", "grpcs"), _KINDS.get(parts.scheme.removesuffix("s"))
    if kind is None or not parts.netloc:
        raise RequestError(f"the URL {url!r} must be http://host:port or grpc://host:port, or file:///folder for models in this process")
    access.check(url, is_private=is_private)
    try:
        return kind(parts.netloc + parts.path.rstrip("/") if kind is _HttpTransport else parts.netloc, access, is_private)
    except ImportError as error:
        raise MissingDependencyError(_INSTALL) from error


class _HttpTransport:
    def __init__(self, place: str, access: Access, is_private: bool) -> None:
        import tritonclient.http.aio as triton

        self._triton = triton
        self._url, self._headers = f"http{'s' if is_private else ''}://{place}", access.headers
        self._client = triton.InferenceServerClient(place, ssl=is_private, ssl_context=access.context() if is_private else None)

    async def parameters(self, model: str, version: str, timeout_s: float) -> Mapping[str, str]:
        config = await self._ask(self._client.get_model_config(model, version, headers=self._headers), timeout_s)
        return {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}

    async def infer(self, model: str, version: str, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str], timeout_s: float) -> Arrays:
        call = self._client.infer(
            model,
            [_input(self._triton, name, values) for name, values in inputs.items()],
            model_version=version,
            outputs=[self._triton.InferRequestedOutput(name) for name in outputs],
            timeout=int(timeout_s * 1e6),
            headers=self._headers,
        )
        return _arrays(await self._ask(call, timeout_s), outputs)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, call: Any, timeout_s: float) -> Any:
        import aiohttp
        from tritonclient.utils import InferenceServerException

        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except InferenceServerException as error:
            raise _http_error(str(error.status() or ""), error.message() or str(error)) from None
        except TimeoutError:
            raise DeadlineError(f"{self._url} gave no answer within {timeout_s:.3g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"cannot reach {self._url}: {error}") from None


class _GrpcTransport:
    def __init__(self, place: str, access: Access, is_private: bool) -> None:
        import tritonclient.grpc.aio as triton

        self._triton = triton
        self._url, self._headers = f"grpc{'s' if is_private else ''}://{place}", access.headers
        creds = access.credentials() if is_private else None
        self._client = triton.InferenceServerClient(place, ssl=is_private, creds=creds, channel_args=_CHANNEL_OPTIONS)

    async def parameters(self, model: str, version: str, timeout_s: float) -> Mapping[str, str]:
        answer = await self._ask(self._client.get_model_config(model, version, headers=self._headers, client_timeout=timeout_s))
        return {name: value.string_value for name, value in answer.config.parameters.items()}

    async def infer(self, model: str, version: str, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str], timeout_s: float) -> Arrays:
        call = self._client.infer(
            model,
            [_input(self._triton, name, values) for name, values in inputs.items()],
            model_version=version,
            outputs=[self._triton.InferRequestedOutput(name) for name in outputs],
            client_timeout=timeout_s,
            headers=self._headers,
        )
        return _arrays(await self._ask(call), outputs)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, call: Any) -> Any:
        from tritonclient.utils import InferenceServerException

        try:
            return await call
        except InferenceServerException as error:
            code, message = str(error.status() or "").removeprefix("StatusCode."), error.message() or str(error)
            if code == "UNAVAILABLE" and "onnect" in message:
                message = f"cannot reach {self._url}: {message}"
            raise _not_found(message) or error_for_grpc(code, message) from None


_KINDS: Mapping[str, type[_HttpTransport | _GrpcTransport]] = {"http": _HttpTransport, "grpc": _GrpcTransport}


def _input(triton: Any, name: str, values: npt.NDArray[Any]) -> Any:
    tensor = triton.InferInput(name, [1, values.size], _DATATYPES[values.dtype.name])
    return tensor.set_data_from_numpy(np.ascontiguousarray(values.reshape(1, -1)))


def _arrays(result: Any, outputs: Sequence[str]) -> Arrays:
    """The outputs by name, without the leading 1.

    Raises:
        ServingError: the server left one out.
    """
    found = {}
    for name in outputs:
        array = result.as_numpy(name)
        if array is None:
            raise ServingError(f"the server's answer has no output {name!r}")
        found[name] = array[0]
    return found


def _http_error(status: str, message: str) -> ServingError:
    return _not_found(message) or error_for_http(int(status) if status.isdigit() else 500, message)


def _not_found(message: str) -> NotFoundError | None:
    """Triton's statuses for a model that it does not have vary by call and release; its words do not."""
    return NotFoundError(message) if "unknown model" in message or "model is not found" in message else None
