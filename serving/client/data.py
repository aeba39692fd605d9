"""What a caller hands to the client, as packed requests of a bounded number of rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emberline.encoding import EncodedColumns, columns_from_arrow, columns_from_rows, encode, required_columns
from emberline.encoding.selection import RowTaker
from emberline.errors import MissingDependencyError, RequestError
from emberline.schema import ModelSchema
from emberline.serving.encoded import pack_encoded
from emberline.serving.request import PackedRequest


def encode_data(schema: ModelSchema, data: Any) -> EncodedColumns:
    """Ids and floats of the model's features, encoded as in training.

    | data | unknown columns | missing columns |
    |---|---|---|
    | rows: a sequence of `{column: value}` | refused | the feature's default |
    | columns: `{column: values}`, each a list or an array with one entry for each row | refused | the feature's default |
    | a pandas DataFrame, an Arrow Table or RecordBatch | not read | refused |

    Raises:
        RequestError: it is none of those, or a value cannot be encoded; the message names feature and row.
    """
    features = schema.features
    if _is_from("pandas", data):
        data = _arrow_from_pandas(data)
    if _is_from("pyarrow", data) and hasattr(data, "num_rows") and hasattr(data, "column"):
        return encode(features, columns_from_arrow(features, data), data.num_rows)
    if isinstance(data, Mapping):
        return _encode_columns(schema, data)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        columns, num_rows = columns_from_rows(features, data)
        return encode(features, columns, num_rows)
    raise RequestError(f"rows are a list of dicts, a dict of columns, a pandas DataFrame or an Arrow table, not {type(data).__name__}")


def split_encoded(schema: ModelSchema, encoded: EncodedColumns, max_rows: int) -> Iterator[PackedRequest]:
    """Packed requests of at most `max_rows` rows each, in order; one without rows where there are none."""
    rows = RowTaker(encoded)
    for start in range(0, max(encoded.num_rows, 1), max_rows):
        yield pack_encoded(schema, rows.cut(start, min(start + max_rows, encoded.num_rows)))


def _encode_columns(schema: ModelSchema, data: Mapping[str, Any]) -> EncodedColumns:
    wanted = required_columns(schema.features)
    for name in data:
        if name not in wanted:
            raise RequestError(f"there is no column {name!r}; the model reads {', '.join(wanted)}")
    columns = {name: _plain(values) for name, values in data.items()}
    sizes = {name: len(values) if hasattr(values, "__len__") else -1 for name, values in columns.items()}
    num_rows = max(sizes.values(), default=0)
    for name, size in sizes.items():
        if size != num_rows or size < 0:
            raise RequestError(f"column {name!r} must be a list or array with one value for each of {max(num_rows, 0)} rows")
    missing: dict[str, list[object]] = {name: [None] * num_rows for name in wanted if name not in columns}
    return encode(schema.features, {**columns, **missing}, num_rows)


def _plain(values: Any) -> Any:
    """A column of pandas or Arrow as one of numpy or Python, None where nothing is."""
    if _is_from("pyarrow", values):
        return values.to_pylist()
    return values.to_numpy() if hasattr(values, "to_numpy") else values


def _is_from(package: str, data: object) -> bool:
    """Whether an object's class comes from a package, which need not be installed."""
    return type(data).__module__.partition(".")[0] == package


def _arrow_from_pandas(frame: Any) -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError("a pandas DataFrame needs pyarrow: `pip install pyarrow`, or pass rows or columns") from error
    if not hasattr(frame, "columns"):
        raise RequestError(f"a {type(frame).__name__} of pandas is no DataFrame: pass `frame[[columns]]`, or {{column: values}}")
    if not frame.columns.is_unique:
        raise RequestError(f"the DataFrame has a column {frame.columns[frame.columns.duplicated()][0]!r} more than once")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ValueError) as error:
        raise RequestError(f"the DataFrame holds values of mixed types: {error}") from None
