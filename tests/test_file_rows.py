"""Rows read out of a file by their numbers, against the same rows of an array."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.file_rows import FileRows


def write(folder: Path, num_rows: int, row_bytes: int, start: int) -> tuple[FileRows, np.ndarray]:  # type: ignore[type-arg]
    whole = np.random.default_rng(num_rows).integers(0, 256, (num_rows, row_bytes), np.uint8)
    path = folder / "rows"
    path.write_bytes(b"x" * start + whole.tobytes() + b"y" * 7)
    return FileRows(path, start, num_rows, row_bytes), whole


@settings(max_examples=40, deadline=None)
@given(data=st.data(), row_bytes=st.sampled_from([1, 12, 300, 5000]), start=st.integers(0, 9))
def test_rows_are_those_of_the_array(data: st.DataObject, row_bytes: int, start: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows, whole = write(tmp_path_factory.mktemp("rows"), 900, row_bytes, start)
    wanted = np.array(data.draw(st.lists(st.integers(0, 899), max_size=60)), np.int64)
    into = np.zeros((wanted.size, row_bytes), np.uint8)
    rows.take(wanted, into)
    np.testing.assert_array_equal(into, whole[wanted])
    first = data.draw(st.integers(0, 900))
    stop = data.draw(st.integers(first, 900))
    into = np.zeros((stop - first, row_bytes), np.uint8)
    rows.read(first, into)
    np.testing.assert_array_equal(into, whole[first:stop])


def test_rows_go_to_places_and_columns_of_a_wider_array(tmp_path: Path) -> None:
    rows, whole = write(tmp_path, 2000, 8, 3)
    into = np.zeros((6, 20), np.uint8)
    rows.take(np.array([1999, 5, 6, 5]), into[:, 4:12], np.array([0, 5, 2, 3]))
    np.testing.assert_array_equal(into[[0, 5, 2, 3], 4:12], whole[[1999, 5, 6, 5]])
    assert into[[1, 4]].sum() + into[:, :4].sum() + into[:, 12:].sum() == 0


def test_a_file_that_ends_too_early_is_named(tmp_path: Path) -> None:
    rows, _ = write(tmp_path, 10, 100, 0)
    rows.path.write_bytes(b"x" * 850)
    with pytest.raises(OSError, match="rows ends after 850 bytes"):
        rows.read(0, np.zeros((10, 100), np.uint8))
    with pytest.raises(OSError, match="rows ends after"):
        rows.take(np.array([9]), np.zeros((1, 100), np.uint8))
