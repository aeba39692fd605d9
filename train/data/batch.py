"""One batch, as the model takes it.

    KeyedJaggedTensor of 2 features, 3 rows            values   7 8 9 | 4 5       feature after feature, row after row
                 row 0   row 1   row 2                 lengths  2 0 1 | 0 1 1
    feature f    [7 8]   []      [9]
    feature g    []      [4]     [5]

A sequence is a feature like any other there, a row being all ids of its steps. Where steps have any number of ids, their sizes are kept besides:

                 row 0        row 1     row 2           ids       7 8 9 | ... lengths  2 0 1 | ...
    sequence s   [[7 8] []]   []        [[9]]           sizes     2 0 1 | ... lengths  2 0 1 | ...

Letters used in shapes: B rows, N ids, S steps, D summed width.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from torchrec.streamable import Pipelineable

from emberline.encoding import DenseSteps, EncodedColumns
from emberline.encoding.selection import join_columns, only_features
from emberline.errors import DataError
from emberline.train.features import Feature
from emberline.train.features.feature import BASE_DATA_GROUP

_MOST_IDS = 2**31 - 1
Part = TypeVar("Part", Tensor, JaggedTensor, KeyedJaggedTensor, KeyedTensor)


@dataclass(frozen=True)
class Batch(Pipelineable):  # type: ignore[misc]
    """B rows of training or request data. Data groups are named `__BASE__`, `__NEG__`, `__CNEG__`. TorchRec's pipelines can take it along.

    Args:
        sparse_features: data group -> ids of all its sparse features: int64 values, int32 lengths, float32 weights where a feature is weighted.
        dense_features: data group -> float32 [B, D] of all its dense features.
        sequence_dense_features: feature -> float32 steps [S, value_dim] of a dense sequence, and the steps of each row.
        sequence_mulval_lengths: data group -> ids of each step (int32 values) and steps of each row (int32 lengths) of sequences whose steps
            have any number of ids. A sequence that is not in it has one id a step.
        labels: column -> [B]: int64 where the column holds whole numbers or booleans, else float32.
        sample_weights: float32 [B], or None.
        tile: users that have several of the rows each; their features are there, U times, and not here. None where all features have B rows.
        checked: from `marked`; `to` keeps it, any other way to a new batch loses it.
    """

    sparse_features: dict[str, KeyedJaggedTensor] = field(default_factory=dict)
    dense_features: dict[str, KeyedTensor] = field(default_factory=dict)
    sequence_dense_features: dict[str, JaggedTensor] = field(default_factory=dict)
    sequence_mulval_lengths: dict[str, KeyedJaggedTensor] = field(default_factory=dict)
    labels: dict[str, Tensor] = field(default_factory=dict)
    sample_weights: Tensor | None = None
    tile: "Tile | None" = None
    checked: "Checked | None" = field(default=None, init=False, repr=False, compare=False)

    @property
    def num_rows(self) -> int:
        """B: of the tile or the labels where there are any, else of the first data group."""
        if self.tile is not None:
            return self.tile.rows.numel()
        for tensor in [*self.labels.values(), *(dense.values() for dense in self.dense_features.values())]:
            return len(tensor)
        for sparse in self.sparse_features.values():
            stride: int = sparse.stride()
            return stride
        for steps in self.sequence_dense_features.values():
            return len(steps.lengths())
        return 0 if self.sample_weights is None else len(self.sample_weights)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same batch on another device; `non_blocking`: as torch's, what is copied may not be there yet."""

        def move(parts: Mapping[str, Part]) -> dict[str, Part]:
            return {key: part.to(place, non_blocking=non_blocking) for key, part in parts.items()}

        place = torch.device(device)
        moved = replace(
            self,
            sparse_features=move(self.sparse_features),
            dense_features=move(self.dense_features),
            sequence_dense_features=move(self.sequence_dense_features),
            sequence_mulval_lengths=move(self.sequence_mulval_lengths),
            labels=move(self.labels),
            sample_weights=None if self.sample_weights is None else self.sample_weights.to(place, non_blocking=non_blocking),
            tile=None if self.tile is None else self.tile.to(place, non_blocking=non_blocking),
        )
        return moved if self.checked is None else moved.marked(self.checked.to(place, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell CUDA's allocator that a stream reads this batch, so that its memory is not given away before."""
        named = (self.sparse_features, self.dense_features, self.sequence_dense_features, self.sequence_mulval_lengths, self.labels)
        alone = (self.sample_weights, self.tile, self.checked)
        for part in (*itertools.chain.from_iterable(parts.values() for parts in named), *alone):
            if part is not None:
                part.record_stream(stream)

    def marked(self, checked: "Checked") -> Self:
        """The same batch, found right; nothing in it may be changed in place from here on."""
        found = replace(self)
        object.__setattr__(found, "checked", checked)
        return found


@dataclass(frozen=True)
class Checked:
    """What a model found when it checked a batch.

    Args:
        by: whose check it was; others must not rely on it.
        longest: steps of the longest row of sequences that will be padded, by feature.
        asked: what each collection of tables is asked for, by its name.
    """

    by: object
    longest: Mapping[str, int]
    asked: Mapping[str, "Asked"] = field(default_factory=dict, compare=False, repr=False)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same findings on another device."""
        return replace(self, asked={name: asked.to(device, non_blocking=non_blocking) for name, asked in self.asked.items()})

    def record_stream(self, stream: torch.Stream) -> None:
        """See `Batch.record_stream`."""
        for asked in self.asked.values():
            asked.record_stream(stream)


@dataclass(frozen=True)
class Asked:
    """What one collection of tables is asked for.

    Args:
        ids: the bags, by the collection's own keys, with weights where the collection applies them.
        weights: float32 [N], of ids whose vectors are weighted afterwards; None where they aren't.
    """

    ids: KeyedJaggedTensor
    weights: Tensor | None = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same bags on another device."""
        weights = None if self.weights is None else self.weights.to(device, non_blocking=non_blocking)
        return replace(self, ids=self.ids.to(torch.device(device), non_blocking=non_blocking), weights=weights)

    def record_stream(self, stream: torch.Stream) -> None:
        """See `Batch.record_stream`."""
        self.ids.record_stream(stream)
        if self.weights is not None:
            self.weights.record_stream(stream)


@dataclass(frozen=True)
class Tile:
    """The users of a tiled batch.

    Args:
        user: the features of U users, in the data group `__BASE__`; without labels, weights and a tile of its own.
        rows: int64 [B], which of the U users each row of the batch belongs to.
    """

    user: Batch
    rows: Tensor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same users on another device."""
        return replace(self, user=self.user.to(device, non_blocking=non_blocking), rows=self.rows.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        """See `Batch.record_stream`."""
        self.user.record_stream(stream)
        self.rows.record_stream(stream)


def batch_from_encoded(
    features: Sequence[Feature],
    encoded: EncodedColumns,
    labels: Mapping[str, npt.NDArray[np.generic]] | None = None,
    sample_weights: npt.NDArray[np.float32] | None = None,
    negatives: EncodedColumns | None = None,
) -> Batch:
    """Lay encoded columns out as a batch: one concatenation for each data group.

    Unweighted features in a data group with weighted ones get weight 1.

    Args:
        features: those that were encoded; their order is the order of keys.
        encoded: from `emberline.encoding.encode`.
        labels: column -> [B].
        sample_weights: float32 [B].
        negatives: those of the features in data groups of their own, [B * K] rows, or S that all rows share; they follow the group's B rows.

    Raises:
        DataError: more ids in one data group than int32 can count.
    """
    groups = list(dict.fromkeys(feature.data_group for feature in features))
    sparse, dense, multi_sizes, dense_sequences = {}, {}, {}, {}
    for group in groups:
        own = [feature for feature in features if feature.data_group == group]
        columns = encoded
        if negatives is not None and group != BASE_DATA_GROUP:
            names = {feature.name for feature in own}
            columns = join_columns([only_features(encoded, names), only_features(negatives, names)])
        sparse_features = [feature for feature in own if feature.is_sparse]
        dense_features = [feature for feature in own if not feature.is_sparse and not feature.is_sequence]
        if sparse_features:
            sparse[group] = _keyed_jagged(sparse_features, columns)
        if multi := [feature for feature in sparse_features if _has_sizes(feature, columns)]:
            multi_sizes[group] = _step_sizes(multi, columns)
        if dense_features:
            keys = [feature.name for feature in dense_features]
            values = np.concatenate([columns.dense[name] for name in keys], axis=1)
            sizes = [columns.dense[name].shape[1] for name in keys]
            dense[group] = KeyedTensor(keys=keys, length_per_key=sizes, values=torch.from_numpy(values))
        dense_sequences.update({name: _dense_steps(columns.dense_sequences[name]) for name in _dense_sequences(own)})
    return Batch(
        sparse_features=sparse,
        dense_features=dense,
        sequence_dense_features=dense_sequences,
        sequence_mulval_lengths=multi_sizes,
        labels={name: torch.from_numpy(np.ascontiguousarray(label)) for name, label in (labels or {}).items()},
        sample_weights=None if sample_weights is None else torch.from_numpy(np.ascontiguousarray(sample_weights, dtype=np.float32)),
    )


def _keyed_jagged(features: Sequence[Feature], encoded: EncodedColumns) -> KeyedJaggedTensor:
    bags = [encoded.sparse_sequences[feature.name].bags() if feature.is_sequence else encoded.sparse[feature.name] for feature in features]
    total = sum(bag.values.size for bag in bags)
    check_total_ids(total)
    weights = None
    if any(feature.is_weighted for feature in features):
        weights = torch.from_numpy(np.concatenate([np.ones(bag.values.size, np.float32) if bag.weights is None else bag.weights for bag in bags]))
    return KeyedJaggedTensor(
        keys=[feature.name for feature in features],
        values=torch.from_numpy(np.concatenate([bag.values for bag in bags])),
        lengths=torch.from_numpy(np.concatenate([bag.lengths for bag in bags])),
        weights=weights,
        stride=encoded.num_rows,
    )


def _has_sizes(feature: Feature, encoded: EncodedColumns) -> bool:
    """Whether a step's number of ids must be told: it may be any, or a step of one id has none."""
    if not feature.is_sequence:
        return False
    return feature.value_dim != 1 or bool((encoded.sparse_sequences[feature.name].step_lengths != 1).any())


def _step_sizes(features: Sequence[Feature], encoded: EncodedColumns) -> KeyedJaggedTensor:
    steps = [encoded.sparse_sequences[feature.name] for feature in features]
    return KeyedJaggedTensor(
        keys=[feature.name for feature in features],
        values=torch.from_numpy(np.concatenate([one.step_lengths for one in steps])),
        lengths=torch.from_numpy(np.concatenate([one.lengths for one in steps])),
        stride=encoded.num_rows,
    )


def _dense_sequences(features: Sequence[Feature]) -> list[str]:
    return [feature.name for feature in features if feature.is_sequence and not feature.is_sparse]


def _dense_steps(steps: DenseSteps) -> JaggedTensor:
    return JaggedTensor(values=torch.from_numpy(np.ascontiguousarray(steps.values)), lengths=torch.from_numpy(np.ascontiguousarray(steps.lengths)))


def check_total_ids(total: int) -> None:
    """Refuse a batch whose ids int32 offsets cannot count.

    Raises:
        DataError: with the number found and the limit.
    """
    if total > _MOST_IDS:
        raise DataError(f"one batch holds {total} ids, more than {_MOST_IDS}; use a smaller batch_size")
