"""Encoded rows with their labels and weights: cut, joined and reordered without going back to raw values."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emberline.encoding import EncodedColumns, Jagged
from emberline.encoding.texts import ranges

Label = npt.NDArray[np.int64] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class EncodedRows:
    """Some rows of a file or of several.

    Args:
        columns: ids and floats.
        labels: column -> int64 or float32 [B].
        sample_weights: float32 [B], or None.
    """

    columns: EncodedColumns
    labels: dict[str, Label]
    sample_weights: npt.NDArray[np.float32] | None = None

    @property
    def num_rows(self) -> int:
        """B."""
        return self.columns.num_rows

    def cut(self, start: int, stop: int) -> "EncodedRows":
        """Rows [start, stop), sharing memory."""
        sparse = {name: _cut(bag, start, stop) for name, bag in self.columns.sparse.items()}
        dense = {name: values[start:stop] for name, values in self.columns.dense.items()}
        labels: dict[str, Label] = {name: label[start:stop] for name, label in self.labels.items()}
        weights = None if self.sample_weights is None else self.sample_weights[start:stop]
        return EncodedRows(EncodedColumns(stop - start, sparse, dense), labels, weights)

    def take(self, order: npt.NDArray[np.int64]) -> "EncodedRows":
        """The rows at `order`, in that order, copied."""
        sparse = {name: _take(bag, order) for name, bag in self.columns.sparse.items()}
        dense = {name: values[order] for name, values in self.columns.dense.items()}
        labels: dict[str, Label] = {name: label[order] for name, label in self.labels.items()}
        weights = None if self.sample_weights is None else self.sample_weights[order]
        return EncodedRows(EncodedColumns(order.size, sparse, dense), labels, weights)


def _cut(bag: Jagged, start: int, stop: int) -> Jagged:
    first = int(bag.lengths[:start].sum(dtype=np.int64))
    ids = slice(first, first + int(bag.lengths[start:stop].sum(dtype=np.int64)))
    return Jagged(bag.values[ids], bag.lengths[start:stop], None if bag.weights is None else bag.weights[ids])


def _take(bag: Jagged, order: npt.NDArray[np.int64]) -> Jagged:
    lengths = bag.lengths[order]
    if bag.values.size == bag.lengths.size and (bag.lengths == 1).all():
        places = order
    else:
        starts = bag.lengths.cumsum(dtype=np.int64) - bag.lengths
        places = ranges(starts[order], lengths.astype(np.int64))
    return Jagged(bag.values[places], lengths, None if bag.weights is None else bag.weights[places])


def join(parts: Sequence[EncodedRows]) -> EncodedRows:
    """The rows of all parts, one after the other. A label that is float32 in one part is float32 in all."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    sparse = {name: _join_bags([part.columns.sparse[name] for part in parts]) for name in first.columns.sparse}
    dense = {name: np.concatenate([part.columns.dense[name] for part in parts]) for name in first.columns.dense}
    labels = {name: _join_labels([part.labels[name] for part in parts]) for name in first.labels}
    weights = None if first.sample_weights is None else np.concatenate([part.sample_weights for part in parts if part.sample_weights is not None])
    return EncodedRows(EncodedColumns(sum(part.num_rows for part in parts), sparse, dense), labels, weights)


def _join_bags(bags: Sequence[Jagged]) -> Jagged:
    weights = [bag.weights for bag in bags if bag.weights is not None]
    return Jagged(
        np.concatenate([bag.values for bag in bags]), np.concatenate([bag.lengths for bag in bags]), np.concatenate(weights) if weights else None
    )


def _join_labels(labels: Sequence[Label]) -> Label:
    if all(label.dtype == np.int64 for label in labels):
        return np.concatenate([label.astype(np.int64, copy=False) for label in labels])
    return np.concatenate([label.astype(np.float32, copy=False) for label in labels])


def rechunk(parts: Iterable[EncodedRows], num_rows: int) -> Iterator[EncodedRows]:
    """The same rows in pieces of exactly `num_rows`; the last may be shorter, none is empty."""
    waiting: deque[EncodedRows] = deque()
    held = 0
    for part in parts:
        waiting.append(part)
        held += part.num_rows
        while held >= num_rows:
            yield _take_first(waiting, num_rows)
            held -= num_rows
    if held:
        yield _take_first(waiting, held)


def _take_first(waiting: deque[EncodedRows], num_rows: int) -> EncodedRows:
    taken = []
    while num_rows:
        part = waiting.popleft()
        if part.num_rows > num_rows:
            waiting.appendleft(part.cut(num_rows, part.num_rows))
            part = part.cut(0, num_rows)
        num_rows -= part.num_rows
        if part.num_rows:
            taken.append(part)
    return join(taken)
