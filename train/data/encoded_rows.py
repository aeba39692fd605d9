"""Encoded rows with their labels and weights: cut, joined and reordered without going back to raw values."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emberline.encoding import EncodedColumns
from emberline.encoding.selection import cut_columns, join_columns, take_columns
from emberline.train.data.pieces import cut_pieces

Label = npt.NDArray[np.int64] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class EncodedRows:
    """Some rows of a file or of several.

    Args:
        columns: ids and floats.
        labels: column -> int64 or float32 [B].
        sample_weights: float32 [B], or None.
        negatives: ids and floats of as many negatives for each row, those of row 0 first, or None.
    """

    columns: EncodedColumns
    labels: dict[str, Label]
    sample_weights: npt.NDArray[np.float32] | None = None
    negatives: EncodedColumns | None = None

    @property
    def num_rows(self) -> int:
        """B."""
        return self.columns.num_rows

    def cut(self, start: int, stop: int) -> "EncodedRows":
        """Rows [start, stop), sharing memory."""
        labels: dict[str, Label] = {name: label[start:stop] for name, label in self.labels.items()}
        weights = None if self.sample_weights is None else self.sample_weights[start:stop]
        each = self._negatives_a_row
        negatives = None if self.negatives is None else cut_columns(self.negatives, start * each, stop * each)
        return EncodedRows(cut_columns(self.columns, start, stop), labels, weights, negatives)

    def take(self, order: npt.NDArray[np.int64]) -> "EncodedRows":
        """The rows at `order`, in that order, copied."""
        labels: dict[str, Label] = {name: label[order] for name, label in self.labels.items()}
        weights = None if self.sample_weights is None else self.sample_weights[order]
        each = self._negatives_a_row
        places = (order[:, None] * each + np.arange(each)).ravel()
        negatives = None if self.negatives is None else take_columns(self.negatives, places)
        return EncodedRows(take_columns(self.columns, order), labels, weights, negatives)

    @property
    def _negatives_a_row(self) -> int:
        return self.negatives.num_rows // self.num_rows if self.negatives is not None and self.num_rows else 0


def join(parts: Sequence[EncodedRows]) -> EncodedRows:
    """The rows of all parts, one after the other. A label that is float32 in one part is float32 in all."""
    if len(parts) == 1:
        return parts[0]
    labels = {name: _join_labels([part.labels[name] for part in parts]) for name in parts[0].labels}
    weights = [part.sample_weights for part in parts if part.sample_weights is not None]
    negatives = [part.negatives for part in parts if part.negatives is not None]
    columns = join_columns([part.columns for part in parts])
    return EncodedRows(columns, labels, np.concatenate(weights) if weights else None, join_columns(negatives) if negatives else None)


def _join_labels(labels: Sequence[Label]) -> Label:
    if all(label.dtype == np.int64 for label in labels):
        return np.concatenate([label.astype(np.int64, copy=False) for label in labels])
    return np.concatenate([label.astype(np.float32, copy=False) for label in labels])


def rechunk(parts: Iterable[EncodedRows], num_rows: int) -> Iterator[EncodedRows]:
    """The same rows in pieces of exactly `num_rows`; the last may be shorter, none is empty."""
    return map(join, cut_pieces(parts, num_rows))
