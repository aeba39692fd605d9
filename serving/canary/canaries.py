"""The candidates of one server: of each model one, at most."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from emberline.errors import EmberlineError, NotFoundError, RequestError, ServingError, UnavailableError
from emberline.serving.canary.mirror import Mirror
from emberline.serving.finding import find_version_of
from emberline.serving.live.aside import aside
from emberline.serving.live.folder import Looker
from emberline.serving.live.identity import Identity
from emberline.serving.live.reasons import refusal_of
from emberline.serving.model import LoadedModel
from emberline.serving.observe.stages import UNSEEN
from emberline.serving.protocol.strict_json import quote
from emberline.serving.repository import Repository


class Canaries(Collector):
    """Opens candidates, has them asked, and tells of them, to Prometheus too; all of it belongs to the server's event loop but for the scrapes.

    Args:
        repository: the models that are served; it closes candidates with them.
        openings: what is cancelled when the server stops.
    """

    def __init__(self, repository: Repository, openings: set[asyncio.Task[LoadedModel]]) -> None:
        self._repository, self._openings = repository, openings
        self._mirrors: dict[str, Mirror] = {}
        self._notes: dict[str, str] = {}
        """Why the last canary of a model ended."""

    async def start(self, name: str, version: int, *, share: float, seed: int) -> None:
        """Open a version beside the one that is served, and have it asked a share of the requests from now on.

        Raises:
            NotFoundError: there is no such model or version.
            RequestError: it is the one that is served, or the model has a canary.
            UnavailableError: the server stops meanwhile.
            ServingError: it cannot be opened; the message says why.
        """
        self._require_free(name, version)
        opening = asyncio.create_task(aside(partial(self._open, name, version), f"canary-{name}", LoadedModel.close))
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)
        try:
            candidate = await opening
        except asyncio.CancelledError:
            raise UnavailableError("the server is stopping; ask again elsewhere or later") from None
        served = self._repository.get(name)
        self._notes.pop(name, None)
        self._repository.candidates[name] = candidate
        served.mirror = self._mirrors[name] = Mirror(served.engine, candidate.engine, share=share, seed=seed)

    def report(self, name: str) -> dict[str, Any]:
        """What was found so far, as `Mirror.report`, with `model`. Blocks for a moment.

        Raises:
            NotFoundError: the model is not served, or has no canary.
        """
        return {"model": name, **self._mirror(name).report()}

    async def take(self, name: str, note: str) -> LoadedModel:
        """End a canary, and hand out the candidate.

        Args:
            name: the model's.
            note: see `end`.

        Raises:
            NotFoundError: the model is not served, or has no canary.
        """
        self._mirror(name)
        found = await self.end(name, note)
        assert found is not None
        return found

    async def end(self, name: str, note: str) -> LoadedModel | None:
        """End a model's canary, if it has one: returns the candidate, which is to be closed.

        Args:
            name: the model's.
            note: why, for those who ask about it later.
        """
        mirror = self._mirrors.pop(name, None)
        if mirror is None:
            return None
        self._notes[name] = f"that of version {mirror.candidate_version} has ended: {note}"
        if (served := self._repository.find(name)) is not None:
            served.mirror = None
        candidate = self._repository.candidates.pop(name, None)
        await asyncio.to_thread(mirror.close)
        return candidate

    def candidate_of(self, name: str) -> Identity:
        """Which version is tried.

        Raises:
            NotFoundError: the model is not served, or has no canary.
        """
        self._mirror(name)
        return self._repository.candidates[name].identity

    def wanted(self, name: str) -> Identity | None:
        """What the models folder says is to be served of a model; None where it cannot be told. Blocks."""
        looker = Looker.of(self._repository.models_dir, frozenset(self._repository.served()))
        try:
            found = looker.look().get(name)
            return None if found is None or isinstance(found, EmberlineError) else looker.identity(found)
        except (EmberlineError, OSError):
            return None

    def collect(self) -> Iterable[Metric]:
        """The metrics of now."""
        mirrors = dict(self._mirrors)
        requests = CounterMetricFamily("emberline_canary_requests", "Requests that a candidate was asked too", labels=("model", "result"))
        cosine = GaugeMetricFamily("emberline_canary_mean_cosine", "Of the candidate's vectors and those served", labels=("model",))
        most = GaugeMetricFamily("emberline_canary_max_difference", "The greatest of the candidate's values to those served", labels=("model",))
        for name, mirror in mirrors.items():
            for result, count in mirror.counts().items():
                requests.add_metric((name, result), count)
            if (mean := mirror.mean_cosine) is not None:
                cosine.add_metric((name,), mean)
            most.add_metric((name,), mirror.max_difference)
        return (requests, cosine, most)

    def _mirror(self, name: str) -> Mirror:
        self._repository.get(name)
        if name not in self._mirrors:
            raise NotFoundError(f"model {quote(name)} has no canary" + (f"; {note}" if (note := self._notes.get(name)) else ""))
        return self._mirrors[name]

    def _require_free(self, name: str, version: int) -> None:
        served = self._repository.get(name)
        if name in self._mirrors:
            raise RequestError(
                f"model {quote(name)} has a canary already, of version {self._mirrors[name].candidate_version}: promote or drop it first"
            )
        if served.version == version:
            raise RequestError(f"version {version} of model {quote(name)} is the one that is served")

    def _open(self, name: str, version: int) -> LoadedModel:
        repository = self._repository
        place = find_version_of(repository.models_dir, name, version)
        if place is None:
            raise NotFoundError(f"model {quote(name)} has no version {version} in the models folder")
        try:
            candidate = repository.load_version(name, version)
        except EmberlineError as error:
            raise ServingError(refusal_of(error, place, repository.models_dir, repository.cache)) from error
        candidate.engine.watch_stages(UNSEEN)  # stages are those of what is served
        return candidate
