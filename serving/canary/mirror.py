"""Asks a candidate what the served version was asked, and compares the answers, in a thread of its own."""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberline.errors import EmberlineError, ServingError, first_line
from emberline.serving.artifact import KNOWN
from emberline.serving.canary.asked import Ids, count_unknown, row_ids, share_of
from emberline.serving.canary.drift import Answers, Drift, values_of
from emberline.serving.encoded import split_ids
from emberline.serving.engine import Engine
from emberline.serving.observe.context import CURRENT
from emberline.serving.packed_request import PackedRequest
from emberline.serving.request import CheckedRequest
from emberline.serving.tiled_rows import TiledRows
from emberline.serving.unknown import IdCounts

if TYPE_CHECKING:
    from emberline.serving.model import Ask

NUM_KEPT = 10
"""Rows that moved most which are kept."""
MOST_WAITING, MOST_WAITING_ROWS = 64, 1 << 14
"""Requests and rows that may wait for the candidate: what comes beyond them is dropped."""
_CLOSE_S = 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class _Answered:
    """A request and the served version's answers."""

    request_id: str
    ask: "Ask"
    answers: Answers
    num_rows: int


class Mirror:
    """Takes a share of the answered requests of a model, and what a candidate has to say to them.

    Requests and answers are kept as they are until the thread comes to them: neither changes once it is answered.

    Args:
        served: the version that answers.
        candidate: the other one.
        share: of the requests that are asked again, over 0 and at most 1.
        seed: of the choice: the n-th request is taken or not, whatever the others are.

    Attributes:
        max_difference: the greatest difference so far.
        mean_cosine: of all vectors so far; None where there are none.
    """

    max_difference: float
    mean_cosine: float | None

    def __init__(self, served: Engine, candidate: Engine, *, share: float, seed: int) -> None:
        self.served_version, self.candidate_version, self.share, self.seed = served.version, candidate.version, share, seed
        self._served, self._candidate = served, candidate
        self._draw = random.Random(seed)
        self._waiting: deque[_Answered] = deque()
        self._rows = 0
        self._wake = threading.Condition()
        self._ends = False
        self._lock = threading.Lock()
        self._drift = Drift(NUM_KEPT)
        self._unknown: dict[str, tuple[IdCounts, IdCounts]] = {}
        self._seen = self._mirrored = self._dropped = self._compared = self._failed = self._compared_rows = 0
        self._took_s = self._most_s = 0.0
        self._last_error = ""
        self.max_difference, self.mean_cosine = 0.0, None
        self._thread = threading.Thread(target=self._run, name=f"canary-{served.name}", daemon=True)
        self._thread.start()

    def offer(self, ask: "Ask", answers: Answers, num_rows: int) -> None:
        """Take one request and its answers, or leave them, at once; for the server's event loop only."""
        self._seen += 1
        if self._draw.random() >= self.share:
            return
        self._mirrored += 1
        context = CURRENT.get()
        with self._wake:
            if self._ends or len(self._waiting) >= MOST_WAITING or (self._waiting and self._rows + num_rows > MOST_WAITING_ROWS):
                self._dropped += 1
                return
            self._rows += num_rows
            self._waiting.append(_Answered("" if context is None else context.id, ask, answers, num_rows))
            self._wake.notify()

    def close(self) -> None:
        """Take no more, and end the thread; a request that hangs is waited for only a while."""
        with self._wake:
            self._ends = True
            self._waiting.clear()
            self._wake.notify()
        self._thread.join(_CLOSE_S)

    def counts(self) -> dict[str, int]:
        """Requests: `compared`, `failed` (the candidate gave no answer that can be compared) and `dropped` (too many waited)."""
        return {"compared": self._compared, "failed": self._failed, "dropped": self._dropped}

    def report(self) -> dict[str, Any]:
        """What was found so far; docs/serving.md tells what is in it."""
        with self._lock:
            asked = self._compared + self._failed
            return {
                "version": self.served_version,
                "candidate": self.candidate_version,
                "share": self.share,
                "seed": self.seed,
                "requests": {"seen": self._seen, "mirrored": self._mirrored, **self.counts()},
                "rows": self._compared_rows,
                **self._drift.as_json(),
                "unknown_ids": {table: _told(*counts) for table, counts in self._unknown.items()},
                "candidate_seconds": {"mean": self._took_s / asked if asked else None, "max": self._most_s if asked else None},
                "last_error": self._last_error,
            }

    def _run(self) -> None:
        while (one := self._next()) is not None:
            started = time.perf_counter()
            took: float | None = None
            try:
                answers = self._ask(one)
                took = time.perf_counter() - started
                self._compare(one, answers)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the candidate's, and nobody waits for it
                self._fail(error)
            took = time.perf_counter() - started if took is None else took
            self._took_s, self._most_s = self._took_s + took, max(self._most_s, took)

    def _next(self) -> _Answered | None:
        with self._wake:
            while not self._waiting and not self._ends:
                self._wake.wait()
            if self._ends:
                return None
            one = self._waiting.popleft()
            self._rows -= one.num_rows
            return one

    def _ask(self, one: _Answered) -> Answers:
        names = tuple(name for name in one.ask.names if name != KNOWN)
        (found,) = self._candidate.predict_many([_packed(self._candidate, one.ask)], [names])
        if isinstance(found, ServingError):
            raise found
        return found

    def _compare(self, one: _Answered, answers: Answers) -> None:
        request = _checked(self._served, one.ask)
        num_rows = request.num_rows
        ids: dict[str, Ids] = split_ids(self._served.schema, request, request.ids) if self._served.schema.sparse_features else {}
        before, after = (count_unknown(engine, ids) for engine in (self._served, self._candidate))
        ours = {name: answer for name, answer in one.answers.items() if name != KNOWN}
        with self._lock:
            for moved in self._drift.add(ours, answers, num_rows):
                told = {
                    "request_id": one.request_id,
                    "row": moved.row,
                    "ids": row_ids(self._served.schema, request, moved.row),
                    "served": values_of(ours, moved.row, num_rows),
                    "candidate": values_of(answers, moved.row, num_rows),
                }
                self._drift.keep(moved, told)
            for table in before.keys() | after.keys():
                was = self._unknown.get(table, (IdCounts(), IdCounts()))
                found = (before.get(table, IdCounts()), after.get(table, IdCounts()))
                self._unknown[table] = _sum(was[0], found[0]), _sum(was[1], found[1])
            self._compared += 1
            self._compared_rows += num_rows
            self.max_difference, self.mean_cosine = self._drift.max_difference, self._drift.mean_cosine

    def _fail(self, error: Exception) -> None:
        told = first_line(error) if isinstance(error, ServingError) else "it failed; the server's log says why"
        if told != self._last_error:
            unexpected = None if isinstance(error, EmberlineError) else error
            _log.warning("version %d, a candidate, did not answer: %s", self.candidate_version, error, exc_info=unexpected)
        self._failed, self._last_error = self._failed + 1, told


def _packed(engine: Engine, ask: "Ask") -> PackedRequest:
    """What the engine is asked: plain rows are encoded as its own version does."""
    return ask.request if isinstance(ask.request, PackedRequest) else _encoded(engine, ask.request)


def _checked(engine: Engine, ask: "Ask") -> CheckedRequest:
    return engine.check(ask.request) if isinstance(ask.request, PackedRequest) else _encoded(engine, ask.request)


def _encoded(engine: Engine, rows: "Sequence[Any] | TiledRows") -> CheckedRequest:
    return engine.encode_tiled(rows.users, rows.rows) if isinstance(rows, TiledRows) else engine.encode_rows(rows)


def _sum(one: IdCounts, other: IdCounts) -> IdCounts:
    return IdCounts(one.asked + other.asked, one.unknown + other.unknown)


def _told(served: IdCounts, candidate: IdCounts) -> dict[str, Any]:
    return {"asked": max(served.asked, candidate.asked), "served": share_of(served), "candidate": share_of(candidate)}
