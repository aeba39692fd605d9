"""How the tensors of groups are put together from features: plain data.

Letters: B rows, L steps of the longest row, N steps of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberline.schema import GroupKind, GroupSpec, StreamSpec

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


def find_streams(groups: Sequence[SequenceColumns]) -> tuple[StreamSpec, ...]:
    """The sequences that some group keeps the steps of; those that stand side by side anywhere have equally many in each row, and are one stream."""
    found: list[StreamSpec] = []
    for group in groups:
        names = group.sequence.features
        if not names:
            continue
        joined = [stream for stream in found if not set(stream.features).isdisjoint(names)]
        place = found.index(joined[0]) if joined else len(found)
        features = dict.fromkeys([*(name for stream in joined for name in stream.features), *names])
        one = StreamSpec(features=tuple(features), padded=not group.is_jagged or any(stream.padded for stream in joined))
        found = [*found[:place], one, *(stream for stream in found[place:] if stream not in joined)]
    return tuple(found)


def sequence_specs(group: SequenceColumns, streams: Sequence[StreamSpec]) -> list[GroupSpec]:
    """A sequence group's tensors as serving knows them, as far as it has them."""
    specs = [GroupSpec(name=f"{group.name}.{QUERY}", kind=group.kind, dim=group.query.dim)] if group.query.features else []
    if group.stream is not None:
        stream = next(stream.name for stream in streams if group.stream in stream.features)
        specs.append(GroupSpec(name=f"{group.name}.{SEQUENCE}", kind=group.kind, dim=group.sequence.dim, stream=stream))
        specs.append(GroupSpec(name=f"{group.name}.{SEQUENCE_LENGTH}", kind=group.kind, dim=0, stream=stream))
    return specs
