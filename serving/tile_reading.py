"""Tiled requests on their way to a program: both sides are looked up by themselves, each table once for each user.

    users ─► rows of ids ─► look up ─┐
    rows  ─► rows of ids ─► look up ─┴─► what programs for tiled requests take, or, users' parts repeated in their rows, what others do

Letters: U users, B rows.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from emberline.errors import RequestError
from emberline.schema import ModelSchema
from emberline.serving.batching import MergedBatch
from emberline.serving.full_inputs import FullInputMaker
from emberline.serving.inputs import InputMaker
from emberline.serving.lookup import BagRows
from emberline.serving.lookup.bags import tensor
from emberline.serving.request import CheckedRequest
from emberline.serving.request_tile import told_of_user
from emberline.serving.sources import Sources
from emberline.serving.tile_batching import TileLayout, merge_tiled
from emberline.serving.tile_spreading import FullSpreader, TileSpreader
from emberline.serving.tiled_inputs import TiledInputMaker
from emberline.serving.unknown import UnknownRefuser

Inputs = dict[str, Tensor]


class Looked(NamedTuple):
    """What was looked up of a batch of tiled requests.

    Args:
        user: of the users, as if they were rows, by the names of `program_inputs`.
        item: of the rows.
        rows: int64 [B], the user of each row.
    """

    user: Inputs
    item: Inputs
    rows: Tensor


class TileReader:
    """Reads tiled requests for one model.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        parts = [schema.part(per_user=per_user) for per_user in (True, False)]
        self._schema, self._parts = schema, parts
        self._layout = TileLayout.of(schema)
        self._refusers = [UnknownRefuser(part) for part in parts]
        self._makers = [InputMaker(part) for part in parts]
        self._spread, self._make_tiled = TileSpreader(schema), TiledInputMaker(schema)

    def merge(self, requests: Sequence[CheckedRequest]) -> MergedBatch:
        """One batch of at least one tiled request."""
        return merge_tiled(requests, self._layout)

    def refused(
        self, rows: Sequence[BagRows], batch: MergedBatch, requests: Sequence[CheckedRequest], wanted: Sequence[Collection[str]]
    ) -> Mapping[int, RequestError]:
        """An error for each request that is refused; see `UnknownRefuser`.

        Args:
            rows: what the users read, and what the rows read.
            batch: the requests as one.
            requests: as they came.
            wanted: the answers that each wants.
        """
        assert batch.sides is not None
        tiles = [request.tile for request in requests if request.tile is not None]
        of_users = self._refusers[0](rows[0], batch.sides[0], [tile.user for tile in tiles], wanted)
        of_rows = self._refusers[1](rows[1], batch.sides[1], [tile.item for tile in tiles], wanted)
        return {**of_rows, **{place: told_of_user(error) for place, error in of_users.items()}}

    def look_up(self, sources: Sources, rows: Sequence[BagRows], batch: MergedBatch) -> Looked:
        """What was looked up of both sides of a batch.

        Args:
            sources: have the tables.
            rows: what the users read, and what the rows read.
            batch: the requests as one.
        """
        assert batch.sides is not None
        users, items = batch.sides
        return Looked(
            self._makers[0](sources.user.lookup, rows[0], users.request),
            self._makers[1](sources.item.lookup, rows[1], items.request),
            _rows_of(batch, rows[1].bags.device),
        )

    def inputs(self, looked: Looked) -> Inputs:
        """What was looked up, as programs for untiled requests take it."""
        return self._spread(*looked)

    def tiled_inputs(self, looked: Looked) -> Inputs:
        """What was looked up, as programs for tiled requests take it."""
        return self._make_tiled(*looked)

    def full_inputs(self, rows: Sequence[BagRows], batch: MergedBatch) -> Inputs:
        """What `full` programs take of a batch; see `FullInputMaker`."""
        assert batch.sides is not None
        user, item = (FullInputMaker(part)(found, side.request) for part, found, side in zip(self._parts, rows, batch.sides, strict=True))
        return FullSpreader(self._schema)(user, item, _rows_of(batch, rows[1].bags.device))


def _rows_of(batch: MergedBatch, device: torch.device) -> Tensor:
    """The user of each row: int64 [B]."""
    tile = batch.request.tile
    assert tile is not None
    return torch.repeat_interleave(tensor(tile.rows_per_user, device).long(), output_size=batch.request.num_rows)
