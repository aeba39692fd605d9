from pathlib import Path

import pytest

from emberline.errors import DataError
from emberline.train.data.paths import find_files

SUFFIXES = (".parquet", ".pq")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    for name in ("b.parquet", "a.parquet", "c.pq", "notes.txt", "_SUCCESS", ".hidden.parquet", "_temporary.parquet", "inner/d.parquet"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def _names(files: list[Path]) -> list[str]:
    return [file.name for file in files]


def test_a_folder_by_name_without_what_is_hidden(folder: Path) -> None:
    assert _names(find_files(folder, SUFFIXES)) == ["a.parquet", "b.parquet", "c.pq"]
    assert _names(find_files(f"{folder}/", SUFFIXES)) == ["a.parquet", "b.parquet", "c.pq"]


def test_patterns(folder: Path) -> None:
    assert _names(find_files(f"{folder}/*.parquet", SUFFIXES)) == ["_temporary.parquet", "a.parquet", "b.parquet"]
    assert _names(find_files(f"{folder}/**/[ad].parquet", SUFFIXES)) == ["a.parquet", "d.parquet"]


def test_lists_keep_their_order(folder: Path) -> None:
    assert _names(find_files([folder / "c.pq", f"{folder}/a.parquet"], SUFFIXES)) == ["c.pq", "a.parquet"]
    assert _names(find_files(f"{folder}/b.parquet, {folder}/inner", SUFFIXES)) == ["b.parquet", "d.parquet"]
    assert _names(find_files(folder / "notes.txt", SUFFIXES)) == ["notes.txt"]


def test_what_is_not_there(folder: Path) -> None:
    for paths, problem in [
        (folder / "x.parquet", r"x\.parquet does not exist"),
        (f"{folder}/z*.parquet", "no file matches"),
        ([], "no data files are given"),
        ("", "an empty name among the data files"),
        (f"{folder}/a.parquet,", "an empty name"),
        (f"{folder}/a.parquet,{folder}/*.parquet", r"a\.parquet is given twice"),
    ]:
        with pytest.raises(DataError, match=problem):
            find_files(paths, SUFFIXES)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"has no \.csv files"):
        find_files(folder, (".csv",))
