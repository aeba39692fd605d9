"""Has the models folder looked at now and then, and what it says served."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from emberline.errors import ArtifactError, EmberlineError, UnavailableError
from emberline.serving.live.aside import aside
from emberline.serving.live.folder import Found, Looker
from emberline.serving.live.identity import Identity
from emberline.serving.live.metrics import UpdateMetrics
from emberline.serving.live.pacing import Pacing
from emberline.serving.live.reasons import refusal_of, what_is
from emberline.storage import Place

DEFAULT_PERIOD_S = 5.0
_log = logging.getLogger(__name__)


class Switcher(Protocol):
    """What serves models: one process, or several that serve the same."""

    def served(self) -> Mapping[str, Identity]:
        """What is served, by model."""

    def unloaded(self) -> Collection[str]:
        """Models that somebody took away by a call: they stay away until they are loaded by one."""

    async def switch(self, name: str, wanted: Identity) -> None:
        """Open a version beside the one that is served, if any, and then serve it in its place; nothing where it is served, or was unloaded.

        Raises:
            UnavailableError: not now; that says nothing about the version.
            EmberlineError: it cannot be opened; what was served still is.
        """

    async def tell(self, name: str, reason: str) -> None:
        """Tell those who ask about a model why not what the folder says is served; an empty reason: it is."""


class LiveUpdates:
    """Looks into the models folder, and has switched to what it says.

    A version is tried again as `Pacing` says once it was refused. A model whose folder is gone is served on.

    Args:
        models_dir: the folder.
        switcher: what serves.
        metrics: where failures are counted.
        cache: where what comes from a URL is kept; None for the default.
    """

    def __init__(self, models_dir: Place, switcher: Switcher, metrics: UpdateMetrics, cache: Path | None = None) -> None:
        self._models_dir, self._switcher, self._metrics, self._cache = models_dir, switcher, metrics, cache
        self._looker = Looker.of(models_dir, frozenset(switcher.served()))
        self._pacing: defaultdict[str, Pacing] = defaultdict(Pacing)
        self._problems: dict[str, str] = {}
        """Why what is to be served is not, by model."""
        self._gone: set[str] = set()
        self._trouble = ""
        """Why the folder cannot be read."""

    async def run(self, period_s: float) -> None:
        """Look every so many seconds; until it is cancelled."""
        while True:
            await asyncio.sleep(period_s)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - whatever it is, it must be told and the looks must go on
                _log.error("a look into the models folder failed", exc_info=error)

    async def look(self) -> None:
        """Look once, and serve what is new."""
        try:
            found = await aside(self._looker.look, "look")
        except (EmberlineError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("the models folder cannot be read; what is served is served on: %s", error)
            return
        self._trouble = ""
        self._tell_gone(self._switcher.served().keys() - found.keys())
        for name, wanted in found.items():
            if name in self._switcher.unloaded():
                self._problems.pop(name, None)
                self._metrics.is_well(name)
            else:
                await self._follow(name, wanted)
        for name in self._problems.keys() - found.keys():
            await self._mend(name)

    async def _follow(self, name: str, wanted: Found) -> None:
        """Serve one model's version unless it is served."""
        try:
            if isinstance(wanted, ArtifactError):
                raise wanted
            identity = await aside(partial(self._looker.identity, wanted), "look")
        except ArtifactError as error:  # seen at each look, and counted once
            if str(error) != self._problems.get(name):
                await self._refuse(name, self._models_dir if isinstance(wanted, ArtifactError) else wanted.place, error)
            return
        if self._switcher.served().get(name) == identity:
            await self._mend(name)
            return
        files, pacing = await aside(wanted.files, "look"), self._pacing[name]
        if not pacing.is_due(lambda: files):
            return
        try:
            await self._switcher.switch(name, identity)
        except UnavailableError as error:
            _log.info("model %s, version %d is not opened now: %s", name, wanted.version, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the old version serves on
            if await aside(wanted.has_changed, "look"):
                _log.info("model %s, version %d went or changed before it was open", name, wanted.version)
                return
            pacing.failed(files)
            await self._refuse(name, wanted.place, error)
        else:
            await self._mend(name)

    async def _refuse(self, name: str, place: Place, error: Exception) -> None:
        self._metrics.failed(name)
        problem = str(error) if isinstance(error, EmberlineError) else repr(error)
        if problem == self._problems.get(name):
            return
        self._problems[name] = problem
        served = self._switcher.served().get(name)
        goes_on = "is not served" if served is None else f"goes on with version {served.version}"
        unexpected = None if isinstance(error, EmberlineError) else error
        _log.error("model %s %s: %s is refused: %s", name, goes_on, what_is(place), problem, exc_info=unexpected)
        await self._switcher.tell(name, refusal_of(error, place, self._models_dir, self._cache))

    async def _mend(self, name: str) -> None:
        """What is to be served is."""
        self._pacing[name].went_well()
        self._metrics.is_well(name)
        self._problems.pop(name, None)
        await self._switcher.tell(name, "")

    def _tell_gone(self, gone: set[str]) -> None:
        for name in gone - self._gone:
            _log.warning("model %s has no version in the models folder any more; it is served on", name)
        self._gone = gone
