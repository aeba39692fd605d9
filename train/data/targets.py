"""Labels and sample weights: Arrow columns -> numbers, with nothing missing."""

from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding.arrow import column_from_arrow
from emberline.encoding.columns import show
from emberline.encoding.decimal import texts_to_floats
from emberline.encoding.texts import Texts
from emberline.errors import RequestError
from emberline.train.data.encoded_rows import Label

_WORDS = {"true": 1.0, "false": 0.0}
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def label_values(array: Any, column: str) -> Label:
    """A label column: int64 [B] from whole numbers and booleans, float32 [B] from fractions and from text.

    Raises:
        RequestError: a missing label, a number that is not finite as float32, or another type; names column and row.
    """
    values = _numbers(array, column, "label")
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    return values.astype(np.int64)  # a copy: Arrow's memory is not to be written to


def weight_values(array: Any, column: str) -> npt.NDArray[np.float32]:
    """A column of sample weights, float32 [B], each 0 or more.

    Raises:
        RequestError: a missing, negative or non-finite weight, or another type; names column and row.
    """
    values = _numbers(array, column, "sample weight")
    negative = values < 0
    if negative.any():
        row = int(negative.argmax())
        raise RequestError(f"sample weight {values[row]} is negative", feature=column, row=row)
    return values.astype(np.float32)


def _numbers(array: Any, column: str, what: str) -> npt.NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    found = column_from_arrow(array, column, column)
    items, valid = found.items, found.valid
    if found.lengths is not None or isinstance(items, list):
        raise RequestError(f"a {what} is one number a row, but the column has type {array.type}", feature=column)
    values: npt.NDArray[Any] = _parse(items, column, what) if isinstance(items, Texts) else items
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.size, dtype=np.bool_)
    if valid is not None:
        missing |= ~valid
    if missing.any():
        raise RequestError(f"the {what} is missing", feature=column, row=int(missing.argmax()))
    large = np.abs(values) > _FLOAT32_MAX if values.dtype.kind == "f" else values > np.uint64(2**63 - 1) if values.dtype.kind == "u" else missing
    if large.any():
        row = int(large.argmax())
        raise RequestError(f"{what} {values[row]} is out of range", feature=column, row=row)
    return values


def _parse(texts: Texts, column: str, what: str) -> npt.NDArray[np.float64]:
    values, good = texts_to_floats(texts)
    for row in np.flatnonzero(~good & (texts.sizes > 0)).tolist():
        word = texts.text(row)
        if word.lower() not in _WORDS:
            raise RequestError(f"{what} {show(word)} is not a number", feature=column, row=row)
        values[row] = _WORDS[word.lower()]
    return values
