"""When a Triton is to look into its models' folder again by itself: as soon as what is to be served there is something else."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from emberline.errors import ArtifactError, EmberlineError
from emberline.serving.live.folder import Found, Looker
from emberline.serving.live.identity import Identity
from emberline.serving.live.pacing import Files, Pacing
from emberline.storage import Place

if TYPE_CHECKING:
    from emberline.serving.triton.launcher import TritonServer

_State = Mapping[str, Identity | str]
"""What is to be served of each model, or why that cannot be told."""


class TritonUpdates:
    """Looks into a models folder, and has a Triton go over to what is new; what it refuses is tried again as `Pacing` says.

    A model whose folder is gone is served on.

    Args:
        models_dir: the folder.
        server: one that serves it.
        tell: is told, once for each, what is served now and what went wrong.
    """

    def __init__(self, models_dir: Place, server: "TritonServer", tell: Callable[[str], None]) -> None:
        self._server, self._tell = server, tell
        self._looker = Looker.of(models_dir, frozenset(server.models))
        self._pacing = Pacing()
        self._problem = ""
        self._served: _State = {}
        with suppress(EmberlineError, OSError):  # else all is new at the next look
            state = self._state(self._looker.look())
            self._served = {name: one for name, one in state.items() if isinstance(one, Identity) and server.models.get(name) == one.version}

    def refresh(self) -> Mapping[str, int]:
        """Have the server look now: models that are gone are unloaded, and what is another artifact under the same number is loaded again.

        Returns:
            The models, and the version of each.

        Raises:
            EmberlineError: as `TritonServer.refresh`, or the folder cannot be read.
            OSError: the same.
        """
        state = self._state(self._looker.look())
        models = self._server.refresh(again=self._new(state))
        self._served = state
        return models

    def look(self) -> None:
        """Look once."""
        try:
            found = self._looker.look()
        except (EmberlineError, OSError) as error:
            self._went_wrong(f"the models folder cannot be read; what is served is served on: {error}")
            return
        state = self._state(found)
        new = self._new(state)
        if not new:
            self._pacing.went_well()
            return
        files: Files = {path: stamp for one in found.values() if not isinstance(one, ArtifactError) for path, stamp in one.files().items()}
        if self._pacing.is_due(lambda: files):
            self._go_over(state, new, files)

    def _go_over(self, state: _State, new: Collection[str], files: Files) -> None:
        try:
            self._server.refresh(again=new, unload_gone=False)
        except (EmberlineError, OSError) as error:
            self._pacing.failed(files)
            self._went_wrong(f"not all that is new is served: {error}")
            return
        self._pacing.went_well()
        self._served = {**self._served, **state}
        self._problem = ""
        self._tell(f"serving {listed(self._server.models)}")

    def _new(self, state: _State) -> Collection[str]:
        return [name for name, one in state.items() if self._served.get(name) != one]

    def _state(self, found: Mapping[str, Found]) -> _State:
        state: dict[str, Identity | str] = {}
        for name, one in found.items():
            try:
                state[name] = str(one) if isinstance(one, ArtifactError) else self._looker.identity(one)
            except ArtifactError as error:
                state[name] = str(error)
        return state

    def _went_wrong(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._tell(problem)


def listed(models: Mapping[str, int]) -> str:
    """Models and their versions in words."""
    return ", ".join(f"{name} version {version}" for name, version in models.items())
