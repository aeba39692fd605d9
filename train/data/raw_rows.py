"""Rows as files have them, before they are encoded: each knows where it came from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding import columns_from_arrow, encode, required_columns
from emberline.errors import DataError, RequestError
from emberline.schema import FeatureSpec
from emberline.train.data.encoded_rows import EncodedRows, join
from emberline.train.data.negatives import NegativeRows
from emberline.train.data.source import Fragment, Source
from emberline.train.data.targets import label_values, weight_values

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RawRows:
    """Successive rows of one fragment.

    Args:
        chunk: an Arrow record batch.
        fragment: where it is from.
        first_row: of its file.
    """

    chunk: Any
    fragment: Fragment
    first_row: int

    @property
    def num_rows(self) -> int:
        """How many."""
        return int(self.chunk.num_rows)

    def cut(self, start: int, stop: int) -> "RawRows":
        """Rows [start, stop), sharing memory."""
        return RawRows(self.chunk.slice(start, stop - start), self.fragment, self.first_row + start)


def read_rows(source: Source, fragment: Fragment, chunk_rows: int) -> Iterator[RawRows]:
    """The rows of one fragment, at most `chunk_rows` at a time (CSV: those of a block of the file).

    Raises:
        DataError: as `Source.read`.
    """
    row = fragment.first_row
    for chunk in source.read(fragment, chunk_rows):
        yield RawRows(chunk, fragment, row)
        row += chunk.num_rows


@dataclass(frozen=True)
class Unit:
    """Rows that are encoded together.

    Args:
        parts: of one fragment or of several.
        start: the place in the epoch of the first row of `order`.
        order: the places among the parts' rows of each row, in the epoch's order.
    """

    parts: Sequence[RawRows]
    start: int
    order: Places

    @property
    def stop(self) -> int:
        """The place in the epoch behind the last row."""
        return self.start + len(self.order)


@dataclass(frozen=True)
class RowEncoder:
    """Turns raw rows into encoded ones.

    Args:
        specs: of all features.
        label_fields: columns of labels.
        weight_field: the column of sample weights, or None.
        negatives: of sampled negatives, or None.
        item_ids: of the column of items' ids, which is encoded as a feature is, or None; errors name the column.
    """

    specs: Sequence[FeatureSpec]
    label_fields: Sequence[str] = ()
    weight_field: str | None = None
    negatives: NegativeRows | None = None
    item_ids: FeatureSpec | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that are read: those of features, items' ids, labels, the sample weight, lists of negatives; one may come twice."""
        return [*required_columns(self._all_specs), *self._targets]

    @property
    def _all_specs(self) -> list[FeatureSpec]:
        return [*self.specs, *([self.item_ids] if self.item_ids else [])]

    @property
    def _targets(self) -> list[str]:
        """The columns that are read beside those that are encoded as features are."""
        weights = [self.weight_field] if self.weight_field else []
        return [*self.label_fields, *weights, *(self.negatives.columns if self.negatives else [])]

    def encode_all(self, rows: RawRows) -> EncodedRows:
        """All of these rows, as they stand.

        Raises:
            DataError: a value that cannot be encoded; names file, row and column or feature.
        """
        return self._encode(rows, np.arange(rows.num_rows))

    def encode(self, unit: Unit, own: Places | None = None) -> EncodedRows:
        """Rows of a unit, in the epoch's order; others are not looked at.

        Args:
            unit: the rows.
            own: which of them, by their places in the order, ascending; None: all.

        Raises:
            DataError: a value that cannot be encoded; names file, row and column or feature.
        """
        order = unit.order if own is None else unit.order[own]
        wanted = np.sort(order)
        encoded = join([self._encode(part, rows) for part, rows in _rows_by_part(unit.parts, wanted)])
        places = np.searchsorted(wanted, order)
        return encoded if (places[1:] > places[:-1]).all() else encoded.take(places)

    def _encode(self, part: RawRows, rows: Places) -> EncodedRows:
        whole = len(rows) == part.num_rows
        chunk = part.chunk if whole else _taken(part.chunk, rows)
        try:
            specs = self._all_specs
            columns = encode(specs, columns_from_arrow(specs, chunk), chunk.num_rows)
            labels = {name: label_values(chunk.column(name), name) for name in self.label_fields}
            weights = None if self.weight_field is None else weight_values(chunk.column(self.weight_field), self.weight_field)
            negatives = None if self.negatives is None else self.negatives.encode(chunk)
        except RequestError as error:
            row = None if error.row is None else part.first_row + int(rows[error.row])
            raise self._data_error(error, part.fragment, row) from error
        return EncodedRows(columns, labels, weights, negatives)

    def _data_error(self, error: RequestError, fragment: Fragment, row: int | None) -> DataError:
        """The same problem, placed in its file: rows count from 0, without a header."""
        where = f"{fragment.path}, row {row}" if row is not None else str(fragment.path)
        return DataError(f"{where}: {self._what(error.feature)}{error.problem}")

    def _what(self, name: str) -> str:
        """What an error is of."""
        if not name:
            return ""
        if self.item_ids is not None and name == self.item_ids.name:
            return f"column {self.item_ids.columns[0]!r}: "
        return f"column {name!r}: " if name in self._targets else f"feature {name!r}: "


def _rows_by_part(parts: Sequence[RawRows], wanted: Places) -> Iterator[tuple[RawRows, Places]]:
    """The wanted rows, ascending, by the part that they are in; parts without any are left out, but for the first where there are none at all."""
    if not len(wanted):
        yield parts[0], wanted
        return
    first = 0
    for part in parts:
        rows = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, first + part.num_rows)]
        if len(rows):
            yield part, rows - first
        first += part.num_rows


def _taken(chunk: Any, rows: Places) -> Any:
    """Some rows of a record batch; successive ones share memory."""
    if not len(rows) or rows[-1] - rows[0] == len(rows) - 1:
        return chunk.slice(int(rows[0]) if len(rows) else 0, len(rows))
    import pyarrow as pa

    return chunk.take(pa.array(rows))
