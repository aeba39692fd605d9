"""Names and sizes of data files, and how they differ."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberline.errors import DataError
from emberline.train.data.files import DataFile, file_changes, list_files
from emberline.train.data.parquet_source import ParquetSource
from emberline.train.data.paths import find_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in (("a/x.csv", 3), ("a/deep/y.csv", 5), ("b/x.csv", 7)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * size)
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("a", [("x.csv", 3)]),
        ("a/x.csv", [("x.csv", 3)]),
        ("a/**/*.csv", [("deep/y.csv", 5), ("x.csv", 3)]),
        ("*/x.csv", [("a/x.csv", 3), ("b/x.csv", 7)]),
        ("?/*.csv", [("a/x.csv", 3), ("b/x.csv", 7)]),
        ("b,a", [("x.csv", 7), ("x.csv", 3)]),
    ],
)
def test_names_are_below_what_was_given(folder: Path, paths: str, expected: list[tuple[str, int]]) -> None:
    given = ",".join(str(folder / part) for part in paths.split(","))
    assert [(file.name, file.bytes) for file in list_files(given, (".csv",))] == expected


def test_rows_of_parquet_are_known(tmp_path: Path) -> None:
    for name, rows in (("a", 0), ("b", 7)):
        pq.write_table(pa.table({"x": list(range(rows))}, pa.schema({"x": pa.int64()})), tmp_path / f"{name}.parquet", row_group_size=3)
    source = ParquetSource(find_files(tmp_path, (".parquet",)), ["x"])
    assert [(file.name, file.rows) for file in list_files(tmp_path, (".parquet",), source)] == [("a.parquet", 0), ("b.parquet", 7)]


def test_each_change_is_told() -> None:
    a, b, c = (DataFile(name=name, bytes=size, rows=rows) for name, size, rows in (("a", 1, 2), ("b", 3, 4), ("c", 5, None)))
    assert file_changes([a, b], [a, b]) == []
    assert file_changes([a, b], [b, a]) == ["the order of the files changed"]
    assert file_changes([a, b], [a, c]) == ["b is gone", "c is new, with 5 bytes"]
    assert file_changes([a], [DataFile(name="a", bytes=1, rows=3)]) == ["a had 2 rows in 1 bytes, and has 3 rows in 1 bytes"]
    assert file_changes([a, a], [a]) == ["a (2) is gone"]
    assert file_changes([], []) == []


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        list_files(tmp_path / "nothing", ())
