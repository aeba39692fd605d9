"""A request in packed form: what comes in, and what a check makes of it.

Letters: B rows, U users, F sparse features, N ids in all, D dense floats a row, Q sequences, S steps of all sparse sequences. Ids and lengths go
feature after feature (feature-major). For F = 2, B = 3:

             row 0    row 1   row 2
    user     [7]      []      [3, 4]
    item     [1, 2]   [9]     []

    ids      7 3 4 1 2 9
    lengths  1 0 2 2 1 0

The row of a sequence is the ids of all its steps. How many steps it has, and how many ids each, is told besides; for a sparse sequence `clicks` and a
dense one `prices` of one number a step, B = 2:

             row 0         row 1
    clicks   [[5, 6], []]  [[8]]         ids 5 6 8   lengths 2 1   step_lengths 2 0 1
    prices   [[0.5], [2]]  [[1]]         dense_steps 0.5 2 1       steps 2 1 (clicks) 2 1 (prices)

A tiled request has what belongs to a user once, and beside it the rows of that user. The same arrays then have U entries for a feature of the user's
side, and B for any other; here `user` is the user's, U = 2:

    rows_per_user 2 1     row 0 and row 1 are of user 0, row 2 is of user 1

             user 0           user 1
    user     [7]              [3, 4]
             row 0    row 1   row 2
    item     [1, 2]   [9]     []

    ids      7 3 4 1 2 9
    lengths  1 2 2 1 0
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.schema import ModelSchema


@dataclass(frozen=True, eq=False)
class PackedRequest:
    """One request as flat arrays, each of shape [n] or [1, n]. Making one checks nothing; `RequestValidator` returns a checked one.

    Where it is tiled, whatever is told of [F * B], [B * D] or [Q * B] below has U entries in place of B for each feature of the user's side.

    Args:
        ids: int64 [N], feature after feature; narrower integers are widened. Rows for static tables, raw ids for ZCH and dynamic ones.
        lengths: int32 [F * B]: how many ids each bag holds.
        weights: float32 [N], or None: all 1.
        dense: float32 [B * D], row after row; in a tiled request only of features that are not the user's.
        steps: int32 [Q * B]: how many steps each row has, sequence after sequence, sparse and dense ones in the order of the schema. May be left
            out where all are sparse and take one id a step: each id is a step then.
        step_lengths: int32 [S]: how many ids each step holds, sparse sequence after sequence. May be left out where all take one id a step: each
            step has one then.
        dense_steps: float32, the numbers of each step, dense sequence after sequence.
        rows_per_user: int32 [U], how many rows each user has, 0 or more: the request is tiled, and B is their sum. None where it is not.
        user_dense: float32 [U * Du], the numbers of the user's features without steps, user after user; of tiled requests only.
    """

    ids: npt.NDArray[Any] | None = None
    lengths: npt.NDArray[Any] | None = None
    weights: npt.NDArray[Any] | None = None
    dense: npt.NDArray[Any] | None = None
    steps: npt.NDArray[Any] | None = None
    step_lengths: npt.NDArray[Any] | None = None
    dense_steps: npt.NDArray[Any] | None = None
    rows_per_user: npt.NDArray[Any] | None = None
    user_dense: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class CheckedRequest(PackedRequest):
    """A request that the engine can run: flat arrays of the exact types, sizes that agree, ids that every table has.

    `ids`, `lengths`, `dense`, `steps` and `dense_steps` are never None here: they are empty where the model has no such input. `step_lengths` is
    None where each step has one id. Of a tiled request they are what was sent, and `tile` has what the engine runs.

    Args:
        num_rows: B.
        checked_for: the schema that it was checked against.
        tile: both sides of a tiled request; None of others.
    """

    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32] | None
    dense: npt.NDArray[np.float32]
    steps: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    step_lengths: npt.NDArray[np.int32] | None = None
    dense_steps: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    num_rows: int = field(kw_only=True)
    checked_for: ModelSchema = field(kw_only=True, repr=False)
    tile: "Tile | None" = field(kw_only=True, default=None)


@dataclass(frozen=True, eq=False)
class Tile:
    """The two sides of a checked tiled request, each a request of its own for its part of the schema, `ModelSchema.part`.

    Args:
        user: of U rows, one a user.
        item: of B rows.
        rows_per_user: int32 [U], of the sum B.
        of_user: bool [N], which of the request's ids are the user side's.
    """

    user: CheckedRequest
    item: CheckedRequest
    rows_per_user: npt.NDArray[np.int32]
    of_user: npt.NDArray[np.bool_]
