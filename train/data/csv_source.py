"""CSV files, streamed block by block.

Columns are read as text, so that `007` and ids beyond int64 stay what they are and mean what they mean in a request; a column whose type
`input_fields` gives as a number is read as that.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from emberline.errors import DataError
from emberline.train.config.data_config import FieldConfig
from emberline.train.data.parquet_source import check_columns
from emberline.train.data.source import Fragment

SUFFIXES = (".csv", ".tsv", ".txt")
_BLOCK_BYTES = 1 << 22
_NUMBER_TYPES = {"INT32": pa.int32(), "INT64": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64()}


class CsvSource:
    """CSV files, of which only the columns named are kept.

    Args:
        files: in order.
        columns: names of columns.
        delimiter: one character.
        with_header: the first line names the columns.
        fields: names (where there is no header) and types.

    Raises:
        DataError: there are no names, or a file lacks a column; names file and column.
    """

    def __init__(self, files: Sequence[Path], columns: Sequence[str], *, delimiter: str, with_header: bool, fields: Sequence[FieldConfig]) -> None:
        if not with_header and not fields:
            raise DataError("CSV columns have no names: set with_header: true, or list input_fields")
        self._columns = list(columns)
        self._names = None if with_header else [field.input_name for field in fields]
        types = {field.input_name: _NUMBER_TYPES.get(field.input_type, pa.string()) for field in fields}
        self._types = {name: types.get(name, pa.string()) for name in columns}
        self._delimiter = delimiter
        self.fragments = tuple(Fragment(path) for path in files)
        for path in files:
            self._check(path)

    def _check(self, path: Path) -> None:
        """Refuse a file that cannot be opened or lacks a column."""
        if self._names is not None:
            check_columns(path, self._columns, self._names)
            return
        try:
            if path.stat().st_size == 0:
                raise DataError(f"{path} is empty: it has no header")
            with self._reader(path, pa.csv.ConvertOptions(strings_can_be_null=True)) as reader:
                check_columns(path, self._columns, reader.schema.names)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read as CSV: {error}") from error

    def _reader(self, path: Path, convert: Any) -> Any:
        return pa.csv.open_csv(
            path,
            read_options=pa.csv.ReadOptions(column_names=self._names, block_size=_BLOCK_BYTES, use_threads=False),
            parse_options=pa.csv.ParseOptions(delimiter=self._delimiter),
            convert_options=convert,
        )

    def read(self, fragment: Fragment, chunk_rows: int) -> Iterator[Any]:
        """Record batches of one file."""
        convert = pa.csv.ConvertOptions(
            include_columns=self._columns, column_types=self._types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=True
        )
        try:
            if fragment.path.stat().st_size == 0:
                return
            with self._reader(fragment.path, convert) as reader:
                for block in reader:
                    for start in range(0, block.num_rows, chunk_rows):
                        yield block.slice(start, chunk_rows)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{fragment.path} cannot be read as CSV: {error}") from error
