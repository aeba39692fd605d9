"""One table's keys: who gets a row, who gives way, and what is told of it.

a batch's ids ──check──► room for all of them? else an error, and nothing is changed
              ──read──►  have a row │ admitted now: a row, which others may have to give up │ not yet: none
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from emberline.errors import CapacityError, ConfigError, TrainingError
from emberline.train.dynamic.admission import new_counter
from emberline.train.dynamic.bank import lazy_memory
from emberline.train.dynamic.keys import DictIndex, new_index
from emberline.train.dynamic.lots import LOT
from emberline.train.dynamic.options import ScoreStrategy
from emberline.train.dynamic.slots import SlotIndex
from emberline.train.dynamic.state import DynamicCounters, DynamicTable

Numbers = np.ndarray[Any, np.dtype[Any]]
FIRST_CAPACITY = 1024
"""Rows that a table has room for at first, where its config doesn't say."""
NO_ROW = -1
MOST_ROWS = 2**31 - 8
"""Of a table on one rank."""
OWN_SCORES = (ScoreStrategy.TIMESTAMP, ScoreStrategy.LFU, ScoreStrategy.CUSTOMIZED)
"""Strategies whose score is not the last step."""


class Given:
    """What a batch got of a table.

    Args:
        rows: int64 [n], within the table; `NO_ROW` for ids that are not admitted yet.
        new_keys: int64 [m].
        new_rows: int64 [m], which they got.
        lost: int64, rows that keys lost before that.
    """

    def __init__(self, rows: Numbers, new_keys: Numbers, new_rows: Numbers, lost: Numbers) -> None:
        self.rows, self.new_keys, self.new_rows, self.lost = rows, new_keys, new_rows, lost


class KeyedRows:
    """The keys of one table on one rank.

    Args:
        table: what it is.

    Raises:
        ConfigError: it has no rows, or counts ids and has no room for one.
    """

    def __init__(self, table: DynamicTable) -> None:
        admission = table.options.admission
        if table.max_rows < 1 or table.dim < 1:
            raise ConfigError(f"table {table.name!r}: {table.max_rows} rows of {table.dim} numbers; both must be at least 1")
        if table.max_rows > MOST_ROWS:
            raise ConfigError(f"table {table.name!r}: {table.max_rows} rows on one rank; they must be fewer than {MOST_ROWS + 1}")
        if admission is not None and table.counter_rows < 1:
            raise ConfigError(f"table {table.name!r} admits ids that are read {admission.threshold} times, but counts none: give it counter_capacity")
        self.totals = DynamicCounters(capacity=min(table.options.init_capacity_per_rank or FIRST_CAPACITY, table.max_rows))
        self.table = table
        self.admission = None if admission is None else new_counter(admission.threshold, table.counter_rows)
        strategy = table.options.score_strategy
        self._strategy, self._is_fixed = strategy, strategy == ScoreStrategy.NO_EVICTION
        self._removed: list[tuple[int, Numbers]] = []
        self._tracked_from: int | None = None
        self._scores: Numbers | None = None
        self.index: SlotIndex | DictIndex = self._make(strategy in OWN_SCORES)

    def _make(self, has_scores: bool) -> Any:
        """The index; and memory for scores, where they are not the last steps."""
        if has_scores:
            self._scores = np.frombuffer(lazy_memory(8 * self.table.max_rows, repr(self.table.name)), dtype=np.int64)
        return new_index(self.table.max_rows, self.totals.capacity)

    def check(self, keys: Numbers) -> None:
        """See whether a batch's ids, int64 [n], will all find room.

        Raises:
            CapacityError: they will not.
        """
        max_rows = self.table.max_rows
        if len(self.index) + len(keys) <= max_rows:
            return
        rows = self.index.find(keys)
        missing = keys[rows < 0]
        wanted = len(np.unique(missing))
        if len(self.index) + wanted <= max_rows:  # most batches of a full table: few ids or none are new
            return
        kept = len(self.index) if self._is_fixed else len(np.unique(rows[rows >= 0]))
        if kept + wanted > max_rows and self.admission is not None:
            wanted = len(np.unique(missing[self.admission.copy().count(missing)]))
        if kept + wanted > max_rows:
            self.totals.failed += kept + wanted - max_rows
            raise CapacityError(self._no_room(kept, wanted))

    def read(self, keys: Numbers, step: int, now: int) -> Given:
        """Read a batch's ids, int64 [n], which `check` let pass.

        Args:
            keys: in order.
            step: training steps with this one.
            now: microseconds since 1970.
        """
        is_sure = len(self.index) + len(keys) <= self.table.max_rows
        if self.admission is None:
            lost = _NONE if is_sure else self._room_for(keys, self.index.find(keys), step)
            read = self.index.read(keys, step)
            return self._noted(Given(read.rows, read.new_keys, read.new_rows, lost), read.num_hits, now)
        found = self.index.find(keys)
        is_read = self._admitted(keys, found)
        lost = _NONE if is_sure else self._room_for(keys[is_read], found[is_read], step)
        read = self.index.read(keys[is_read], step)
        rows = np.full(len(keys), NO_ROW, dtype=np.int64)
        rows[is_read] = read.rows
        return self._noted(Given(rows, read.new_keys, read.new_rows, lost), read.num_hits, now)

    def take_out(self, keys: Numbers, step: int) -> Numbers:
        """Remove keys that have a row, distinct, int64 [n]; returns the rows that they had. `step`: the training step that it belongs to."""
        rows = self.index.remove(keys)
        self.note_removed(keys, step)
        return rows

    def note_removed(self, keys: Numbers, step: int) -> None:
        """Take down, where that is asked for, that keys lost their rows: distinct, int64 [n]; `step` as of `take_out`."""
        if self._tracked_from is not None and len(keys):
            self._removed.append((step, keys))

    def track_removals(self, is_on: bool, step: int) -> None:
        """Begin, or cease, to keep note of keys that are removed."""
        self._removed = []
        self._tracked_from = step if is_on else None

    def removed_since(self, step: int) -> Numbers:
        """Keys removed in this training step or later that did not come back, int64 ascending.

        Raises:
            TrainingError: nobody kept note of them.
        """
        if self._tracked_from is None or step < self._tracked_from:
            since = "is not kept" if self._tracked_from is None else f"is kept from step {self._tracked_from} on"
            raise TrainingError(f"table {self.table.name!r}: which ids were removed {since}, but asked for from step {step} on")
        keys = np.unique(np.concatenate([_NONE, *(keys for at, keys in self._removed if at >= step)]))
        lost: Numbers = keys[self.index.find(keys) < 0]
        return lost

    def forget_removals(self, before_step: int) -> None:
        """Keep no note any more of what was removed before this step."""
        self._removed = [(step, keys) for step, keys in self._removed if step >= before_step]
        if self._tracked_from is not None:
            self._tracked_from = max(self._tracked_from, before_step)

    def items(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Keys ascending, and of each the row, the last step and the score, int64 [K]."""
        keys, rows, steps = self.index.items()
        order = np.argsort(keys)
        keys, rows, steps = keys[order], rows[order], steps[order]
        return keys, rows, steps, steps if self._scores is None else self._scores[rows]

    def replace(self, keys: Numbers, last_steps: Numbers, scores: Numbers) -> Numbers:
        """Begin with these keys, distinct and no more than there are rows; returns the row of each, int64 [n]."""
        self.index.clear()
        self._removed = []
        rows = self.index.add(keys, last_steps)
        if self._scores is not None:
            self._scores[rows] = scores
        self._grow()
        return rows

    def set_scores(self, keys: Numbers, scores: Numbers) -> None:
        """Let keys that have a row have these scores.

        Raises:
            TrainingError: the table's strategy gives them.
        """
        if self._scores is None or self._strategy != ScoreStrategy.CUSTOMIZED:
            raise TrainingError(f"table {self.table.name!r}: scores are set where score_strategy is CUSTOMIZED; here it is {self._strategy}")
        rows = self.index.find(keys)
        self._scores[rows[rows >= 0]] = scores[rows >= 0]

    def counters(self) -> DynamicCounters:
        """A copy of what happened so far."""
        counted = 0 if self.admission is None else len(self.admission)
        return DynamicCounters(**asdict(self.totals) | {"size": len(self.index), "counted": counted})

    def _admitted(self, keys: Numbers, found: Numbers) -> Numbers:
        """Bool [n]: which ids have a row, or get one now."""
        is_read = found >= 0
        if self.admission is None:
            return np.ones(len(keys), dtype=bool)
        before = self.admission.forgotten
        is_read[~is_read] = self.admission.count(keys[~is_read])
        self.totals.forgotten += self.admission.forgotten - before
        return is_read

    def _room_for(self, keys: Numbers, found: Numbers, step: int) -> Numbers:
        """Make room for those of a batch's ids that were not found; returns the rows that others lost."""
        wanted = len(np.unique(keys[found < 0]))
        return self._make_room(wanted, found[found >= 0], step) if wanted else _NONE

    def _make_room(self, wanted: int, own_rows: Numbers, step: int) -> Numbers:
        """Let enough keys go that the batch does not read; returns the rows that they had."""
        number = self._leaving(wanted)
        if not number:
            return _NONE
        going = self.index.lowest(number, own_rows, self._scores)
        assert len(self.index) - len(going) + wanted <= self.table.max_rows
        self.totals.evicted += len(going)
        return self.take_out(going, step)

    def _leaving(self, wanted: int) -> int:
        """How many keys go, many at once, so that so many new ones find room; 0 where there is room."""
        missing = wanted - (self.table.max_rows - len(self.index))
        return max(missing, self.table.max_rows // LOT) if missing > 0 else 0

    def _count(self, read: int, hits: int, admitted: int, rejected: int) -> None:
        """Take note of a batch's ids: how many there were, had a row, were given one, were not admitted."""
        totals = self.totals
        totals.seen += read
        totals.hits += hits
        totals.misses += read - hits
        totals.admitted += admitted
        totals.rejected += rejected
        self._grow()

    def _noted(self, given: Given, num_hits: int, now: int) -> Given:
        rows = given.rows if self.admission is None else given.rows[given.rows >= 0]
        self._count(len(given.rows), num_hits, len(given.new_keys), len(given.rows) - len(rows))
        if self._scores is not None:
            self._scores[given.new_rows] = 0
            if self._strategy == ScoreStrategy.LFU:
                np.add.at(self._scores, rows, 1)
            elif self._strategy == ScoreStrategy.TIMESTAMP:
                self._scores[rows] = now
        return given

    def _grow(self) -> None:
        while self.totals.capacity < len(self.index):
            self.totals.capacity = min(2 * self.totals.capacity, self.table.max_rows)

    def _no_room(self, kept: int, wanted: int) -> str:
        whom = "and score_strategy is NO_EVICTION" if self._is_fixed else f"{kept} of which this batch reads"
        return (
            f"table {self.table.name!r} has {len(self.index)} ids in {self.table.max_rows} rows of this rank, {whom}, and {wanted} new ids need rows"
            "; raise max_capacity, or make batches smaller"
        )


_NONE: Numbers = np.empty(0, dtype=np.int64)
