"""A dictionary of rows that follows the rules of tables that grow, one id at a time."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from emberline.train.dynamic.initial_values import Numbers, first_vectors, stream
from emberline.train.dynamic.options import ScoreStrategy
from emberline.train.dynamic.state import DynamicTable

NAMES = ("seen", "hits", "misses", "admitted", "rejected", "evicted", "expired", "removed", "failed", "dropped", "forgotten")
"""Counters that add up."""


class FullError(Exception):
    """New ids find no room."""


@dataclass
class Row:
    weights: Numbers
    total: float
    last_step: int
    score: int


@dataclass
class Oracle:
    """One table, learning by row-wise Adagrad.

    Args:
        table: what it is.
        lr: the rate.
        eps: of Adagrad.
        begins_with: the accumulator's first value.
    """

    table: DynamicTable
    lr: float
    eps: float
    begins_with: float
    rows: dict[int, Row] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    last_read: list[bool] = field(default_factory=list)
    """Of the last batch, which ids read a row."""
    numbers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))

    def copy(self) -> "Oracle":
        """One that counts by itself; it has the same rows."""
        return replace(self, counts=dict(self.counts), numbers=dict(self.numbers))

    def check(self, keys: list[int]) -> None:
        """Whether a batch's ids find room."""
        missing = [key for key in keys if key not in self.rows]
        kept = len(self.rows) if self._keeps_all else len({key for key in keys if key in self.rows})
        wanted = {key for key, is_in in zip(missing, self.copy()._admit(missing), strict=True) if is_in}
        if kept + len(wanted) > self.table.max_rows:
            self.numbers["failed"] += kept + len(wanted) - self.table.max_rows
            raise FullError

    def read(self, keys: list[int], step: int, now: int) -> list[Row | None]:
        """The row of each id of a batch; None of those that are not admitted."""
        known = [key in self.rows for key in keys]
        missing = [key for key, is_in in zip(keys, known, strict=True) if not is_in]
        admitted = iter(self._admit(missing))
        is_read = [is_in or next(admitted) for is_in in known]
        new = dict.fromkeys(key for key, before, now_in in zip(keys, known, is_read, strict=True) if now_in and not before)
        needed = len(new) - (self.table.max_rows - len(self.rows))
        if needed > 0:
            free = sorted((row.score, key) for key, row in self.rows.items() if key not in set(keys))
            for _, key in free[: max(needed, self.table.max_rows // 32)]:
                self._remove(key)
                self.numbers["evicted"] += 1
        for key in new:
            self.rows[key] = Row(self._first(key), self.begins_with, step, 0)
        found = [self.rows[key] if now_in else None for key, now_in in zip(keys, is_read, strict=True)]
        for row in found:
            if row is not None:
                self._touch(row, step, now)
        self.last_read = is_read
        more = {"seen": len(keys), "hits": sum(known), "misses": len(keys) - sum(known), "admitted": len(new), "rejected": found.count(None)}
        for name, number in more.items():
            self.numbers[name] += number
        return found

    def learn(self, gradients: dict[int, Numbers]) -> None:
        """Update rows, by id."""
        for key, gradient in gradients.items():
            row = self.rows[key]
            total = torch.tensor(row.total) + np.mean(gradient * gradient).item()
            rate = self.lr / (total.sqrt() + self.eps)
            row.total = total.item()
            row.weights = torch.from_numpy(row.weights).addcmul(torch.from_numpy(gradient), rate, value=-1.0).numpy()

    def remove(self, keys: list[int]) -> int:
        own = set(keys) & set(self.rows)
        for key in own:
            self._remove(key)
        for key in keys:
            self.counts.pop(key, None)
        self.numbers["removed"] += len(own)
        return len(own)

    def expire(self, before_step: int) -> int:
        own = [key for key, row in self.rows.items() if row.last_step < before_step]
        for key in own:
            self._remove(key)
        self.numbers["expired"] += len(own)
        return len(own)

    def fixed(self, purpose: str) -> Numbers:
        """What unknown ids read, or ids that are not admitted."""
        options = self.table.options
        initializer = options.eval_initializer
        if purpose == "unadmitted":
            assert options.admission is not None
            initializer = options.admission.initializer
        vectors: Numbers = first_vectors(initializer, stream(7, self.table.name, purpose), np.zeros(1, dtype=np.int64), self.table.dim)[0]
        return vectors

    @property
    def _keeps_all(self) -> bool:
        return self.table.options.score_strategy == ScoreStrategy.NO_EVICTION

    def _admit(self, keys: list[int]) -> list[bool]:
        admission = self.table.options.admission
        if admission is None:
            return [True] * len(keys)
        flags, admitted = [], set()
        for key in keys:
            count = self.counts.get(key, 0) + 1
            if key in admitted or count >= admission.threshold:
                admitted.add(key)
                self.counts.pop(key, None)
            else:
                if key not in self.counts and len(self.counts) == self.table.counter_rows:
                    lot = sorted((number, other) for other, number in self.counts.items())[: max(1, self.table.counter_rows // 32)]
                    for _, other in lot:
                        del self.counts[other]
                    self.numbers["forgotten"] += len(lot)
                self.counts[key] = count
            flags.append(key in admitted)
        return flags

    def _touch(self, row: Row, step: int, now: int) -> None:
        row.last_step = step
        strategy = self.table.options.score_strategy
        if strategy == ScoreStrategy.LFU:
            row.score += 1
        elif strategy == ScoreStrategy.TIMESTAMP:
            row.score = now
        elif strategy != ScoreStrategy.CUSTOMIZED:
            row.score = step

    def _remove(self, key: int) -> None:
        del self.rows[key]
        self.removed.add(key)

    def _first(self, key: int) -> Numbers:
        keys = np.array([key], dtype=np.int64)
        vectors: Numbers = first_vectors(self.table.options.initializer, stream(7, self.table.name, "rows"), keys, self.table.dim)[0]
        return vectors
