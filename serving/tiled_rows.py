"""Raw users, each with its raw rows, as a tiled request.

    users   {"age": 31}                    {"age": 25}
    rows    [{"item": 4}, {"item": 5}]     [{"item": 4}]       the same as {"age": 31, "item": 4}, {"age": 31, "item": 5}, {"age": 25, "item": 4}

Letters: U users, B rows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emberline.encoding import EncodedColumns, columns_from_rows, encode, required_columns
from emberline.errors import RequestError
from emberline.schema import ModelSchema
from emberline.serving.encoded import pack_tiled
from emberline.serving.packed_request import PackedRequest
from emberline.serving.request_tile import as_users, require_tiled

Row = Mapping[str, object]


@dataclass(frozen=True)
class TiledRows:
    """Users and their rows, each as `{column: value}`.

    Args:
        users: U of them: the columns of the users' features, and any other that holds for all rows of a user.
        rows: the rows of each user.
    """

    users: Sequence[Row]
    rows: Sequence[Sequence[Row]]

    def __len__(self) -> int:
        """B."""
        return sum(map(len, self.rows))


@dataclass(frozen=True, eq=False)
class EncodedTile:
    """Both sides of a tiled request, encoded.

    Args:
        user: the features of the user's side, of U rows.
        item: all others, of B rows.
        rows_per_user: rows of each user.
    """

    user: EncodedColumns
    item: EncodedColumns
    rows_per_user: Sequence[int]


def encode_tiled(schema: ModelSchema, given: TiledRows) -> PackedRequest:
    """A tiled request of raw users and rows, encoded as in training.

    Raises:
        RequestError: as `encode_sides`.
    """
    found = encode_sides(schema, given)
    return pack_tiled(schema, found.user, found.item, np.array(found.rows_per_user, np.int32))


def encode_sides(schema: ModelSchema, given: TiledRows) -> EncodedTile:
    """Both sides of raw users and rows.

    A column belongs with the users where a feature of theirs reads it. One that only other features read may come with the rows, or with a user,
    all of whose rows then have it.

    Raises:
        RequestError: the model takes no tiled requests, a column is unknown, on the wrong side or on both, or a value cannot be encoded; names
            the column or the feature, and the user or row.
    """
    require_tiled(schema)
    features = [schema.part(per_user=per_user).features for per_user in (True, False)]
    of_users, of_rows = (required_columns(side) for side in features)
    if len(given.rows) != len(given.users):
        raise RequestError(f"rows has lists for {len(given.rows)} users, but there are {len(given.users)}")
    for number, user in enumerate(given.users):
        if not isinstance(user, Mapping):
            raise RequestError("is not an object of column names and values", user=number)
        _check_known(user, {**of_users, **of_rows}, user=number)
    with as_users():
        columns, num_users = columns_from_rows(features[0], given.users, surplus="ignore")
        user_side = encode(features[0], columns, num_users)
    columns, num_rows = columns_from_rows(features[1], whole_rows(given, of_users, of_rows))
    return EncodedTile(user_side, encode(features[1], columns, num_rows), [len(rows) for rows in given.rows])


def whole_rows(given: TiledRows, of_users: Collection[str], of_rows: Collection[str]) -> list[Row]:
    """Each row with what it has of its user.

    Args:
        given: U users and their rows.
        of_users: columns that features of the users read.
        of_rows: columns that all others read.

    Raises:
        RequestError: a column is unknown, the user's, or on both sides; names column and row.
    """
    found: list[Row] = []
    for user, rows in zip(given.users, given.rows, strict=True):
        lent = {column: value for column, value in user.items() if column in of_rows}
        for row in rows:
            if not isinstance(row, Mapping):
                raise RequestError("is not an object of column names and values", row=len(found))
            for column in row:
                if column in of_users:
                    raise RequestError(f"column {column!r} is the user's: give it in users, once for all rows", row=len(found))
                if column in lent:
                    raise RequestError(f"column {column!r} is given by the row and by its user", row=len(found))
            _check_known(row, of_rows, row=len(found))
            found.append({**lent, **row} if lent else row)
    return found


def _check_known(entry: Row, columns: Collection[str], *, user: int | None = None, row: int | None = None) -> None:
    for column in entry:
        if column not in columns:
            raise RequestError(f"there is no column {column!r}; the model reads {', '.join(columns)}", user=user, row=row)
