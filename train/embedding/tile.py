"""Tiled batches: checked, and what is looked up of both sides.

    tile.user [U] ─┬─ one read of each table ─► user.pooled [U, Pu], user.dense [U, Du], user.sequences ─┐
    batch     [B] ─┘                            item.pooled [B, Pi], item.dense [B, Di], item.sequences ─┼─ assemble_tiled ─► as `assemble`
    tile.rows [B] ───────────────────────────── rows, places ────────────────────────────────────────────┘

Letters: U users, B rows, N steps of all rows.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from emberline.errors import ConfigError, DataError
from emberline.train.data.rows import feature_names, take_rows
from emberline.train.data.tile import check_tile_rows
from emberline.train.embedding.inputs import BatchReader
from emberline.train.embedding.layout import SequenceParts
from emberline.train.embedding.lookups import Looked, Source, columns
from emberline.train.embedding.registry import TableRegistry
from emberline.train.embedding.sides import SideColumns, Sides
from emberline.train.embedding.spread import Spread
from emberline.train.features import BASE_DATA_GROUP

if TYPE_CHECKING:
    from emberline.train.data import Batch


class SideParts(NamedTuple):
    """What was looked up of one side.

    Args:
        pooled: [U, Pu] or [B, Pi], columns as `SideColumns.lookups` says.
        dense: [U, Du] or [B, Di], columns as `SideColumns.dense` says.
        sequences: the steps; of a group with sequences of both sides, `lengths` has the first of each, and `positions` the group's stream.
    """

    pooled: Tensor
    dense: Tensor
    sequences: SequenceParts


class TiledParts(NamedTuple):
    """What was looked up of a tiled batch.

    Args:
        user: of U users.
        item: of B rows.
        rows: int64 [B], the user of each row; None where U is 1 and all rows are that user's, which saves copies.
        places: for the user's sequences in JAGGED_SEQUENCE groups, by stream: int64 [N], which of the users' steps each step of the rows is.
    """

    user: SideParts
    item: SideParts
    rows: Tensor | None
    places: dict[str, Tensor]


class TiledInput(NamedTuple):
    """A checked tiled batch, in which each user has rows.

    Args:
        user: the users' features.
        item: all others.
        rows: int64 [B], the user of each row.
        spread: the same for what is looked up.
    """

    user: Source
    item: Source
    rows: Tensor
    spread: Spread


class TileReader:
    """Reads tiled batches for one model.

    Args:
        registry: which features its groups read.
    """

    def __init__(self, registry: TableRegistry) -> None:
        self.sides = Sides(registry)
        self._others = [data_group for data_group in registry.data_groups if data_group != BASE_DATA_GROUP]
        self._user = BatchReader(registry, self.sides.user_features, "user")
        self._item = BatchReader(registry, self.sides.item_features, "item")

    def read(self, batch: "Batch", *, training: bool) -> TiledInput:
        """Both sides of a batch; users without rows are left out.

        Args:
            batch: a tiled one.
            training: whether ZCH tables learn.

        Raises:
            ConfigError: features have no side.
            DataError: the tile cannot be right; says how.
        """
        assert batch.tile is not None
        self.sides.check(training=training)
        user, rows = batch.tile.user, batch.tile.rows
        _check_user(user)
        self.sides.check_placed(feature_names(user), feature_names(batch))
        row_counts = {BASE_DATA_GROUP: rows.numel()} | self._item.rows(batch)
        num_users = self._user.rows(user).get(BASE_DATA_GROUP, user.num_rows)
        check_tile_rows(rows, row_counts[BASE_DATA_GROUP], num_users)
        present = torch.bincount(rows, minlength=num_users) > 0
        if not bool(present.all()):
            self._user.steps(user)  # its checks, of what users have that nothing else will look at
            kept, renumbered = present.nonzero().squeeze(1), present.cumsum(0) - 1
            user, rows, num_users = take_rows(user, kept), renumbered[rows], kept.numel()
        spread = Spread(self.sides.user_keys, None if num_users == 1 else rows, rows.numel())
        return TiledInput(Source(self._user, user, {BASE_DATA_GROUP: num_users}), Source(self._item, batch, row_counts), rows, spread)

    def parts(self, read: TiledInput, looked: Looked) -> TiledParts:
        """What was looked up, as `assemble_tiled` takes it.

        Args:
            read: the batch.
            looked: what was looked up of it.

        Raises:
            ConfigError: the model has negatives, which have rows of their own.
        """
        if self._others:
            raise ConfigError(f"tiled_lookup has a place for {BASE_DATA_GROUP} only, but groups read {', '.join(self._others)}; use forward")
        num_users, num_rows = (source.rows[BASE_DATA_GROUP] for source in (read.user, read.item))
        user = self._side(self.sides.user, looked, num_users, read.rows.device, of_user=True)
        item = self._side(self.sides.item, looked, num_rows, read.rows.device, of_user=False)
        return TiledParts(user, item, read.rows, dict(looked.spread.places))

    def joined(self, parts: TiledParts) -> Looked:
        """The way back from `parts`; traceable."""
        vectors: dict[str, Tensor] = {}
        numbers: dict[str, Tensor] = {}
        sequences = SequenceParts({}, {}, {})
        for side, found in ((self.sides.user, parts.user), (self.sides.item, parts.item)):
            vectors.update(columns(found.pooled, [(lookup.key, lookup.dim) for lookup in side.lookups]))
            numbers.update(columns(found.dense, [(feature.name, feature.value_dim) for feature in side.dense]))
            for into, more in zip(sequences, found.sequences, strict=True):
                into.update(more)
        num_rows = parts.item.pooled.shape[0] if parts.rows is None else 0
        return Looked(vectors, numbers, sequences, {}, Spread(self.sides.user_keys, parts.rows, num_rows, parts.places))

    def _side(self, side: SideColumns, looked: Looked, num_rows: int, device: torch.device, *, of_user: bool) -> SideParts:
        def own(parts: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
            return {name: value for name, value in parts.items() if (name in names) == of_user}

        none = torch.zeros(num_rows, 0, device=device)
        pooled = [looked.vectors[lookup.key][:num_rows] for lookup in side.lookups]
        dense = [looked.numbers[feature.name] for feature in side.dense]
        users, steps = self.sides.user_features, looked.sequences
        sequences = SequenceParts(own(steps.values, self.sides.user_keys), own(steps.lengths, users), own(steps.positions, users))
        return SideParts(torch.cat([none, *pooled], dim=1), torch.cat([none, *dense], dim=1), sequences)


def _check_user(user: "Batch") -> None:
    """The users of a tile have features of the one data group that has sides, and nothing else."""
    if user.tile is not None:
        raise DataError("the users of a tile cannot be tiled themselves")
    if user.labels or user.sample_weights is not None:
        raise DataError("the user side of a tile has labels or sample weights; give them to the rows of the batch")
    others = sorted({*user.sparse_features, *user.dense_features, *user.sequence_mulval_lengths} - {BASE_DATA_GROUP})
    if others:
        raise DataError(f"the user side of a tile has features of {', '.join(others)}; only {BASE_DATA_GROUP} has a user side")
