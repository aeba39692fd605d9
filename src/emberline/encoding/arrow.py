"""Arrow columns as raw columns: numbers and text buffers are shared, not copied.

pyarrow is imported at the first call only: serving has no need of it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding.columns import Column, Numbers, StepColumn, concatenate_columns, take_rows
from emberline.encoding.rows import required_columns
from emberline.encoding.texts import Bools, Ints, Texts, ranges
from emberline.errors import RequestError
from emberline.schema import FeatureSpec, LookupEncoder, MatchEncoder

Items = tuple[Texts | Numbers, Bools | None]


def columns_from_arrow(features: Sequence[FeatureSpec], batch: Any) -> dict[str, Column | StepColumn]:
    """The columns of a `pyarrow.RecordBatch` (or Table) that the features read.

    Numbers, text, binary (as UTF-8 text) and decimals, dictionaries of those, lists of those (any list type), maps of key to value or id to
    weight, structs whose fields are keys; for sequences also lists of lists, of maps and of structs.

    Raises:
        RequestError: a missing column, or one of another type; names feature and column.
    """
    columns: dict[str, Column | StepColumn] = {}
    names = batch.schema.names
    maps = {feature.columns[0] for feature in features if isinstance(feature.encoder, LookupEncoder | MatchEncoder)}
    stepped = {name for feature in features if feature.sequence for name in feature.columns if name not in feature.row_columns}
    for name, feature in required_columns(features).items():
        found = names.count(name)
        if found != 1:
            problem = f"column {name!r} comes {found} times" if found else f"column {name!r} is missing; there are: {', '.join(names) or 'none'}"
            raise RequestError(problem, feature=feature)
        convert = _steps_from_arrow if name in stepped else column_from_arrow
        columns[name] = convert(batch.column(name), feature, name, name in maps)
    return columns


def _plain(array: Any) -> Any:
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _steps_from_arrow(array: Any, feature: str, name: str, as_map: bool) -> Column | StepColumn:
    """As `column_from_arrow`, and lists of what has several values."""
    import pyarrow as pa

    array = _plain(array)
    kind = array.type
    if _is_list(kind) and (_is_list(kind.value_type) or pa.types.is_map(kind.value_type) or pa.types.is_struct(kind.value_type)):
        return StepColumn(column_from_arrow(array.flatten(), feature, name, as_map), _list_lengths(array))
    return column_from_arrow(array, feature, name, as_map)


def column_from_arrow(array: Any, feature: str, name: str, as_map: bool = False) -> Column:
    """One Arrow array (or chunked array) as a raw column.

    Args:
        array: the array.
        feature: for messages.
        name: the column, for messages.
        as_map: maps and structs may hold anything; else they hold the weights of their keys.

    Raises:
        RequestError: a type that is no raw value; names feature and column.
    """
    import pyarrow as pa

    array = _plain(array)
    types, kind = pa.types, array.type
    if types.is_map(kind):
        return _map_column(array, feature, name, as_map)
    if types.is_struct(kind):
        return _struct_column(array, feature, name, as_map)
    if _is_list(kind):
        return _list_column(array, feature, name)
    items, valid = _items(array, feature, name)
    return Column(items, valid=valid)


def _valid(array: Any) -> Bools | None:
    """Which items are there, bool [N], or None where all are there."""
    if not array.null_count:
        return None
    valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _refuse(array: Any, feature: str, name: str) -> RequestError:
    return RequestError(f"column {name!r} has type {array.type}, which holds neither text nor numbers; cast it", feature=feature)


def _items(array: Any, feature: str, name: str) -> Items:
    """A flat array as texts or numbers, and which of them are there."""
    import pyarrow as pa

    types, kind = pa.types, array.type
    if types.is_dictionary(kind):
        return _dictionary_items(array, feature, name)
    if types.is_null(kind):
        return np.zeros(len(array), dtype=np.int64), np.zeros(len(array), dtype=np.bool_)
    if types.is_decimal(kind):
        return _items(_undecimal(array, feature, name), feature, name)
    if types.is_integer(kind):
        return _numbers(array, "uint64" if kind == pa.uint64() else "int64"), _valid(array)
    if types.is_floating(kind):
        return _numbers(array, "float32" if kind == pa.float32() else "float64"), _valid(array)
    return _texts(array, feature, name), _valid(array)


def _numbers(array: Any, dtype: str) -> Numbers:
    if array.null_count:
        array = array.fill_null(0)
    values: Numbers = array.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    return values


def _undecimal(array: Any, feature: str, name: str) -> Any:
    import pyarrow as pa

    try:
        return array.cast(pa.int64() if array.type.scale <= 0 else pa.float64())
    except pa.ArrowInvalid:
        raise RequestError(f"column {name!r} has decimals that do not fit 64 bits", feature=feature) from None


def _texts(array: Any, feature: str, name: str) -> Texts:
    import pyarrow as pa

    types, kind = pa.types, array.type
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        try:
            array = array.cast(pa.large_string())
        except pa.ArrowInvalid:
            raise RequestError(f"column {name!r} has bytes that are not UTF-8 text", feature=feature) from None
    elif types.is_string_view(kind):
        array = array.cast(pa.large_string())
    elif not (types.is_string(kind) or types.is_large_string(kind)):
        raise _refuse(array, feature, name)
    if not len(array):
        return Texts(np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    _, offsets_buffer, data = array.buffers()
    width = np.int64 if types.is_large_string(array.type) else np.int32
    offsets = np.frombuffer(offsets_buffer, dtype=width, count=len(array) + 1, offset=array.offset * np.dtype(width).itemsize)
    ends: Ints = offsets.astype(np.int64, copy=False)
    buffer = np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return Texts(buffer, ends[:-1], ends[1:])


def _dictionary_items(array: Any, feature: str, name: str) -> Items:
    words, words_valid = _items(array.dictionary, feature, name)
    valid = _valid(array)
    index = _numbers(array.indices, "int64").astype(np.int64, copy=False)
    if not len(array.dictionary):
        return np.zeros(len(array), dtype=np.int64), np.zeros(len(array), dtype=np.bool_)
    if words_valid is not None:
        valid = words_valid[index] if valid is None else valid & words_valid[index]
    return words.take(index), valid


def _list_column(array: Any, feature: str, name: str) -> Column:
    items, valid = _items(array.flatten(), feature, name)
    return Column(items, _list_lengths(array), valid, whole=True)


def _list_lengths(array: Any) -> npt.NDArray[np.int32]:
    import pyarrow.compute as pc

    lengths: npt.NDArray[np.int32] = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int32)
    return lengths


def _map_column(array: Any, feature: str, name: str, as_map: bool) -> Column:
    lengths, index = _map_entries(array)
    items, valid = _items(array.keys, feature, name)
    valid = None if valid is None else valid[index]
    values = take_rows(column_from_arrow(array.items, feature, name, True), index) if as_map else None
    weights = _weights(array.items, feature, name)[index] if not as_map or _is_number(array.items.type) else None
    return Column(items.take(index), lengths, valid, weights, whole=True, map_values=values)


def _map_entries(array: Any) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Entries of each row, and where they lie in the keys; a null row has none, whatever its offsets say."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    valid = _valid(array)
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
    return lengths.astype(np.int32), ranges(offsets[:-1], lengths)


def _weights(array: Any, feature: str, name: str) -> npt.NDArray[np.float64]:
    """float64, NaN where null: encoding refuses those."""
    import pyarrow as pa

    if not _is_number(array.type):
        raise RequestError(f"column {name!r} has weights of type {array.type}, not numbers", feature=feature)
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    values = _numbers(array, "float64").astype(np.float64, copy=False)
    valid = _valid(array)
    return values if valid is None else np.where(valid, values, np.nan)


def _struct_column(array: Any, feature: str, name: str, as_map: bool) -> Column:
    """A struct is one bag a row: its fields are the ids, or keys, and hold the weights, or values; a null field is not in the bag."""
    fields = [array.type.field(number).name for number in range(array.type.num_fields)]
    children = array.flatten()
    if not fields:
        nothing = np.zeros(0, dtype=np.int64)
        return Column(nothing, np.zeros(len(array), dtype=np.int32), map_values=Column(nothing) if as_map else None)
    there = np.stack([child.is_valid().to_numpy(zero_copy_only=False) for child in children], axis=1)
    number = np.broadcast_to(np.arange(len(fields)), there.shape)[there]
    keys, lengths = Texts.from_strings(fields).take(number), there.sum(axis=1).astype(np.int32)
    weights = None
    if not as_map or all(_is_number(child.type) for child in children):
        weights = np.stack([_weights(child, feature, name) for child in children], axis=1)[there]
    values = _struct_values(children, there, feature, name) if as_map else None
    return Column(keys, lengths, None, weights, whole=True, map_values=values)


def _struct_values(children: list[Any], there: Bools, feature: str, name: str) -> Column:
    """What the fields hold, row after row, at the places that are there."""
    columns = [column_from_arrow(child, feature, name, True) for child in children]
    kinds = {Texts if isinstance(column.items, Texts) else np.ndarray for column in columns if not _is_null(column)}
    if len(kinds) > 1 or any(column.lengths is not None for column in columns):
        raise RequestError(f"column {name!r} is a struct of fields of several kinds, or of lists; use a map, or fields of one kind", feature=feature)
    if kinds == {Texts}:
        none = Texts.from_strings([""]).take(np.zeros(there.shape[0], dtype=np.int64))
        columns = [column if isinstance(column.items, Texts) else Column(none, valid=column.valid) for column in columns]
    flat = concatenate_columns(columns)
    places = np.arange(there.size).reshape(there.shape[1], there.shape[0]).T
    return take_rows(flat, places[there])


def _is_null(column: Column) -> bool:
    return column.valid is not None and not column.valid.any()
