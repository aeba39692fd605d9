"""The tensors of one data group's groups from what was looked up: layouts, then encoders, then users' parts to their rows.

Letters: B rows, U users.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from emberline.train.embedding.columns import QUERY, SEQUENCE, SEQUENCE_LENGTH, GroupColumns
from emberline.train.embedding.layout import EmbeddingGroupImpl, SequenceEmbeddingGroupImpl, SequenceParts
from emberline.train.embedding.spread import UNTILED, Spread
from emberline.train.encoders import reads_query


class Modules(NamedTuple):
    """The modules of one data group.

    Args:
        groups: its DEEP and WIDE groups.
        sequence_groups: its other groups, nested ones included; None where there are none.
        encoders: those of each DEEP group that has some, by its name, in order.
    """

    groups: EmbeddingGroupImpl
    sequence_groups: SequenceEmbeddingGroupImpl | None
    encoders: Mapping[str, Sequence[nn.Module]]


def assemble_groups(
    modules: Modules, vectors: Mapping[str, Tensor], numbers: Mapping[str, Tensor], parts: SequenceParts, spread: Spread = UNTILED
) -> dict[str, Tensor]:
    """From looked-up vectors and numbers to group tensors.

    Args:
        modules: what the data group has.
        vectors: each pooled lookup's vectors [B, d] by key; a user's [U, d].
        numbers: each dense feature's numbers [B, value_dim] by name; a user's [U, value_dim].
        parts: the steps.
        spread: which of these are users', and whose each row is.

    Returns:
        what `EmbeddingGroup.forward` returns of these groups.
    """
    embedded = modules.groups.embed(numbers, spread)
    found = modules.groups(vectors, embedded, spread)
    if modules.sequence_groups is not None:
        found.update(modules.sequence_groups(vectors, embedded, parts, spread))
    outputs = _Outputs(found, _per_user(modules, spread), spread)
    for group in modules.groups.groups:
        if group.encoders:
            _encode(group, modules.encoders[group.name], outputs, spread)
    return {key: outputs.in_rows(key) for key in outputs.own}


class _Outputs:
    """Group tensors as they were made, and, when they are asked for, in rows.

    Args:
        own: by key.
        per_user: which of them have U rows.
        spread: how they come to have B.
    """

    def __init__(self, own: dict[str, Tensor], per_user: set[str], spread: Spread) -> None:
        self.own = own
        self.per_user = per_user
        self._spread = spread
        self._in_rows: dict[str, Tensor] = {}

    def in_rows(self, key: str) -> Tensor:
        """[B, ...]."""
        if key not in self.per_user:
            return self.own[key]
        if key not in self._in_rows:
            part = key.rpartition(".")[2] if "." in key else ""
            rank = {SEQUENCE: 3, SEQUENCE_LENGTH: 1}.get(part, 2)
            self._in_rows[key] = self._spread.in_rows(self.own[key], rank)
        return self._in_rows[key]


def _per_user(modules: Modules, spread: Spread) -> set[str]:
    """Keys of the layouts' tensors that have U rows."""
    found = {group.name for group in modules.groups.groups if group.features and spread.is_per_user(group)}
    for group in modules.sequence_groups.groups if modules.sequence_groups is not None else ():
        if group.query.features and spread.is_per_user(group.query):
            found.add(f"{group.name}.{QUERY}")
        if group.stream is not None and group.sequence.keys[0] in spread.user_keys:
            found.add(f"{group.name}.{SEQUENCE_LENGTH}")
            if spread.is_per_user(group.sequence) and not group.is_jagged:
                found.add(f"{group.name}.{SEQUENCE}")
    return found


def _encode(group: GroupColumns, encoders: Sequence[nn.Module], outputs: _Outputs, spread: Spread) -> None:
    """Add the outputs of its encoders to a DEEP group's tensor. An encoder of nothing but user's features runs once for each user."""
    parts = [(outputs.own[group.name], group.name in outputs.per_user)] if group.features else []
    for config, encoder in zip(group.encoders, encoders, strict=True):
        keys = [f"{config.input}.{part}" for part in (QUERY, SEQUENCE, SEQUENCE_LENGTH)]
        read = [key for key in keys[not reads_query(config) :] if key in outputs.own]
        once = all(key in outputs.per_user for key in read) and not _looks_across_rows(encoder)
        get = outputs.own.get if once else lambda key: outputs.in_rows(key) if key in outputs.own else None
        parts.append((encoder(*(get(key) for key in keys)), once))
    outputs.own[group.name] = spread.join(parts)
    if all(per_user for _, per_user in parts):
        outputs.per_user.add(group.name)
    else:
        outputs.per_user.discard(group.name)


def _looks_across_rows(encoder: nn.Module) -> bool:
    """Whether its answer to a row depends on how often others are there: batch normalisation does in training."""
    return encoder.training and any(isinstance(module, nn.BatchNorm1d) for module in encoder.modules())
