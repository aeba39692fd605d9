"""How the tensors of groups are put together from features: plain data.

Letters: B rows, L steps of the longest row, N steps of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberline.schema import GroupKind, GroupSpec

if TYPE_CHECKING:
    from emberline.train.encoders.configs import EncoderConfig

QUERY, SEQUENCE, SEQUENCE_LENGTH = "query", "sequence", "sequence_length"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Features side by side in one tensor.

    Args:
        features: their names, in order.
        lookups: for each feature the key of the lookup that feeds it, or None for a dense feature.
        dims: the width of each feature's part.
    """

    features: tuple[str, ...]
    lookups: tuple[str | None, ...]
    dims: tuple[int, ...]

    @property
    def dim(self) -> int:
        """The tensor's width."""
        return sum(self.dims)

    @property
    def keys(self) -> tuple[str, ...]:
        """What each part is found under: the lookup's key, or the dense feature's name."""
        return tuple(name if key is None else key for name, key in zip(self.features, self.lookups, strict=True))

    @property
    def dense_features(self) -> tuple[str, ...]:
        """Names of the features that read no table, in order."""
        return tuple(name for name, key in zip(self.features, self.lookups, strict=True) if key is None)


@dataclass(frozen=True, kw_only=True)
class GroupColumns(Columns):
    """A DEEP or WIDE group: one tensor [B, dim], to which the outputs of its encoders are added.

    Args:
        name: the group's.
        kind: DEEP or WIDE.
        data_group: of all its features.
        encoders: from its sequence groups to vectors, in order.
    """

    name: str
    kind: GroupKind
    data_group: str
    encoders: "tuple[EncoderConfig, ...]" = ()


@dataclass(frozen=True, kw_only=True)
class SequenceColumns:
    """A SEQUENCE or JAGGED_SEQUENCE group, or one nested in a DEEP group: query [B, dim], sequence [B, L, dim] or [N, dim], length [B].

    Args:
        name: the group's; its tensors' keys begin with it.
        kind: SEQUENCE or JAGGED_SEQUENCE.
        data_group: of all its features.
        parent: the DEEP group that it is nested in, or empty.
        features: all their names, in order.
        dims: the width of each feature's part, in that order.
        query: the features without steps.
        sequence: the features with steps.
    """

    name: str
    kind: GroupKind
    data_group: str
    parent: str
    features: tuple[str, ...]
    dims: tuple[int, ...]
    query: Columns
    sequence: Columns

    @property
    def is_jagged(self) -> bool:
        """Whether the sequence is left without padding."""
        return self.kind is GroupKind.JAGGED_SEQUENCE

    @property
    def stream(self) -> str | None:
        """The feature whose number of steps is the group's: its first with steps."""
        return self.sequence.features[0] if self.sequence.features else None

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The keys that `forward` returns for it: no query without query features, no sequence without sequence features."""
        parts = [QUERY] * bool(self.query.features) + [SEQUENCE, SEQUENCE_LENGTH] * bool(self.sequence.features)
        return tuple(f"{self.name}.{part}" for part in parts)

    @property
    def specs(self) -> tuple[GroupSpec, ...]:
        """Its query and its sequence, as far as it has them, as serving knows them."""
        parts: Sequence[tuple[str, Columns]] = ((QUERY, self.query), (SEQUENCE, self.sequence))
        return tuple(GroupSpec(name=f"{self.name}.{part}", kind=self.kind, dim=columns.dim) for part, columns in parts if columns.features)
