"""Files opened as a config says: rows against the tables that were written."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from emberline.errors import DataError
from emberline.train.config.data_config import DataConfig, FileFormat
from emberline.train.data.open_source import open_source, suffixes_of

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [0.5, 1.5, 2.5]})
CSV = DataConfig(file_format=FileFormat.CSV, delimiter=";", with_header=True)


def rows_of(config: DataConfig, path: Path, columns: list[str]) -> list[dict[str, object]]:
    source = open_source(config, path, columns)
    return [row for fragment in source.fragments for chunk in source.read(fragment, 2) for row in chunk.to_pylist()]


def test_each_format_gives_the_columns_once(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "rows.parquet")
    pa.csv.write_csv(TABLE, tmp_path / "rows.csv", pa.csv.WriteOptions(delimiter=";"))
    wanted = TABLE.select(["b", "a"]).to_pylist()
    assert rows_of(DataConfig(), tmp_path, ["b", "a", "b"]) == wanted
    assert rows_of(CSV, tmp_path, ["b", "a", "b"]) == [{**row, "a": str(row["a"])} for row in wanted]  # untyped CSV columns are texts


def test_folders_have_the_files_of_the_format(tmp_path: Path) -> None:
    assert ".parquet" in suffixes_of(DataConfig())
    assert ".csv" in suffixes_of(CSV)
    for config in (DataConfig(), CSV):
        with pytest.raises(DataError, match=f"has no {suffixes_of(config)[0]}"):
            open_source(config, tmp_path, ["a"])
