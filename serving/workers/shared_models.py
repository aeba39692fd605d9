"""What all workers serve, and how that changes: in all of them or in none."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from emberline.errors import EmberlineError, NotFoundError, UnavailableError
from emberline.serving.live.identity import Identity
from emberline.serving.live.reasons import UNTOLD
from emberline.serving.workers.team import Team


class SharedModels:
    """The models of several workers.

    Args:
        team: the workers.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._served: dict[str, Identity] = {}
        self._unloaded: set[str] = set()
        self._reasons: dict[str, str] = {}
        self.changing = asyncio.Lock()
        """Held for the whole of a change: a worker that is started again is told what to serve before or after it."""

    @property
    def versions(self) -> Mapping[str, int]:
        """What is served, by model: a worker that is started again serves the same."""
        return {name: identity.version for name, identity in self._served.items()}

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why models are not served, or not in the version that is to be."""
        return self._reasons

    async def start(self, found: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Take what the workers serve when all of them are up: where a version came while they started, all go over to it.

        Args:
            found: what each told of its models.

        Raises:
            EmberlineError: they cannot agree on a version.
        """
        told = [{model["name"]: Identity(model["version"], model["digest"]) for model in models} for models in found]
        self._served = told[0]
        self._reasons = {model["name"]: model["reason"] for model in found[0] if model["reason"]}
        async with self.changing:
            for name in {name for models in told for name in models}:
                if len({models.get(name) for models in told}) > 1:
                    await self._load(name)

    def served(self) -> Mapping[str, Identity]:
        """What is served, by model."""
        return self._served

    def unloaded(self) -> Collection[str]:
        """Models that somebody unloaded."""
        return self._unloaded

    async def switch(self, name: str, wanted: Identity) -> None:
        """As a `Switcher` does.

        Raises:
            UnavailableError: a worker is missing.
            EmberlineError: a worker cannot open it.
        """
        async with self.changing:
            if name not in self._unloaded and self._served.get(name) != wanted:
                await self._load(name, wanted.version)

    async def tell(self, name: str, reason: str) -> None:
        """As a `Switcher` does."""
        if name not in self._unloaded and self._reasons.get(name, "") != reason:
            if reason:
                self._reasons[name] = reason
            else:
                self._reasons.pop(name)
            await self._team.ask_all("tell", {"name": name, "reason": reason})

    async def load(self, name: str) -> None:
        """Have all of them open the version of a model that is to be served, and then serve it.

        Raises:
            UnavailableError: a worker is missing.
            EmberlineError: one cannot open it; all stay as they were.
        """
        async with self.changing:
            try:
                await self._load(name)
            except (UnavailableError, NotFoundError):
                raise
            except EmberlineError:
                told = [answer for answer in await self._team.ask_all("reason", name) if isinstance(answer, str) and answer]
                await self.tell(name, (told or [UNTOLD])[0])
                raise

    async def unload(self, name: str) -> None:
        """Have none of them serve a model.

        Raises:
            UnavailableError: a worker is missing.
            NotFoundError: it is not served.
        """
        async with self.changing:
            self._team.require_all()
            if self._served.pop(name, None) is not None:  # first: a worker that ends meanwhile is started again without it
                self._unloaded.add(name)
                self._reasons[name] = "unloaded"
            for answer in await self._team.ask_all("unload", name, takes_long=True):
                if isinstance(answer, BaseException):
                    raise answer

    async def _load(self, name: str, version: int | None = None) -> None:
        self._team.require_all()
        answers = await self._team.ask_all("open", {"name": name, "version": version}, takes_long=True)
        failed = sorted((one for one in answers if isinstance(one, BaseException)), key=lambda one: isinstance(one, UnavailableError))
        opened = {Identity(*one) for one in answers if not isinstance(one, BaseException)}
        if failed or len(opened) != 1 or len(answers) != self._team.size:
            await self._team.ask_all("drop", name)
            raise failed[0] if failed else UnavailableError(f"the workers opened different versions of {name!r}; ask again")
        (self._served[name],) = opened
        self._unloaded.discard(name)
        self._reasons.pop(name, None)
        await self._team.ask_all("serve", name, takes_long=True)
