"""The service that both transports call: find the model, ask it, and count what came of it; load and unload models."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from emberline.errors import DeadlineError, UnavailableError
from emberline.memory import give_back_free_memory
from emberline.serving.canary.canaries import Canaries
from emberline.serving.live.aside import aside
from emberline.serving.live.identity import Identity
from emberline.serving.metrics import Metrics
from emberline.serving.model import Answers, LoadedModel, Row
from emberline.serving.observe.context import note_model, note_rows
from emberline.serving.observe.observer import Observer
from emberline.serving.packed_request import PackedRequest
from emberline.serving.protocol.messages import InferRequest, InferResponse
from emberline.serving.protocol.status import status_of
from emberline.serving.repository import Repository
from emberline.serving.settings import ServerSettings
from emberline.serving.tables import PRIVATE
from emberline.serving.tiled_rows import TiledRows
from emberline.serving.workers.merging import merge_metrics, merge_statistics
from emberline.serving.workers.peers import Peers


class Service:
    """One server's models behind one interface.

    Args:
        repository: the loaded models.
        settings: limits.
        metrics: where requests are counted.
        peers: all processes that serve the same, this one too; None where it is the only one.
    """

    def __init__(self, repository: Repository, settings: ServerSettings, metrics: Metrics, peers: Peers | None = None) -> None:
        self.repository = repository
        self.settings = settings
        self.metrics = metrics
        self.observer = Observer(metrics, settings.observe)
        self._promoted: dict[str, Identity | None] = {}
        """What the models folder said is to be served when another version was promoted: it counts again once it says something else."""
        self._draining = False
        self._control = asyncio.Lock()
        self._one_change = asyncio.Lock()
        """Held for the whole of a change that this process makes by itself."""
        self._changes: set[asyncio.Task[None]] = set()
        self._peers = peers
        self._openings: set[asyncio.Task[LoadedModel]] = set()
        self.canaries = Canaries(repository, self._openings)
        metrics.registry.register(self.canaries)
        self._opened: dict[str, LoadedModel] = {}
        """Models that are to be served as soon as all processes have them open."""

    @property
    def taking_requests(self) -> bool:
        """Whether new requests are taken: models are loaded before a service is made, so only a drain ends it."""
        return not self._draining

    async def is_ready(self, model: LoadedModel | None = None) -> bool:
        """Whether requests are taken and a model answers them, in each process; every model, where none is given."""
        name = None if model is None else model.name
        if self._peers is None or self._draining:
            return await self.is_ready_here(name)
        found = await self._peers.ask("ready", name)
        return all(found.answers) and not found.missing

    async def is_ready_here(self, name: str | None) -> bool:
        """As `is_ready`, of this process alone."""
        if self._draining:
            return False
        if name is not None:
            return self.repository.find(name) is not None and await self._answers(name)
        return all(await asyncio.gather(*[self._answers(model.name) for model in self.repository]))

    async def _answers(self, name: str) -> bool:
        """Whether a model answers; one that another takes the place of meanwhile is asked again, and one that is taken away is not missed."""
        while (model := self.repository.find(name)) is not None:
            if await model.is_alive():
                return True
            if self.repository.find(name) is model:
                return False
        return True

    async def statistics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """An entry of `model_stats` for each of some models that are served, of all processes together."""
        if self._peers is None:
            return self.statistics_here(names)
        found = await self._peers.ask("statistics", list(names))
        return [merge_statistics(entries) for entries in zip(*found.answers, strict=True)]

    def statistics_here(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """As `statistics`, of this process alone."""
        return [self.repository.get(name).statistics_entry() for name in names]

    async def metrics_text(self) -> bytes:
        """What Prometheus scrapes, of all processes together."""
        if self._peers is None:
            return self.metrics.render()
        found = await self._peers.ask("metrics")
        return await asyncio.to_thread(merge_metrics, found.answers, shared_tables=self.settings.tables != PRIVATE)

    def drain(self) -> None:
        """Refuse new requests from now on; those in flight go on. A model that is being opened is not waited for."""
        self._draining = True
        for opening in self._openings:
            opening.cancel()

    async def settle(self) -> None:
        """Wait for models that are being loaded or unloaded, and let go of those that were opened and are not served."""
        await asyncio.gather(*self._changes, return_exceptions=True)
        for name in list(self._opened):
            await self.drop_opened(name)

    async def load_model(self, name: str) -> None:
        """Serve the version of a model that is to be served now: a new model, a newer version, or one that was rolled back to.

        The one that is served goes on until the new one is ready, and then answers what it has; where the new one cannot be opened, it stays.

        Raises:
            NotFoundError: the models folder has no such model.
            UnavailableError: the server is stopping, or models are not to be changed from outside.
            ServingError: it cannot be opened.
        """
        await self._change(self._load if self._peers is None else partial(self._peers.change, "load"), name)

    async def unload_model(self, name: str) -> None:
        """Serve a model no more: what it was asked is answered, and its memory is let go of.

        Raises:
            NotFoundError: it is not served.
            UnavailableError: the server is stopping, or models are not to be changed from outside.
        """
        await self._change(self._unload if self._peers is None else partial(self._peers.change, "unload"), name)

    async def start_canary(self, name: str, version: int, *, share: float, seed: int) -> None:
        """Try a version beside the one that is served; see `Canaries.start`.

        Raises:
            ServingError: it cannot be opened, there is a canary, the server has several workers, or models are not to be changed from outside.
        """
        await self._change_canary(partial(self.canaries.start, version=version, share=share, seed=seed), name)

    async def promote_canary(self, name: str) -> None:
        """Serve the candidate from now on, until the models folder says another version than it does now.

        Raises:
            ServingError: as `drop_canary`.
        """
        await self._change_canary(self._promote, name)

    async def drop_canary(self, name: str) -> None:
        """Let the candidate go.

        Raises:
            NotFoundError: there is none.
            UnavailableError: the server is stopping or has several workers, or models are not to be changed from outside.
        """
        await self._change_canary(self._drop, name)

    async def canary_report(self, name: str) -> dict[str, Any]:
        """What was found of a candidate so far; see `Canaries.report`.

        Raises:
            NotFoundError: there is none.
            UnavailableError: the server has several workers.
        """
        self._require_alone()
        return await asyncio.to_thread(self.canaries.report, name)

    async def _change_canary(self, change: Callable[[str], Coroutine[Any, Any, None]], name: str) -> None:
        self._require_alone()

        async def alone(name: str) -> None:
            async with self._one_change:
                await change(name)

        await self._change(alone, name)

    async def _promote(self, name: str) -> None:
        self.canaries.candidate_of(name)
        says = await aside(partial(self.canaries.wanted, name), "look")
        self._opened[name] = await self.canaries.take(name, "it was promoted")
        await self.serve_opened(name)
        self._promoted[name] = says

    async def _drop(self, name: str) -> None:
        await self._close(await self.canaries.take(name, "it was dropped"))

    def _require_alone(self) -> None:
        if self._peers is not None:
            raise UnavailableError("a server of several processes tries no candidates: start one with --workers 1 for it")

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
        async with self._one_change:
            await self.open_here(name)
            await self.serve_opened(name)
            self._promoted.pop(name, None)

    async def _unload(self, name: str) -> None:
        async with self._one_change:
            await self.unload_here(name)

    def served(self) -> Mapping[str, Identity]:
        """What is served, by model."""
        return self.repository.served()

    def unloaded(self) -> Collection[str]:
        """Models that somebody unloaded."""
        return self.repository.unloaded

    async def switch(self, name: str, wanted: Identity) -> None:
        """Open a version of a model beside the one that is served, and serve it in its place.

        Raises:
            UnavailableError: the server is stopping.
            EmberlineError: it cannot be opened.
        """
        async with self._one_change:
            if name in self._promoted and self._promoted[name] == wanted:
                return
            if name not in self.repository.unloaded and self.repository.served().get(name) != wanted:
                await self.open_here(name, wanted.version)
                await self.serve_opened(name)
            self._promoted.pop(name, None)

    async def tell(self, name: str, reason: str) -> None:
        """Tell callers why a model's version that is to be served is not; empty: it is."""
        self.repository.tell(name, reason)

    async def open_here(self, name: str, version: int | None = None) -> Identity:
        """Open a version of a model beside the one that is served; `serve_opened` or `drop_opened` comes next.

        Args:
            name: the model's.
            version: None for the one that is to be served now.

        Raises:
            NotFoundError: the models folder has no such model.
            UnavailableError: the server is stopping.
            ServingError: the version that is to be served now cannot be opened.
            EmberlineError: the version that is named cannot be.
        """
        load = partial(self.repository.load, name) if version is None else partial(self.repository.load_version, name, version)
        async with self._control:
            await self._close(self._opened.pop(name, None))
            self._require_open()
            opening = asyncio.create_task(aside(load, f"open-{name}", LoadedModel.close))
            self._openings.add(opening)
            opening.add_done_callback(self._openings.discard)
            try:
                model = self._opened[name] = await opening
            except asyncio.CancelledError:
                self._require_open()
                raise
            return model.identity

    async def serve_opened(self, name: str) -> None:
        """Serve the model that was opened."""
        async with self._control:
            model = self._opened[name]
            await self._end_canary(name, f"version {model.version} is served now")
            del self._opened[name]  # not before: where this is cancelled meanwhile, `settle` lets go of it
            await self._close(self.repository.put(model))
            await asyncio.to_thread(self.repository.forget_old, name)

    async def drop_opened(self, name: str) -> None:
        """Let go of the model that was opened, if it was."""
        async with self._control:
            await self._close(self._opened.pop(name, None))

    async def unload_here(self, name: str) -> None:
        """As `unload_model`, of this process alone."""
        async with self._control:
            await self._end_canary(name, "the model was unloaded")
            await self._close(self.repository.remove(name))
            self._promoted.pop(name, None)

    async def _end_canary(self, name: str, note: str) -> None:
        await self._close(await self.canaries.end(name, note))

    async def _close(self, model: LoadedModel | None) -> None:
        if model is not None:
            await asyncio.to_thread(model.close)
            del model
            await asyncio.to_thread(give_back_free_memory)

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
            if self.observer.sees_all:
                note_model(model.name, model.version)
                note_rows(num_rows)
            return model.answer_quick(request, num_rows, names)
        except Exception as error:
            status = status_of(error).grpc
            note_model(model.name, model.version)
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
            model = self.repository.asked(name, version)
            note_model(model.name, model.version)
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
