"""Looks for new deltas beside a model that is served, and adds them."""

import logging
import threading
from typing import TYPE_CHECKING

from emberline.errors import EmberlineError
from emberline.serving.deltas.files import delta_path
from emberline.serving.live.pacing import Files, Pacing, files_below

if TYPE_CHECKING:
    from emberline.serving.engine import Engine

DEFAULT_PERIOD_S = 5.0
_LOG = logging.getLogger(__name__)


class DeltaWatcher:
    """A thread that looks into the artifact's folder now and then. A delta that cannot be added is logged once for each reason and tried again
    as `Pacing` says.

    Args:
        engine: what deltas are added to.
        period_s: seconds between two looks; 0 never looks.
    """

    def __init__(self, engine: "Engine", period_s: float = DEFAULT_PERIOD_S) -> None:
        self._engine = engine
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pacing = Pacing()
        self.problem = ""
        """Why the next delta cannot be added; empty where all is well."""
        if period_s > 0:
            self._thread = threading.Thread(target=self._run, name=f"deltas-{engine.name}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop looking; a delta that is being added is waited for."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self._look()

    def _look(self) -> None:
        if not self._pacing.is_due(self._next_files):
            return
        try:
            self._engine.apply_new_deltas()
            self.problem = ""
            self._pacing.went_well()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be told and the thread must live
            self._pacing.failed(self._next_files())
            problem = str(error) if isinstance(error, EmberlineError) else repr(error)
            if problem != self.problem:
                self.problem = problem
                place = f"{self._engine.name}, version {self._engine.version}"
                _LOG.error("model %s goes on with delta %d: the next one cannot be added: %s", place, self._engine.delta, problem)

    def _next_files(self) -> Files:
        """The files of the delta that is to be added next."""
        return files_below(delta_path(self._engine.artifact.root, self._engine.delta + 1))
