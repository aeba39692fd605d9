"""Many tiled requests become one batch: the users of all, request after request, and beside them the rows of all.

What a user has, and what is looked up of it, is repeated here in each of the user's rows.

Letters: U users, B rows, N ids, S steps of a user's stream, R steps of the same in all rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from emberline.schema import ModelSchema
from emberline.serving.batching import BatchLayout, MergedBatch, merge
from emberline.serving.request import CheckedRequest, Tile


@dataclass(frozen=True, eq=False)
class TileLayout:
    """What of a schema merging tiled requests needs to know.

    Args:
        whole: of the model.
        user: of the users' part.
        item: of the rows' part.
    """

    whole: BatchLayout
    user: BatchLayout
    item: BatchLayout

    @classmethod
    def of(cls, schema: ModelSchema) -> Self:
        """The layout of a model's tiled requests."""
        parts = (schema.part(per_user=True), schema.part(per_user=False))
        return cls(BatchLayout.of(schema), *map(BatchLayout.of, parts))


def merge_tiled(requests: Sequence[CheckedRequest], layout: TileLayout) -> MergedBatch:
    """One batch from at least one tiled request for the same model."""
    tiles = [request.tile for request in requests if request.tile is not None]
    assert len(tiles) == len(requests)
    sides = merge([tile.user for tile in tiles], layout.user), merge([tile.item for tile in tiles], layout.item)
    rows_per_user = np.concatenate([tile.rows_per_user for tile in tiles])
    of_user = np.concatenate([tile.of_user for tile in tiles])
    user, item = (side.request for side in sides)
    whole = CheckedRequest(
        ids=np.empty(0, np.int64),
        lengths=np.empty(0, np.int32),
        weights=None,
        dense=item.dense,
        num_rows=item.num_rows,
        checked_for=requests[0].checked_for,
        tile=Tile(user, item, rows_per_user, of_user),
    )
    num_ids = tuple(tile.of_user.size for tile in tiles)
    own = of_user.nonzero()[0], (~of_user).nonzero()[0]
    places = [found if side.places is None else found[side.places] for side, found in zip(sides, own, strict=True)]
    return MergedBatch(whole, layout.whole, sides[1].num_rows, num_ids, np.concatenate(places), sides, _user_steps(sides[0], rows_per_user))


def _user_steps(user: MergedBatch, rows_per_user: npt.NDArray[np.int32]) -> Mapping[str, npt.NDArray[np.int32]]:
    """Steps that each row has of its user, by stream."""
    table = user.request.steps.reshape(user.layout.num_sequences, user.request.num_rows)
    return {stream: np.repeat(table[place], rows_per_user) for stream, place in user.layout.streams.items()}
