"""Tiled requests for the parity gate: users and rows taken out of untiled ones, with the untiled form that must get the same answers.

Letters: U users, B rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, cycle, pairwise, takewhile

import numpy as np

from emberline.encoding.selection import only_features, take_columns
from emberline.export.cases import Case
from emberline.program_inputs import tiled_streams
from emberline.schema import ModelSchema
from emberline.serving.encoded import beside, pack_tiled
from emberline.serving.request import PackedRequest

_ROWS_PER_USER = (0, 1, 2, 3)
_MOST_WITHOUT_ROWS = 2


@dataclass(frozen=True, eq=False)
class TiledCase:
    """One tiled request.

    Args:
        untiled: its name, and its rows with each user's features repeated.
        request: the request.
    """

    untiled: Case
    request: PackedRequest


def tiled_cases(schema: ModelSchema, case: Case) -> Iterator[TiledCase]:
    """The rows of a case as those of several users, some without any, and of one user; and some of its rows as users of no row.

    Args:
        schema: the model's description; it takes tiled requests.
        case: B rows. The features of the users are those of its first rows.
    """
    rows = case.encoded.num_rows
    yield _tiled(schema, case, "of several users", rows_of_users(rows))
    if rows:
        yield _tiled(schema, case, "of one user", [rows])
        yield _tiled(schema, case, "of users without rows", [0] * min(rows, _MOST_WITHOUT_ROWS))


def rows_of_users(rows: int) -> list[int]:
    """How many of some rows each user has: in turn none, one, two and three, and the last user what is left."""
    ends = [0, *takewhile(lambda end: end < rows, accumulate(cycle(_ROWS_PER_USER))), *[rows] * bool(rows)]
    return [end - start for start, end in pairwise(ends)]


def _tiled(schema: ModelSchema, case: Case, name: str, rows_per_user: list[int]) -> TiledCase:
    encoded = case.encoded
    users = np.arange(len(rows_per_user)) % max(encoded.num_rows, 1)
    owners = np.repeat(users, rows_per_user)
    # Steps of both sides that stand side by side are equally many: each row then has those of the row that its user is.
    mixed = any(stream.user and stream.item for stream in tiled_streams(schema))
    items = owners if mixed else np.arange(owners.size)
    of_users = {feature.name for feature in schema.features if feature.is_per_user}
    user, item = only_features(encoded, of_users), only_features(encoded, {feature.name for feature in schema.features} - of_users)
    of_rows = take_columns(item, items)
    request = pack_tiled(schema, take_columns(user, users), of_rows, np.array(rows_per_user, np.int32))
    return TiledCase(Case(f"{case.name}, {name}", beside(take_columns(user, owners), of_rows)), request)
