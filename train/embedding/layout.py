"""From looked-up vectors and numbers to the groups' tensors: plain tensor code, without tables and without a look at any value.

Letters: B rows, L steps of the longest row, N steps of all rows, d width of a part.

    N steps, lengths 2 0 1        padded, L = 2
    [s0 s1 s2]                    [[s0 s1] [0 0] [s2 0]]
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from emberline.train.embedding.columns import QUERY, SEQUENCE, SEQUENCE_LENGTH, GroupColumns, SequenceColumns
from emberline.train.embedding.dense import DenseEmbeddingCollection
from emberline.train.embedding.spread import UNTILED, Spread, is_traced, side_by_side
from emberline.train.features import Feature


class SequenceParts(NamedTuple):
    """The steps of sequences, as looked up.

    Args:
        values: steps [N, d] float32: vectors by the key of their lookup, numbers by the name of their feature.
        lengths: steps of each row [B], by the feature whose number of steps a group has (`SequenceColumns.stream`); of a group with features
            of both sides, by the first of each.
        positions: 0, 1, ... L - 1, int64 [L], by the same; L is at least the most steps of a row. Only where some group is padded.
    """

    values: dict[str, Tensor]
    lengths: dict[str, Tensor]
    positions: dict[str, Tensor]


class EmbeddingGroupImpl(nn.Module):
    """The DEEP and WIDE groups of one data group, and the dense embeddings of all its features that are no sequences.

    Args:
        groups: how each group is put together.
        features: every feature, by name.
        queries: names of dense features that only queries of sequence groups read.
        device: where the dense embeddings live.
    """

    def __init__(
        self,
        groups: Sequence[GroupColumns],
        features: Mapping[str, Feature],
        device: torch.device | None = None,
        queries: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.groups = tuple(groups)
        names = dict.fromkeys([*(name for group in groups for name in group.dense_features), *queries])
        self.dense_names = tuple(names)
        embedded = [features[name] for name in names if features[name].dense_embedding is not None]
        self.dense_ec = DenseEmbeddingCollection(embedded, device) if embedded else None

    def embed(self, dense: Mapping[str, Tensor], spread: Spread = UNTILED) -> dict[str, Tensor]:
        """Each dense feature's numbers [B, value_dim] by name -> what groups get of it [B, d]; of a user's feature once for each user."""
        if self.dense_ec is None:
            return {name: dense[name] for name in self.dense_names}
        result = {}
        for per_user in (True, False):
            numbers = {name: dense[name] for name in self.dense_names if (name in spread.user_keys) == per_user}
            if numbers:
                result.update(self.dense_ec(numbers))
        return result

    def forward(self, pooled: Mapping[str, Tensor], numbers: Mapping[str, Tensor], spread: Spread = UNTILED) -> dict[str, Tensor]:
        """Put the groups together.

        Args:
            pooled: each lookup's vectors [B, d] by key.
            numbers: from `embed`.
            spread: how users reach their rows.

        Returns:
            each group's tensor [B, width], its features side by side in the order of its config; groups without features of their own are left
            out. A group of nothing but user's features has U rows, one a user.
        """
        vectors = {**numbers, **pooled}
        return {group.name: spread.join(spread.parts(group, vectors)) for group in self.groups if group.features}


class SequenceEmbeddingGroupImpl(nn.Module):
    """The SEQUENCE and JAGGED_SEQUENCE groups of one data group, nested ones included, and the dense embeddings of their steps.

    Args:
        groups: how each group is put together.
        features: every feature, by name.
        device: where the dense embeddings live.
    """

    def __init__(self, groups: Sequence[SequenceColumns], features: Mapping[str, Feature], device: torch.device | None = None) -> None:
        super().__init__()
        self.groups = tuple(groups)
        names = dict.fromkeys(name for group in groups for name in group.sequence.dense_features)
        embedded = [features[name] for name in names if features[name].dense_embedding is not None]
        # One for each feature: sequences have different numbers of steps. A prefix keeps names apart from nn.ModuleDict's own.
        self.dense_ecs = nn.ModuleDict({f"steps_{feature.name}": DenseEmbeddingCollection([feature], device) for feature in embedded})

    def forward(
        self, pooled: Mapping[str, Tensor], numbers: Mapping[str, Tensor], parts: SequenceParts, spread: Spread = UNTILED
    ) -> dict[str, Tensor]:
        """Put the groups together.

        Args:
            pooled: each pooled lookup's vectors [B, d] by key.
            numbers: what groups get of each dense feature that is no sequence, [B, d] by name.
            parts: the steps.
            spread: how users reach their rows.

        Returns:
            `G.query` [B, Dq], `G.sequence` [B, L, Ds] (JAGGED_SEQUENCE: [N, Ds]) and `G.sequence_length` [B] of each group, as far as it has
            them. A query or a padded sequence of nothing but user's features has U rows, one a user; so has the length where its stream is one.
        """
        steps = dict(parts.values)
        for collection in self.dense_ecs.values():
            steps = collection(steps)
        vectors = {**numbers, **pooled}
        result = {}
        for group in self.groups:
            if group.query.features:
                result[f"{group.name}.{QUERY}"] = spread.join(spread.parts(group.query, vectors))
            if group.stream is not None:
                find = _jagged if group.is_jagged else _padded
                result[f"{group.name}.{SEQUENCE}"] = find(group, steps, parts, spread)
                result[f"{group.name}.{SEQUENCE_LENGTH}"] = parts.lengths[group.stream]
        return result


def _jagged(group: SequenceColumns, steps: Mapping[str, Tensor], parts: SequenceParts, spread: Spread) -> Tensor:
    """A group's steps [N, Ds] of all rows."""
    found = []
    for run in spread.runs(group.sequence):
        values = side_by_side([steps[key] for key in run.keys])
        found.append(values.index_select(0, spread.places[run.stream]) if run.per_user else values)
    return side_by_side(found)


def _padded(group: SequenceColumns, steps: Mapping[str, Tensor], parts: SequenceParts, spread: Spread) -> Tensor:
    """A group's steps [B, L, Ds], or [U, L, Ds] where all are of users."""
    assert group.stream is not None
    positions, found = parts.positions[group.stream], []
    for run in spread.runs(group.sequence):
        values, lengths = side_by_side([steps[key] for key in run.keys]), parts.lengths[run.stream]
        found.append((pad(values, lengths, positions), run.per_user))
    return spread.join(found, rank=3)


def pad(values: Tensor, lengths: Tensor, positions: Tensor) -> Tensor:
    """Steps [N, d] -> [B, L, d], rows filled up with zeros. Programs get plain tensor code, which takes longer."""
    if not is_traced(values):
        starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        return torch.ops.fbgemm.jagged_to_padded_dense(values, [starts], [positions.shape[0]])  # type: ignore[no-any-return]
    lengths = lengths.long().unsqueeze(1)
    places = lengths.cumsum(0) - lengths + positions + 1
    # Row 0 is zeros: it stands for steps that are not there, and a batch without any step has a row to read.
    with_zeros = torch.nn.functional.pad(values, (0, 0, 1, 0))
    return torch.nn.functional.embedding(torch.where(positions < lengths, places, torch.zeros_like(places)), with_zeros)
