"""From looked-up vectors and numbers to the groups' tensors: plain tensor code, without tables and without a look at any value.

Letters: B rows, L steps of the longest row, N steps of all rows, d width of a part.

    N steps, lengths 2 0 1        padded, L = 2
    [s0 s1 s2]                    [[s0 s1] [0 0] [s2 0]]
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from emberline.train.embedding.columns import QUERY, SEQUENCE, SEQUENCE_LENGTH, Columns, GroupColumns, SequenceColumns
from emberline.train.embedding.dense import DenseEmbeddingCollection
from emberline.train.features import Feature


class SequenceParts(NamedTuple):
    """The steps of sequences, as looked up.

    Args:
        values: steps [N, d] float32: vectors by the key of their lookup, numbers by the name of their feature.
        lengths: steps of each row [B], by the feature whose number of steps a group has (`SequenceColumns.stream`).
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

    def embed(self, dense: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each dense feature's numbers [B, value_dim] by name -> what groups get of it [B, d]."""
        numbers = {name: dense[name] for name in self.dense_names}
        return numbers if self.dense_ec is None else self.dense_ec(numbers)

    def forward(self, pooled: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Put the groups together.

        Args:
            pooled: each lookup's vectors [B, d] by key.
            numbers: from `embed`.

        Returns:
            each group's tensor [B, width], its features side by side in the order of its config; groups without features of their own are left out.
        """
        return {group.name: side_by_side(group, {**numbers, **pooled}) for group in self.groups if group.features}


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

    def forward(self, pooled: Mapping[str, Tensor], numbers: Mapping[str, Tensor], parts: SequenceParts) -> dict[str, Tensor]:
        """Put the groups together.

        Args:
            pooled: each pooled lookup's vectors [B, d] by key.
            numbers: what groups get of each dense feature that is no sequence, [B, d] by name.
            parts: the steps.

        Returns:
            `G.query` [B, Dq], `G.sequence` [B, L, Ds] (JAGGED_SEQUENCE: [N, Ds]) and `G.sequence_length` [B] of each group, as far as it has them.
        """
        steps = dict(parts.values)
        for collection in self.dense_ecs.values():
            steps = collection(steps)
        places: dict[str, Tensor] = {}
        result = {}
        for group in self.groups:
            if group.query.features:
                result[f"{group.name}.{QUERY}"] = side_by_side(group.query, {**numbers, **pooled})
            stream = group.stream
            if stream is None:
                continue
            values, lengths = side_by_side(group.sequence, steps), parts.lengths[stream]
            if not group.is_jagged:
                positions = parts.positions[stream]
                if stream not in places:
                    places[stream] = padded_places(lengths, positions, values.shape[0])
                values = pad(values, places[stream], lengths, positions)
            result[f"{group.name}.{SEQUENCE}"] = values
            result[f"{group.name}.{SEQUENCE_LENGTH}"] = lengths
        return result


def side_by_side(columns: Columns, parts: Mapping[str, Tensor]) -> Tensor:
    """The features' parts, [B, d] or [N, d] each, in one tensor."""
    found = [parts[key] for key in columns.keys]
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


def padded_places(lengths: Tensor, positions: Tensor, num_steps: int) -> Tensor:
    """Where each step goes in a padded sequence seen as [B * L], int64 [N]."""
    lengths = lengths.long()
    rows = torch.repeat_interleave(lengths, output_size=num_steps)
    starts = lengths.cumsum(0) - lengths
    return torch.arange(num_steps, device=rows.device) - starts[rows] + rows * positions.shape[0]


def pad(values: Tensor, places: Tensor, lengths: Tensor, positions: Tensor) -> Tensor:
    """Steps [N, d] -> [B, L, d], rows filled up with zeros."""
    rows, width = lengths.shape[0], values.shape[1]
    flat = values.new_zeros(rows * positions.shape[0], width).index_copy_(0, places, values)  # not in place, it copies the zeros first
    return flat.view(rows, positions.shape[0], width)
