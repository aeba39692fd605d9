"""Tiled requests, checked: cut into what is told of users and what of rows, each of which is then checked like any untiled request.

Letters: U users, B rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from emberline.errors import RequestError
from emberline.program_inputs import step_inputs
from emberline.schema import ModelSchema
from emberline.serving.arrays import counts, first, flat
from emberline.serving.packed_request import CheckedRequest, PackedRequest, Tile
from emberline.serving.request_cut import RequestCutter
from emberline.serving.request_rows import RowsValidator

Counts = npt.NDArray[np.int32]

MOST_ROWS = 1 << 22
"""Rows of a tiled request. Where a model has nothing but user's features, a few bytes may ask for any number of rows."""
MOST_NUMBERS = 1 << 28
"""Numbers that the users' part of a tiled request may come to, repeated in each of their rows: 1 GiB in float32."""


def tile_refusal(schema: ModelSchema) -> RequestError | None:
    """Why a model takes no tiled requests; None where it does."""
    for feature in schema.features:
        if not feature.side:
            return RequestError("has no side, the user's or the item's, which a tiled request needs", feature=feature.name)
    if not any(feature.is_per_user for feature in schema.features):
        return RequestError("rows_per_user: no feature of the model is the user's, so it takes no tiled requests")
    return None


def require_tiled(schema: ModelSchema) -> None:
    """Refuse tiled requests where the model takes none.

    Raises:
        RequestError: `tile_refusal`.
    """
    if refusal := tile_refusal(schema):
        raise refusal


class TileValidator:
    """Checks tiled requests for one model. Holds no state of a request, so any number of threads may use it.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._schema, self._refusal = schema, tile_refusal(schema)
        user, item = schema.part(per_user=True), schema.part(per_user=False)
        self._user, self._item = RowsValidator(user, per_user=True), RowsValidator(item)
        self._cut, self._growth = RequestCutter(schema), _Growth(user)
        self._mixed = _mixed_streams(schema, user, item)

    def check(self, request: PackedRequest) -> CheckedRequest:
        """The request with exact types and shapes, and each side of it as a request of its own.

        Raises:
            RequestError: it is malformed, or the model takes no tiled ones; the message names the tensor, and the feature and the user or row
                where one is at fault.
        """
        if self._refusal is not None:
            require_tiled(self._schema)
        rows_per_user = _rows_per_user(request)
        num_users, num_rows = rows_per_user.size, int(rows_per_user.sum(dtype=np.int64))
        if num_rows > MOST_ROWS:
            raise RequestError(f"rows_per_user adds up to {num_rows} rows; a tiled request may have {MOST_ROWS}")
        cut = self._cut(request, num_users, num_rows)
        with as_users():
            user = self._user.check(cut.user, num_users)
        item = self._item.check(cut.item, num_rows)
        self._check_alike(user, item, rows_per_user)
        self._growth.check(user, rows_per_user)
        return CheckedRequest(
            **cut.sent,
            dense=item.dense,
            user_dense=user.dense,
            rows_per_user=rows_per_user,
            num_rows=num_rows,
            checked_for=self._schema,
            tile=Tile(user, item, rows_per_user, cut.of_user),
        )

    def _check_alike(self, user: CheckedRequest, item: CheckedRequest, rows_per_user: Counts) -> None:
        """Sequences of both sides that stand side by side in a group have equally many steps in each row."""
        for of_user, of_item in self._mixed:
            names = self._user.schema.sequences[of_user].name, self._item.schema.sequences[of_item].name
            wanted = np.repeat(_steps_of(user, of_user), rows_per_user)
            found = _steps_of(item, of_item)
            if (differ := wanted != found).any():
                row = int(differ.argmax())
                beside = f"{names[0]!r} of its user, which stands beside it in a group, has {wanted[row]}"
                raise RequestError(f"steps: {found[row]} steps, but {beside}", feature=names[1], row=row)


class _Growth:
    """Reckons what the users' part of a request comes to, repeated in each of their rows.

    Args:
        user: the schema's part of the user side.
    """

    def __init__(self, user: ModelSchema) -> None:
        self._width = user.pooled_dim + user.dense_dim
        places = {feature.name: place for place, feature in enumerate(user.sequences)}
        widths = {stream.name: 0 for stream in user.streams}
        for _, stream, width in step_inputs(user):
            widths[stream] += width
        self._streams = [(places[stream.name], stream.padded, widths[stream.name]) for stream in user.streams]

    def check(self, user: CheckedRequest, rows_per_user: Counts) -> None:
        """Refuse what would not fit."""
        rows = rows_per_user.astype(np.int64)
        numbers = int(rows.sum()) * self._width
        for place, padded, width in self._streams:
            steps = _steps_of(user, place).astype(np.int64)
            longest = int((steps * (rows > 0)).max()) if padded and steps.size else 0
            numbers += max(int((steps * rows).sum()), longest * int(rows.sum())) * width
        if numbers > MOST_NUMBERS:
            raise RequestError(f"what users have comes to {numbers} numbers in all of their rows; a tiled request may have {MOST_NUMBERS}")


def _rows_per_user(request: PackedRequest) -> Counts:
    """`rows_per_user` as int32 [U], none negative."""
    if request.rows_per_user is None:
        raise RequestError("user_dense is there, but rows_per_user, which tells of how many rows each user has, is missing")
    found = counts("rows_per_user", flat("rows_per_user", request.rows_per_user, wanted=True))
    if found.size and found.min() < 0:
        raise RequestError(f"rows_per_user: {first(found, found < 0)} is negative", user=int((found < 0).argmax()))
    return found


def _steps_of(side: CheckedRequest, place: int) -> Counts:
    """The steps of one of a side's sequences: int32 [U] or [B]."""
    return side.steps[place * side.num_rows : (place + 1) * side.num_rows]


def _mixed_streams(schema: ModelSchema, user: ModelSchema, item: ModelSchema) -> list[tuple[int, int]]:
    """Of each stream that has sequences of both sides, the place of its first one among the sequences of either."""
    places = [{feature.name: place for place, feature in enumerate(part.sequences)} for part in (user, item)]
    found = []
    for stream in schema.streams:
        firsts = [[side[name] for name in stream.features if name in side][:1] for side in places]
        if all(firsts):
            found.append((firsts[0][0], firsts[1][0]))
    return found


def told_of_user(error: RequestError) -> RequestError:
    """An error of users that were checked, encoded or looked up in place of rows: its row is a user."""
    return RequestError(error.problem, feature=error.feature, user=error.row)


@contextmanager
def as_users() -> Iterator[None]:
    """While users are checked, or encoded, in place of rows: an error's row is a user."""
    try:
        yield
    except RequestError as error:
        if error.row is None:
            raise
        raise told_of_user(error) from None
