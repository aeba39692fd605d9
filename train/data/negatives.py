"""Sampled negatives that rows bring along: lists of values in place of a column's own.

    row          item   other_items          becomes, with 2 negatives a row
    0            a      [b, c]               item   b c | e b
    1            d      [e, b]               rows   0 0 | 1 1      every other column repeats its row's value

Letters used in shapes: B rows, K negatives a row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from emberline.encoding import EncodedColumns, columns_from_arrow, encode, required_columns
from emberline.errors import RequestError
from emberline.train.config.data_config import NegativeColumnsConfig
from emberline.train.features import Feature
from emberline.train.features.feature import BASE_DATA_GROUP


class NegativeRows:
    """Encodes the negatives of the features that have some.

    Args:
        config: which columns they are in, and how many.
        features: all; those of data groups of their own read negatives.
    """

    def __init__(self, config: NegativeColumnsConfig, features: Sequence[Feature]) -> None:
        self._specs = [feature.spec for feature in features if feature.data_group != BASE_DATA_GROUP]
        self._columns = required_columns(self._specs)
        self._lists = {column: negatives for column, negatives in config.columns if column in self._columns}
        self._num_negatives = config.num_negatives

    @property
    def columns(self) -> list[str]:
        """The columns that negatives are read from."""
        return list(self._lists.values())

    def encode(self, chunk: Any) -> EncodedColumns:
        """A record batch of B rows -> ids and floats of B * K rows, those of row 0 first.

        Raises:
            RequestError: a row has another number of negatives, or a value that cannot be encoded; names column or feature, and row of the chunk.
        """
        import pyarrow as pa

        repeated = pa.array(np.repeat(np.arange(chunk.num_rows), self._num_negatives))
        columns = [
            self._flat(chunk.column(self._lists[name]), self._lists[name]) if name in self._lists else chunk.column(name).take(repeated)
            for name in self._columns
        ]
        flat = pa.RecordBatch.from_arrays(columns, names=list(self._columns))
        try:
            return encode(self._specs, columns_from_arrow(self._specs, flat), flat.num_rows)
        except RequestError as error:
            row = None if error.row is None else error.row // self._num_negatives
            raise RequestError(error.problem, feature=error.feature, row=row) from error

    def _flat(self, array: Any, column: str) -> Any:
        """The lists' values, end to end."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if not any(is_kind(array.type) for is_kind in kinds):
            raise RequestError(f"negatives are a list in each row, but the column has type {array.type}", feature=column)
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        wrong = counts != self._num_negatives
        if wrong.any():
            row = int(wrong.argmax())
            raise RequestError(f"the row has {counts[row]} negatives, but num_negatives is {self._num_negatives}", feature=column, row=row)
        return array.flatten()
