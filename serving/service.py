"""The service that both transports call: find the model, ask it, and count what came of it; load and unload models."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from emberline.errors import DeadlineError, UnavailableError
from emberline.serving.metrics import Metrics
from emberline.serving.model import Answers, LoadedModel, Row
from emberline.serving.packed_request import PackedRequest
from emberline.serving.protocol.messages import InferRequest, InferResponse
from emberline.serving.protocol.status import status_of
from emberline.serving.repository import Repository
from emberline.serving.settings import ServerSettings
from emberline.serving.tiled_rows import TiledRows


class Service:
    """One server's models behind one interface.

    Args:
        repository: the loaded models.
        settings: limits.
        metrics: where requests are counted.
    """

    def __init__(self, repository: Repository, settings: ServerSettings, metrics: Metrics) -> None:
        self.repository = repository
        self.settings = settings
        self.metrics = metrics
        self._draining = False
        self._control = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()

    @property
    def taking_requests(self) -> bool:
        """Whether new requests are taken: models are loaded before a service is made, so only a drain ends it."""
        return not self._draining

    async def is_ready(self, model: LoadedModel | None = None) -> bool:
        """Whether requests are taken and a model answers them; every model, where none is given."""
        if self._draining:
            return False
        return all(await asyncio.gather(*[one.is_alive() for one in ([model] if model is not None else self.repository)]))

    def drain(self) -> None:
        """Refuse new requests from now on; those in flight go on."""
        self._draining = True

    async def settle(self) -> None:
        """Wait for models that are being loaded or unloaded."""
        await asyncio.gather(*self._changes, return_exceptions=True)

    async def load_model(self, name: str) -> None:
        """Serve the version of a model that is to be served now: a new model, a newer version, or one that was rolled back to.

        The one that is served goes on until the new one is ready, and then answers what it has; where the new one cannot be opened, it stays.

        Raises:
            NotFoundError: the models folder has no such model.
            UnavailableError: the server is stopping, or models are not to be changed from outside.
            ServingError: it cannot be opened.
        """
        await self._change(self._load, name)

    async def unload_model(self, name: str) -> None:
        """Serve a model no more: what it was asked is answered, and its memory is let go of.

        Raises:
            NotFoundError: it is not served.
            UnavailableError: the server is stopping, or models are not to be changed from outside.
        """
        await self._change(self._unload, name)

    async def _change(self, change: Callable[[str], Coroutine[Any, Any, None]], name: str) -> None:
        """One change after the other, each to its end, though its caller may leave."""
        if not self.settings.allows_model_control:
            raise UnavailableError(
                "this server does not load or unload models when asked to: it was told so, or others than this machine can reach it"
            )
        self._require_open()
        task = asyncio.create_task(change(name))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def _load(self, name: str) -> None:
        async with self._control:
            model = await asyncio.to_thread(self.repository.load, name)
            if (old := self.repository.put(model)) is not None:
                await asyncio.to_thread(old.close)

    async def _unload(self, name: str) -> None:
        async with self._control:
            await asyncio.to_thread(self.repository.remove(name).close)

    def _require_open(self) -> None:
        if self._draining:
            raise UnavailableError("the server is stopping; ask again elsewhere or later")

    async def infer(self, request: InferRequest, protocol: str, num_bytes: int) -> InferResponse:
        """Answer a v2 request.

        Args:
            request: its timeout may shorten the server's own.
            protocol: `http` or `grpc`, for the metrics.
            num_bytes: its size.

        Raises:
            ServingError: it was refused, or the time was up.
        """
        with self._counted(protocol, request.model, request.version) as model:
            return await model.infer(request, self._timeout_s(request.timeout_s), num_bytes)

    def answer_quick(self, model: LoadedModel, request: PackedRequest, num_rows: int, names: tuple[str, ...], protocol: str) -> Answers:
        """The answers to a small request, at once: only for what the model's `pace` calls quick.

        Args:
            model: one that is served.
            request: its tensors.
            num_rows: its rows.
            names: of the model's outputs.
            protocol: for the metrics.

        Raises:
            ServingError: it was refused.
        """
        started, status = time.perf_counter_ns(), "ok"
        try:
            self._require_open()
            return model.answer_quick(request, num_rows, names)
        except Exception as error:
            status = status_of(error).grpc
            raise
        finally:
            self._count(model, protocol, status, time.perf_counter_ns() - started)

    async def answer_rows(
        self, name: str, rows: Sequence[Row] | TiledRows, choose: Callable[[LoadedModel], tuple[str, ...]], protocol: str, num_bytes: int
    ) -> tuple[LoadedModel, Answers]:
        """A model's answers for plain rows, and the model that gave them.

        Args:
            name: the model's.
            rows: `{column: value}` each, under their users or without.
            choose: which answers of the model are wanted.
            protocol: for the metrics.
            num_bytes: size of the request.

        Raises:
            ServingError: it was refused, or the time was up.
        """
        with self._counted(protocol, name, "") as model:
            return model, await model.answer_rows(rows, choose(model), self._timeout_s(None), num_bytes)

    def _timeout_s(self, asked_s: float | None) -> float:
        limit_s = self.settings.timeout_s
        if asked_s is not None and asked_s <= 0:
            raise DeadlineError("the deadline had passed when the request came")
        return limit_s if asked_s is None else min(asked_s, limit_s)

    @contextmanager
    def _counted(self, protocol: str, name: str, version: str) -> Iterator[LoadedModel]:
        started = time.perf_counter_ns()
        model, status = None, "ok"
        try:
            self._require_open()
            model = self.repository.get(name, version)
            yield model
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        except Exception as error:
            status = status_of(error).grpc
            raise
        finally:
            self._count(model, protocol, status, time.perf_counter_ns() - started)

    def _count(self, model: LoadedModel | None, protocol: str, status: str, took_ns: int) -> None:
        self.metrics.count_request(model.name if model else "", protocol, status, took_ns / 1e9)
        if model and status == "ok":
            model.statistics.success_count += 1
            model.statistics.success_ns += took_ns
        elif model:
            model.statistics.fail_count += 1
            model.statistics.fail_ns += took_ns
