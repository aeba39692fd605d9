"""What groups must give, in float64 loops over the tables."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from emberline.schema import GroupKind, Pooling
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import DinEncoderConfig, EncoderConfig, PoolingEncoderConfig, SimpleAttentionConfig
from emberline.train.features import Feature
from emberline.train.zch import zch_modules


class Lists(Protocol):
    """A batch as lists, by feature."""

    @property
    def ids(self) -> Mapping[str, Sequence[Sequence[int]]]:
        """Ids of each row; of a sequence, one a step."""

    @property
    def multi(self) -> Mapping[str, Sequence[Sequence[Sequence[int]]]]:
        """Ids of each step of each row."""

    @property
    def numbers(self) -> Mapping[str, Sequence[Sequence[Sequence[float]]]]:
        """Numbers of each step of each row."""

    @property
    def dense(self) -> Mapping[str, Sequence[Sequence[float]]]:
        """Numbers of each row."""


class ByHand:
    """What groups must give, worked out bag by bag and step by step in float64.

    Args:
        group: for the tables and the encoders' weights.
        groups: its config.
        rows: the batch.
    """

    def __init__(self, group: EmbeddingGroup, groups: Sequence[FeatureGroupConfig], rows: Lists) -> None:
        self.features = {feature.name: feature for feature in group.features}
        self.tables = {name: weight.detach().double() for name, weight in group.table_weights().items()}
        self.encoders = group.encoders_by_group()
        self.groups = groups
        self.rows = rows
        self.row_of = {}
        maps: dict[str, Any] = dict(zch_modules(group))
        for table, module in maps.items():
            owners = module.get_buffer("_mch_sorted_raw_ids").tolist(), module.get_buffer("_mch_remapped_ids_mapping").tolist()
            self.row_of[table] = dict(zip(*owners, strict=True))

    def results(self) -> dict[str, Tensor]:
        """Every group's tensors by key."""
        found: dict[str, Tensor] = {}
        for group in self.groups:
            suffix = group.embedding_name_suffix
            if group.is_sequence:
                found.update(self._sequence(group.group_name, group.feature_names, suffix, jagged=group.group_type is GroupKind.JAGGED_SEQUENCE))
                continue
            for nested in group.sequence_groups:
                name = nested.group_name or group.group_name
                own = suffix if nested.embedding_name_suffix is None else nested.embedding_name_suffix
                found.update(self._sequence(name, nested.feature_names, own))
            wide = "_wide" if group.group_type is GroupKind.WIDE else ""
            parts = [self._row_vectors(name, f"{wide}_{suffix}" if suffix else wide) for name in group.feature_names]
            parts += [self._encoded(group, place, config, found) for place, config in enumerate(group.sequence_encoders)]
            found[group.group_name] = torch.cat(parts, dim=1)
        return found

    def _sequence(self, name: str, names: Sequence[str], suffix: str, *, jagged: bool = False) -> dict[str, Tensor]:
        ending = f"_{suffix}" if suffix else ""
        query = [self._row_vectors(one, ending) for one in names if not self.features[one].is_sequence]
        steps = [self._step_vectors(one, ending) for one in names if self.features[one].is_sequence]
        found = {f"{name}.query": torch.cat(query, dim=1)} if query else {}
        if not steps:
            return found
        lengths = [len(row) for row in steps[0]]
        rows = [torch.cat([one[row] for one in steps], dim=1) for row in range(len(lengths))]
        found[f"{name}.sequence"] = torch.cat(rows) if jagged else nn.utils.rnn.pad_sequence(rows, batch_first=True)
        found[f"{name}.sequence_length"] = torch.tensor(lengths)
        return found

    def _row_vectors(self, name: str, ending: str) -> Tensor:
        """[B, d]: a row's bag pooled, or its numbers."""
        feature = self.features[name]
        if not feature.is_sparse:
            return torch.tensor(self.rows.dense[name], dtype=torch.float64)
        return torch.stack([self._pooled(feature, ending, bag) for bag in self.rows.ids[name]])

    def _step_vectors(self, name: str, ending: str) -> list[Tensor]:
        """For each row, its steps [n, d]."""
        feature = self.features[name]
        if not feature.is_sparse:
            return [torch.tensor(row, dtype=torch.float64).view(-1, feature.value_dim) for row in self.rows.numbers[name]]
        steps = self.rows.multi.get(name) or [[[one] for one in row] for row in self.rows.ids[name]]
        empty = torch.zeros(0, feature.embedding_dim, dtype=torch.float64)
        return [torch.stack([self._pooled(feature, ending, step) for step in row]) if row else empty for row in steps]

    def _pooled(self, feature: Feature, ending: str, bag: Sequence[int]) -> Tensor:
        table = self.tables[feature.embedding_name + ending]
        total = torch.zeros(table.shape[1], dtype=torch.float64)
        for one in bag:
            rows = self.row_of.get(feature.embedding_name + ending)
            total += table[one if rows is None else rows.get(one, table.shape[0] - 1)]
        return total / max(len(bag), 1) if feature.pooling is Pooling.MEAN else total

    def _encoded(self, group: FeatureGroupConfig, place: int, config: EncoderConfig, found: Mapping[str, Tensor]) -> Tensor:
        source = config.input or group.sequence_groups[0].group_name or group.group_name
        encoder = deepcopy(self.encoders[group.group_name][place]).double()
        query, padded = found.get(f"{source}.query"), found[f"{source}.sequence"]
        rows = []
        for row, length in enumerate(found[f"{source}.sequence_length"].tolist()):
            steps = list(padded[row, :length])
            total = torch.zeros(padded.shape[2], dtype=torch.float64)
            if isinstance(config, PoolingEncoderConfig):
                rows.append(sum(steps, total) / (max(length, 1) if config.pooling_type == "mean" else 1))
                continue
            assert query is not None
            scores = _scores(config, encoder, query[row], steps)
            rows.append(sum((weight * step for weight, step in zip(scores, steps, strict=True)), total))
        return torch.stack(rows)


def _scores(config: EncoderConfig, encoder: Any, query: Tensor, steps: Sequence[Tensor]) -> Tensor | list[Tensor]:
    """Each step's share."""
    if not steps:
        return []
    if isinstance(config, SimpleAttentionConfig):
        return torch.stack([query @ step for step in steps]).softmax(0)
    assert isinstance(config, DinEncoderConfig)
    wide = torch.cat([query, query.new_zeros(len(steps[0]) - len(query))])
    parts = torch.stack([torch.cat([wide, step, wide - step, wide * step]) for step in steps])
    with torch.no_grad():
        scores: Tensor = encoder.attention.linear(encoder.attention.mlp(parts)).squeeze(1)
    return scores.softmax(0)
