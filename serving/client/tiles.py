"""Users and their rows, as a caller hands them to the client: encoded, and cut into tiled requests of a bounded number of rows.

Letters: U users, B rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emberline.encoding.selection import RowTaker
from emberline.errors import RequestError
from emberline.schema import ModelSchema
from emberline.serving.arrays import counts, flat
from emberline.serving.client.data import encode_data
from emberline.serving.encoded import pack_tiled
from emberline.serving.packed_request import PackedRequest
from emberline.serving.request_tile import as_users, require_tiled
from emberline.serving.tiled_rows import EncodedTile, TiledRows, encode_sides


class TilePart(NamedTuple):
    """A part of the rows, with the users that have some of them.

    Args:
        request: the part.
        goes_on: its first user has rows in the part before too.
    """

    request: PackedRequest
    goes_on: bool


def encode_tile(schema: ModelSchema, users: Any, data: Any, rows_per_user: Sequence[int] | None) -> EncodedTile:
    """Ids and floats of both sides, encoded as in training.

    Args:
        schema: the model's description.
        users: U users: `{column: value}` each; with `rows_per_user` anything that `encode_data` takes.
        data: for each user, a list of rows of `{column: value}` each; with `rows_per_user` the rows of all users, as anything that `encode_data`
            takes.
        rows_per_user: how many rows each user has.

    Raises:
        RequestError: the model takes no tiled requests, users and rows do not fit, or a value cannot be encoded; names feature and user or row.
    """
    require_tiled(schema)
    if rows_per_user is None:
        return encode_sides(schema, TiledRows(_listed("users", users), [_listed("the rows of a user", rows) for rows in _listed("rows", data)]))
    with as_users():
        user = encode_data(schema.part(per_user=True), users)
    item = encode_data(schema.part(per_user=False), data)
    wanted = counts("rows_per_user", flat("rows_per_user", np.asarray(rows_per_user), wanted=True)).tolist()
    if min(wanted, default=0) < 0 or len(wanted) != user.num_rows or sum(wanted) != item.num_rows:
        found = f"found {len(wanted)} that add up to {sum(wanted)}"
        raise RequestError(f"rows_per_user must have, for each of {user.num_rows} users, how many of the {item.num_rows} rows it has: {found}")
    return EncodedTile(user, item, wanted)


def split_tile(schema: ModelSchema, tile: EncodedTile, max_rows: int) -> Iterator[TilePart]:
    """Tiled requests of at most `max_rows` rows each, in order; a user whose rows fall into several is in each of them."""
    users, rows = RowTaker(tile.user), RowTaker(tile.item)
    for part in _parts(np.array(tile.rows_per_user, np.int64), max_rows):
        user, item = users.cut(part.first, part.last), rows.cut(part.start, part.stop)
        yield TilePart(pack_tiled(schema, user, item, part.rows_per_user), part.goes_on)


class _Part(NamedTuple):
    """Rows [start, stop) with users [first, last), the rows that each of these has there, and whether the first one has rows before them."""

    start: int
    stop: int
    first: int
    last: int
    rows_per_user: npt.NDArray[np.int32]
    goes_on: bool


def _parts(rows_per_user: npt.NDArray[np.int64], max_rows: int) -> Iterator[_Part]:
    """All rows, in parts; users without rows are in one of them."""
    ends = rows_per_user.cumsum()
    num_users, num_rows = rows_per_user.size, int(rows_per_user.sum())
    first, goes_on = 0, False
    for start in range(0, max(num_rows, 1), max_rows):
        stop = min(start + max_rows, num_rows)
        last = num_users if stop == num_rows else int(np.searchsorted(ends, stop, side="left")) + 1
        shares = np.minimum(ends[first:last], stop) - np.maximum(ends[first:last] - rows_per_user[first:last], start)
        yield _Part(start, stop, first, last, np.maximum(shares, 0).astype(np.int32), goes_on)
        goes_on = last > 0 and bool(ends[last - 1] > stop)
        first = last - 1 if goes_on else last


def _listed(what: str, found: Any) -> Sequence[Any]:
    if isinstance(found, Mapping | str | bytes) or not isinstance(found, Sequence):
        raise RequestError(f"{what} must be a list, not {type(found).__name__}: give rows_per_user with columns, DataFrames or Arrow tables")
    return found
