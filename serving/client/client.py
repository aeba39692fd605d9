"""`Client` and `AsyncClient`: rows in, arrays out."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from emberline.errors import RequestError, ServingError
from emberline.schema import ModelSchema
from emberline.serving.client.data import encode_data, split_encoded
from emberline.serving.client.retry import RETRIES, ask_again
from emberline.serving.client.tiles import TilePart, encode_tile, split_tile
from emberline.serving.client.transport import Arrays, Transport, make_transport
from emberline.serving.encoded import ids_per_bag, split_ids
from emberline.serving.engine import KNOWN, LOOKUP_PREFIX
from emberline.serving.protocol.wire import wire_inputs
from emberline.serving.request import PackedRequest
from emberline.serving.security.access import Access
from emberline.serving.triton.config import SCHEMA_PARAMETER

T = TypeVar("T")
MAX_ROWS = 4096


class AsyncClient:
    """Asks one model of one server; works alike against the embedded server and Triton, over HTTP and gRPC.

        async with AsyncClient("grpc://127.0.0.1:8001", model="movielens") as client:
            answers = await client.predict([{"user_id": 196, "movie_id": 242}])

    Args:
        url: `http://host:port` or `grpc://host:port`, with TLS `https` and `grpcs`; or `file:///folder`, whose models then answer in this process.
        model: its name.
        version: empty for the server's newest.
        timeout_s: of each request to the server, with its retries; data of more than `max_rows` rows takes several.
        max_rows: larger data is sent in parts of this many rows, in order.
        retries: how often a request is asked again where the server cannot be reached, is stopping or has too much to do.
        token: to show the server; empty for none.
        ca: a PEM file of authorities to trust over https:// and grpcs://; None for those of the system over HTTP, of grpcio over gRPC.
        cert: a PEM file with a certificate of one's own, where the server asks for one.
        key: a PEM file with its private key.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        version: str = "",
        timeout_s: float = 10.0,
        max_rows: int = MAX_ROWS,
        retries: int = RETRIES,
        token: str = "",
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
    ) -> None:
        if max_rows < 1 or timeout_s <= 0:
            raise RequestError(f"max_rows and timeout_s must be above 0, found {max_rows} and {timeout_s:g}")
        if retries < 0:
            raise RequestError(f"retries must be 0 or more, found {retries}")
        self._access = Access(token=token, ca=_path(ca), cert=_path(cert), key=_path(key))
        self._url, self._model, self._version = url, model, version
        self._timeout_s, self._max_rows, self._retries = timeout_s, max_rows, retries
        self._open: Transport | None = None
        self._schema: ModelSchema | None = None

    async def __aenter__(self) -> Self:
        """Nothing is asked before the first call."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        transport, self._open = self._open, None
        if transport is not None:
            await transport.close()

    async def schema(self) -> ModelSchema:
        """The model's description, fetched once from its config.

        Raises:
            NotFoundError: the server has no such model or version.
            UnavailableError: the server cannot be reached.
        """
        if self._schema is None:
            parameters = await self._again(lambda left_s: self._transport().parameters(self._model, self._version, left_s))
            if SCHEMA_PARAMETER not in parameters:
                raise ServingError(f"model {self._model!r} is not Emberline's: its config has no parameter {SCHEMA_PARAMETER!r}")
            self._schema = ModelSchema.from_dict(json.loads(parameters[SCHEMA_PARAMETER]))
        return self._schema

    async def predict(
        self, data: Any, outputs: Sequence[str] | None = None, *, users: Any = None, rows_per_user: Sequence[int] | None = None
    ) -> Arrays:
        """The model's outputs: float32 [B] or [B, width] by name.

            await client.predict([[{"item": 4}, {"item": 5}], [{"item": 4}]], users=[{"age": 31}, {"age": 25}])

        Args:
            data: rows, columns, a DataFrame or an Arrow table: see `encode_data`. With `users`, a list of rows for each of them.
            outputs: the names wanted; None for all.
            users: what holds for all rows of a user, once: see `encode_tile`. For models whose features have sides.
            rows_per_user: how many of the rows each user has, where users and rows are columns, DataFrames or Arrow tables.

        Raises:
            RequestError: a value cannot be encoded, or an output is unknown.
            ServingError: the server did not answer: the class tells why.
        """
        schema = await self.schema()
        names = _choose("output", [output.name for output in schema.outputs], outputs)
        return await self._ask_rows(schema, _requests(schema, data, users, rows_per_user, self._max_rows), names)

    async def lookup(
        self, data: Any, groups: Sequence[str] | None = None, *, users: Any = None, rows_per_user: Sequence[int] | None = None
    ) -> Arrays:
        """The embedding groups' tensors by name, of the shapes that `GroupSpec` tells. See `predict`."""
        schema = await self.schema()
        names = _choose("group", [group.name for group in schema.groups], groups)
        requests = _requests(schema, data, users, rows_per_user, self._max_rows)
        found = await self._ask_rows(schema, requests, [LOOKUP_PREFIX + name for name in names])
        return {name.removeprefix(LOOKUP_PREFIX): values for name, values in found.items()}

    async def known(self, data: Any, *, users: Any = None, rows_per_user: Sequence[int] | None = None) -> Arrays:
        """Whether each id has a row of its own: bool [N] by sparse feature, row after row, a user's features user after user. See `predict`."""
        schema = await self.schema()
        features = schema.sparse_features
        parts: dict[str, list[npt.NDArray[Any]]] = {feature.name: [] for feature in features}
        if not features:
            return {}
        for request, goes_on in _requests(schema, data, users, rows_per_user, self._max_rows):
            found = split_ids(schema, request, (await self._ask(schema, request, [KNOWN]))[KNOWN])
            for feature, bags in zip(features, ids_per_bag(schema, request), strict=True):
                part = found[feature.name]
                parts[feature.name].append(part[bags[0] :] if goes_on and feature.is_per_user else part)
        return {name: np.concatenate(found) for name, found in parts.items()}

    async def _ask_rows(self, schema: ModelSchema, requests: Iterable[TilePart], names: Sequence[str]) -> Arrays:
        answers = [await self._ask(schema, request, names) for request, _ in requests]
        return {name: _end_to_end([answer[name] for answer in answers]) for name in names}

    async def _ask(self, schema: ModelSchema, request: PackedRequest, names: Sequence[str]) -> Arrays:
        arrays = {tensor.name: getattr(request, tensor.name) for tensor in wire_inputs(schema)}
        inputs = {name: values for name, values in arrays.items() if values is not None}
        return await self._again(lambda left_s: self._transport().infer(self._model, self._version, inputs, names, left_s))

    async def _again(self, ask: Callable[[float], Awaitable[T]]) -> T:
        return await ask_again(ask, retries=self._retries, timeout_s=self._timeout_s)

    def _transport(self) -> Transport:
        if self._open is None:
            self._open = make_transport(self._url, self._access)
        return self._open


class Client:
    """`AsyncClient` for code without an event loop: the same calls, from any thread.

        with Client("http://127.0.0.1:8000", model="movielens") as client:
            answers = client.predict([{"user_id": 196, "movie_id": 242}])

    One client keeps its connections, one HTTP/2 channel over gRPC, for as long as it is open: make one and share it.
    It runs an event loop in a thread of its own: tritonclient's synchronous HTTP client is bound to the thread that made it.

    Args:
        url: `http://host:port` or `grpc://host:port`, with TLS `https` and `grpcs`; or `file:///folder`, whose models then answer in this process.
        model: its name.
        version: empty for the server's newest.
        timeout_s: of each request to the server, with its retries; data of more than `max_rows` rows takes several.
        max_rows: larger data is sent in parts of this many rows, in order.
        retries: how often a request is asked again where the server cannot be reached, is stopping or has too much to do.
        token: to show the server; empty for none.
        ca: a PEM file of authorities to trust over https:// and grpcs://; None for those of the system over HTTP, of grpcio over gRPC.
        cert: a PEM file with a certificate of one's own, where the server asks for one.
        key: a PEM file with its private key.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        version: str = "",
        timeout_s: float = 10.0,
        max_rows: int = MAX_ROWS,
        retries: int = RETRIES,
        token: str = "",
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
    ) -> None:
        self._client = AsyncClient(
            url, model, version=version, timeout_s=timeout_s, max_rows=max_rows, retries=retries, token=token, ca=ca, cert=cert, key=key
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="emberline-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Nothing is asked before the first call."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; the client is of no use afterwards."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def schema(self) -> ModelSchema:
        """See `AsyncClient.schema`."""
        return self._run(self._client.schema())

    def predict(self, data: Any, outputs: Sequence[str] | None = None, *, users: Any = None, rows_per_user: Sequence[int] | None = None) -> Arrays:
        """See `AsyncClient.predict`."""
        return self._run(self._client.predict(data, outputs, users=users, rows_per_user=rows_per_user))

    def lookup(self, data: Any, groups: Sequence[str] | None = None, *, users: Any = None, rows_per_user: Sequence[int] | None = None) -> Arrays:
        """See `AsyncClient.lookup`."""
        return self._run(self._client.lookup(data, groups, users=users, rows_per_user=rows_per_user))

    def known(self, data: Any, *, users: Any = None, rows_per_user: Sequence[int] | None = None) -> Arrays:
        """See `AsyncClient.known`."""
        return self._run(self._client.known(data, users=users, rows_per_user=rows_per_user))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise RequestError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _path(path: Path | str | None) -> Path | None:
    return None if path is None else Path(path)


def _requests(schema: ModelSchema, data: Any, users: Any, rows_per_user: Sequence[int] | None, max_rows: int) -> Iterator[TilePart]:
    """Requests of at most `max_rows` rows each, in order, tiled where there are users."""
    if users is not None:
        yield from split_tile(schema, encode_tile(schema, users, data, rows_per_user), max_rows)
        return
    if rows_per_user is not None:
        raise RequestError("rows_per_user is there, but users, whose rows it counts, is missing")
    for request in split_encoded(schema, encode_data(schema, data), max_rows):
        yield TilePart(request, goes_on=False)


def _end_to_end(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """An answer's parts as one; rows of steps are filled up to the longest of all."""
    if len(parts) == 1:
        return parts[0]
    if parts[0].ndim == 3:
        most = max(part.shape[1] for part in parts)
        parts = [np.pad(part, ((0, 0), (0, most - part.shape[1]), (0, 0))) for part in parts]
    return np.concatenate(parts)


def _choose(what: str, known: list[str], asked: Sequence[str] | None) -> list[str]:
    if isinstance(asked, str):
        raise RequestError(f"names of {what}s are a list: [{asked!r}], not {asked!r}")
    for name in asked or ():
        if name not in known:
            raise RequestError(f"the model has no {what} {name!r}; it has {', '.join(known) or 'none'}")
    names = known if asked is None else list(dict.fromkeys(asked))
    if not names:
        raise RequestError(f"there is no {what} to ask for: the model has {', '.join(known) or 'none'}")
    return names
