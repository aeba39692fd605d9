"""Python rows, such as a JSON request's, as raw columns."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from emberline.encoding.columns import Column, Numbers, show
from emberline.encoding.texts import Bools, Texts
from emberline.errors import RequestError
from emberline.schema import FeatureSpec

_EXACT = 2.0**53 - 1
_NONE = type(None)


def required_columns(features: Sequence[FeatureSpec]) -> dict[str, str]:
    """The raw columns that the features read, each once in first-seen order, with the first feature that reads it."""
    columns: dict[str, str] = {}
    for feature in features:
        for column in feature.columns:
            columns.setdefault(column, feature.name)
    return columns


def columns_from_rows(
    features: Sequence[FeatureSpec],
    rows: Sequence[Mapping[str, object]],
    *,
    missing: Literal["default", "error"] = "default",
    surplus: Literal["ignore", "error"] = "error",
) -> tuple[dict[str, list[object]], int]:
    """Turn rows of `{column: value}` into raw columns for `encode`, which judges the values.

    A value is a text, a whole number that fits int64, a float, None, a list of those, or an object `{id: weight}`. Numbers stay exact.
    The rows are not changed.

    Args:
        features: the features to encode.
        rows: B rows.
        missing: what a row without one of the columns gets: the feature's default, or an error.
        surplus: what a column that no feature reads gets.

    Returns:
        The columns by name, and B.

    Raises:
        RequestError: a row that is not an object, or an unknown or missing column; names row and column.
    """
    columns = required_columns(features)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RequestError(f"row {number} is {show(row)}, not an object of column names and values")
        if surplus == "error" and not columns.keys() >= row.keys():
            raise _unknown_column(number, row, columns)
    if missing == "error":
        _check_present(rows, columns)
    return {column: [row.get(column) for row in rows] for column in columns}, len(rows)


def _unknown_column(number: int, row: Mapping[str, object], columns: Mapping[str, str]) -> RequestError:
    name = next(key for key in row if key not in columns)
    near = difflib.get_close_matches(str(name), columns, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(columns)}"
    return RequestError(f"row {number} has an unknown column {show(name)}; {hint}")


def _check_present(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str]) -> None:
    for number, row in enumerate(rows):
        for column, feature in columns.items():
            if column not in row:
                raise RequestError(f"column {column!r} is missing", feature=feature, row=number)


def column_from_values(feature: str, values: Sequence[object]) -> Column:
    """One raw column from one Python value a row: scalar, None, list, or mapping of id to weight.

    Raises:
        RequestError: names the feature and the first bad row.
    """
    kinds = set(map(type, values))
    if not kinds <= _PLAIN and any(issubclass(kind, list | tuple | np.ndarray | Mapping) for kind in kinds):
        return _column_from_bags(feature, values)
    items, valid = _items_from_scalars(feature, values, kinds, None)
    return Column(items, valid=valid)


def _column_from_bags(feature: str, values: Sequence[object]) -> Column:
    items: list[object] = []
    weights: list[float] = []
    whole, lengths = [], np.zeros(len(values), dtype=np.int32)
    first_map, first_list = -1, -1
    for row, value in enumerate(values):
        before = len(items)
        if isinstance(value, Mapping):
            first_map = row if first_map < 0 and value else first_map
            items.extend(value)
            weights.extend(_weight(feature, row, weight) for weight in value.values())
        elif isinstance(value, list | tuple | np.ndarray):
            items.extend(value.tolist() if isinstance(value, np.ndarray) and value.ndim else value)
            first_list = row if first_list < 0 and len(items) > before else first_list
        elif value is not None and value != "":
            items.append(value)
            first_list = row if first_list < 0 else first_list
        lengths[row] = len(items) - before
        whole += [not isinstance(value, str | bytes)] * (len(items) - before)
    if first_map >= 0 and first_list >= 0:
        raise RequestError(f"{show(values[first_map])} has weights, but another row has none", feature=feature, row=first_map)
    flat, valid = _items_from_scalars(feature, items, set(map(type, items)), lengths)
    return Column(flat, lengths, valid, np.array(weights) if first_map >= 0 else None, True if all(whole) else np.array(whole))


def _weight(feature: str, row: int, weight: object) -> float:
    if isinstance(weight, bool | np.bool_) or not isinstance(weight, int | float | np.number):
        raise RequestError(f"weight {show(weight)} is not a number", feature=feature, row=row)
    try:
        return float(weight)
    except OverflowError:
        raise RequestError(f"weight {show(weight)} is too large", feature=feature, row=row) from None


def _items_from_scalars(
    feature: str, values: Sequence[object], kinds: set[type], lengths: npt.NDArray[np.int32] | None
) -> tuple[Texts | Numbers | list[object], Bools | None]:
    """Scalars of one kind as an array or texts, others as a list that is judged when it is encoded; and which are there."""
    if not kinds <= _PLAIN:
        values = [_plain(feature, value, item, lengths) for item, value in enumerate(values)]
        kinds = set(map(type, values))
    valid = None
    if _NONE in kinds:
        kinds.discard(_NONE)
        valid = np.array([value is not None for value in values], dtype=np.bool_)
        filler: object = "" if kinds == {str} else 0
        values = [filler if value is None else value for value in values]
    if kinds == {str}:
        return texts_from_strings(feature, [value for value in values if isinstance(value, str)], lengths), valid
    if kinds <= {int}:
        try:
            return np.array(values, dtype=np.int64), valid
        except OverflowError:
            return list(values), valid
    if kinds <= {int, float}:
        try:
            numbers = np.array(values, dtype=np.float64)
        except OverflowError:
            return list(values), valid
        if int not in kinds or not (np.abs(numbers) > _EXACT).any():
            return numbers, valid
    return list(values), valid


_PLAIN = frozenset({int, float, str, _NONE})


def _plain(feature: str, value: object, item: int, lengths: npt.NDArray[np.int32] | None) -> object:
    """A scalar of one of the four plain types.

    Raises:
        RequestError: it is a boolean, a list in a list, or another type.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        return decode(feature, value, _row(item, lengths))
    if not isinstance(value, bool):
        for kind in (int, float, str):
            if isinstance(value, kind):
                return kind(value)
        if value is None:
            return value
    raise _bad(feature, item, lengths, f"{show(value)} is neither text nor a number")


def decode(feature: str, value: bytes, row: int) -> str:
    """Bytes as text.

    Raises:
        RequestError: they are not UTF-8; names feature and row.
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RequestError(f"{show(value)} is not UTF-8 text", feature=feature, row=row) from None


def _row(item: int, lengths: npt.NDArray[np.int32] | None) -> int:
    return item if lengths is None else int(np.searchsorted(lengths.cumsum(), item, side="right"))


def _bad(feature: str, item: int, lengths: npt.NDArray[np.int32] | None, problem: str) -> RequestError:
    return RequestError(problem, feature=feature, row=_row(item, lengths))


def texts_from_strings(feature: str, strings: Sequence[str], lengths: npt.NDArray[np.int32] | None) -> Texts:
    """Python strings, the items of rows of `lengths` (None: one each), as texts.

    Raises:
        RequestError: a string that UTF-8 cannot hold; names feature and row.
    """
    try:
        return Texts.from_strings(strings)
    except UnicodeEncodeError:
        item = next(item for item, text in enumerate(strings) if not _is_unicode(text))
        raise _bad(feature, item, lengths, f"{show(strings[item])} is not Unicode text: it holds half of a surrogate pair") from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
