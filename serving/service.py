"""The service that both transports call: find the model, ask it, and count what came of it."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from emberline.errors import DeadlineError, UnavailableError
from emberline.serving.metrics import Metrics
from emberline.serving.model import Answers, LoadedModel, Row
from emberline.serving.protocol.messages import InferRequest, InferResponse
from emberline.serving.protocol.status import status_of
from emberline.serving.repository import Repository
from emberline.serving.settings import ServerSettings


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

    @property
    def ready(self) -> bool:
        """Whether new requests are taken: models are loaded before a service is made, so only a drain ends it."""
        return not self._draining

    def drain(self) -> None:
        """Refuse new requests from now on; those in flight go on."""
        self._draining = True

    async def infer(self, request: InferRequest, protocol: str) -> InferResponse:
        """Answer a v2 request.

        Args:
            request: its timeout may shorten the server's own.
            protocol: `http` or `grpc`, for the metrics.

        Raises:
            ServingError: it was refused, or the time was up.
        """
        with self._counted(protocol, request.model, request.version) as model:
            return await model.infer(request, self._timeout_s(request.timeout_s))

    async def answer_rows(
        self, name: str, rows: Sequence[Row], choose: Callable[[LoadedModel], tuple[str, ...]], protocol: str
    ) -> tuple[LoadedModel, Answers]:
        """A model's answers for plain rows, and the model that gave them.

        Args:
            name: the model's.
            rows: `{column: value}` each.
            choose: which answers of the model are wanted.
            protocol: for the metrics.

        Raises:
            ServingError: it was refused, or the time was up.
        """
        with self._counted(protocol, name, "") as model:
            return model, await model.answer_rows(rows, choose(model), self._timeout_s(None))

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
            if self._draining:
                raise UnavailableError("the server is stopping; ask again elsewhere or later")
            model = self.repository.get(name, version)
            yield model
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        except Exception as error:
            status = status_of(error).grpc
            raise
        finally:
            took_ns = time.perf_counter_ns() - started
            self.metrics.count_request(model.name if model else "", protocol, status, took_ns / 1e9)
            if model and status == "ok":
                model.statistics.success_count += 1
                model.statistics.success_ns += took_ns
            elif model:
                model.statistics.fail_count += 1
                model.statistics.fail_ns += took_ns
