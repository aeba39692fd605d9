"""Feature encoding: raw columns (JSON rows, Arrow, arrays) -> ids, weights and floats, by the same code in training and serving.

`columns_from_rows` or `columns_from_arrow` makes columns, `encode` makes ids and floats of them.
"""

from emberline.encoding.arrow import columns_from_arrow
from emberline.encoding.columns import Column, ColumnData, DenseSteps, EncodedColumns, Jagged, JaggedSteps, StepColumn, check_jagged
from emberline.encoding.encode import encode
from emberline.encoding.hash import hash_strings, hash_texts, xxh64
from emberline.encoding.rows import columns_from_rows, required_columns
from emberline.encoding.texts import Texts

__all__ = [
    "Column",
    "ColumnData",
    "DenseSteps",
    "EncodedColumns",
    "Jagged",
    "JaggedSteps",
    "StepColumn",
    "Texts",
    "check_jagged",
    "columns_from_arrow",
    "columns_from_rows",
    "encode",
    "hash_strings",
    "hash_texts",
    "required_columns",
    "xxh64",
]
