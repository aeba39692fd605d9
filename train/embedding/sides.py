"""What of all that a model's groups read comes once for each user in a tiled batch, and what for each row: plain data.

Only the data group `__BASE__` has a user side; whatever is read of other data groups counts with the rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emberline.errors import ConfigError, DataError
from emberline.schema import LookupSpec
from emberline.train.data.tile import is_user_side
from emberline.train.embedding.registry import TableRegistry
from emberline.train.features import BASE_DATA_GROUP, Feature


@dataclass(frozen=True, kw_only=True)
class SideColumns:
    """The columns of one side of `tiled_lookup`.

    Args:
        lookups: of its pooled vectors, in order.
        sequence_lookups: of its steps.
        dense: the features of its numbers, in order; only those that some group reads.
    """

    lookups: tuple[LookupSpec, ...]
    sequence_lookups: tuple[LookupSpec, ...]
    dense: tuple[Feature, ...]


class Sides:
    """The sides of a model's input.

    Args:
        registry: what its groups read.
    """

    def __init__(self, registry: TableRegistry) -> None:
        columns = (*registry.groups, *(group.query for group in registry.sequence_groups), *(group.sequence for group in registry.sequence_groups))
        self._read = {name: registry.features[name] for part in columns for name in part.features}
        learning = {table.name for table in registry.tables if table.learns_ids}
        self._counting = sorted(
            {lookup.table for lookup in (*registry.lookups, *registry.sequence_lookups) if lookup.table in learning and self._is_user(lookup.feature)}
        )
        self._known = registry.features
        dense = [
            feature for feature in registry.features.values() if feature.name in self._read and not feature.is_sparse and not feature.is_sequence
        ]
        self.user = self._side(registry, dense, self._is_user)
        self.item = self._side(registry, dense, lambda name: not self._is_user(name))
        self.user_keys = frozenset(key for part in columns for name, key in zip(part.features, part.keys, strict=True) if self._is_user(name))

    @property
    def user_features(self) -> frozenset[str]:
        """Names of the features that some group reads and that come once for each user."""
        return frozenset(name for name in self._read if self._is_user(name))

    @property
    def item_features(self) -> frozenset[str]:
        """Names of all others that some group reads."""
        return frozenset(self._read) - self.user_features

    def check(self, *, training: bool) -> None:
        """Refuse what cannot be tiled.

        Args:
            training: whether ZCH tables and those of raw ids learn from what is looked up.

        Raises:
            ConfigError: features without a side; names them all.
            DataError: in training, tables that learn their ids (ZCH, or of raw ids) and that the user side reads: they would count a user's ids
            once, and not once for each row.
        """
        unknown = [name for name, feature in self._read.items() if feature.data_group == BASE_DATA_GROUP and feature.side is None]
        if unknown:
            raise ConfigError(
                [f"feature {name!r} has no side, which a tiled batch needs; write its expression as user:column or item:column" for name in unknown]
            )
        if training and self._counting:
            raise DataError(
                f"a tiled batch would have tables that learn their ids, {', '.join(self._counting)}, count a user's once, and not once for each "
                "row; use eval mode, or untile_batch"
            )

    def check_placed(self, user: Sequence[str], rows: Sequence[str]) -> None:
        """Refuse features on the wrong side.

        Args:
            user: the names of those on the user's side.
            rows: of those that came with the rows.

        Raises:
            DataError: names the first that is wrong, and where it belongs.
        """
        for name in user:
            if name in self._known and not is_user_side(self._known[name]):
                raise DataError(f"feature {name!r} is not the user's and must come with the rows of the batch, but is on the user side of its tile")
        for name in rows:
            if name in self._known and is_user_side(self._known[name]):
                raise DataError(f"feature {name!r} is the user's and must come on the user side of the batch's tile, but came with the rows")

    def _is_user(self, name: str) -> bool:
        return is_user_side(self._read[name])

    @staticmethod
    def _side(registry: TableRegistry, dense: Sequence[Feature], belongs: Callable[[str], bool]) -> SideColumns:
        return SideColumns(
            lookups=tuple(lookup for lookup in registry.lookups if belongs(lookup.feature)),
            sequence_lookups=tuple(lookup for lookup in registry.sequence_lookups if belongs(lookup.feature)),
            dense=tuple(feature for feature in dense if belongs(feature.name)),
        )
