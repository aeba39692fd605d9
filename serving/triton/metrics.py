"""What Triton's metrics port shows of a model besides Triton's own counts. Inside Triton's Python process only, as `backend` is.

A metric of Triton's is changed by a message between processes, which takes longer than a small request. So requests only add up plain numbers, and a
thread passes them on now and then.

Triton 2.51 knows a family by its name. Where one process lets go of one, it is gone for all models and processes that have one of that name, and
they write to memory that was freed. So a family and its metrics, a few hundred bytes, are never let go of: counters go on where a version is loaded
again, as Prometheus wants it.
"""

import ctypes
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from emberline.serving.engine import Engine

PERIOD_S = 1.0
_LOG = logging.getLogger(__name__)
_COUNTERS = {
    "emberline_requests_total": "Requests by how they ended: ok, refused, failed or cancelled",
    "emberline_batches_total": "Batches that Triton handed over",
    "emberline_table_ids_total": "Ids that a table was asked for",
    "emberline_table_unknown_ids_total": "Of these, ids without a row of their own",
}
_GAUGES = {
    "emberline_model_delta": "The last delta that was added to it; 0 for none",
    "emberline_table_bytes": "Bytes of its tables in memory, in each process, or shared where they are mapped",
    "emberline_table_huge_page_bytes": "Of these, bytes on huge pages when it was opened",
}
_Series = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name and its labels."""


class MetricsReporter:
    """Counts what one process of a model does, and passes it on. Processes of one model add to the same counters.

    Args:
        engine: the model.
        period_s: seconds between two times that numbers are passed on.

    Attributes:
        ended: requests by how they ended, added to by the thread that answers.
        batches: batches so far.
    """

    def __init__(self, engine: Engine, period_s: float = PERIOD_S) -> None:
        self.ended: Counter[str] = Counter()
        self.batches = 0
        self._engine, self._memory = engine, engine.opened_memory
        self._families: dict[str, Any] = {}
        self._metrics: dict[_Series, Any] = {}
        self._told: dict[_Series, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(period_s,), name=f"metrics-{engine.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Pass the last numbers on, and stop."""
        self._stop.set()
        self._thread.join()

    def _run(self, period_s: float) -> None:
        try:
            for kind, families in ((pb_utils.MetricFamily.COUNTER, _COUNTERS), (pb_utils.MetricFamily.GAUGE, _GAUGES)):
                self._families |= {name: _kept(pb_utils.MetricFamily(name, text, kind)) for name, text in families.items()}
            self._tell()
            while not self._stop.wait(period_s):
                self._tell()
            self._tell()
        except Exception:  # noqa: BLE001 - Triton's classes tell no more, and a model without metrics, as where Triton has none, still answers
            _LOG.exception("metrics of model %s are not passed on any more", self._engine.name)

    def _tell(self) -> None:
        for series, value in self._read().items():
            before = self._told.get(series)
            if value == before:
                continue
            name, labels = series
            if series not in self._metrics:
                self._metrics[series] = _kept(self._families[name].Metric(labels=dict(labels)))
            if name in _GAUGES:
                self._metrics[series].set(value)
            else:
                self._metrics[series].increment(value - (before or 0.0))
            self._told[series] = value

    def _read(self) -> Mapping[_Series, float]:
        """Every number as it is now."""
        engine = self._engine
        model = (("model", engine.name), ("version", str(engine.version)))
        found: dict[_Series, float] = {("emberline_model_delta", model): engine.delta, ("emberline_batches_total", model): self.batches}
        found["emberline_table_bytes", model] = self._memory.num_bytes
        if self._memory.huge_bytes is not None:
            found["emberline_table_huge_page_bytes", model] = self._memory.huge_bytes
        for ended, count in self.ended.copy().items():
            found["emberline_requests_total", (*model, ("ended", ended))] = count
        for table, counts in engine.id_counts().items():
            labels = (*model, ("table", table))
            found["emberline_table_ids_total", labels] = counts.asked
            found["emberline_table_unknown_ids_total", labels] = counts.unknown
        return found


def _kept(metric: Any) -> Any:
    """The same, which is never let go of, not at the end of the process either."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(metric))
    return metric
