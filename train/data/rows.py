"""Rows and features of a batch's parts: rows taken by number, with all their items, and features kept, left out or put side by side.

Letters: B rows, F features, N items, M rows that are taken.

    #              row 0   row 1   row 2        rows 2 2 0
    # values       [7 8]   []      [9]          [9]     [9]     [7 8]
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

if TYPE_CHECKING:
    from emberline.train.data.batch import Batch


def take_rows(batch: "Batch", rows: Tensor) -> "Batch":
    """The rows of all features at `rows`, int64 [M], in that order; without labels, weights and tile."""
    return replace(
        batch,
        sparse_features={key: _jagged_rows(part, rows) for key, part in batch.sparse_features.items()},
        dense_features={key: _dense(part.keys(), part.length_per_key(), part.values()[rows]) for key, part in batch.dense_features.items()},
        sequence_dense_features={key: _step_rows(part, rows) for key, part in batch.sequence_dense_features.items()},
        sequence_mulval_lengths={key: _jagged_rows(part, rows) for key, part in batch.sequence_mulval_lengths.items()},
        labels={},
        sample_weights=None,
        tile=None,
    )


def only_features(batch: "Batch", names: Collection[str]) -> "Batch":
    """The batch with no other features than these; data groups without any are left out."""
    return replace(
        batch,
        sparse_features=_only_keys(batch.sparse_features, names),
        dense_features=_only_columns(batch.dense_features, names),
        sequence_dense_features={key: part for key, part in batch.sequence_dense_features.items() if key in names},
        sequence_mulval_lengths=_only_keys(batch.sequence_mulval_lengths, names),
    )


def only_data_group(batch: "Batch", data_group: str) -> "Batch":
    """The ids and numbers of one data group by themselves; sequences of numbers, which have no data group, are left out, labels too."""
    sparse = {key: part for key, part in batch.sparse_features.items() if key == data_group}
    dense = {key: part for key, part in batch.dense_features.items() if key == data_group}
    return replace(batch, sparse_features=sparse, dense_features=dense, sequence_dense_features={}, sequence_mulval_lengths={}, labels={})


def with_features_of(batch: "Batch", other: "Batch") -> "Batch":
    """The batch with another's features in front of its own, of as many rows in each data group that both have."""
    dense = dict(batch.dense_features)
    for key, part in other.dense_features.items():
        dense[key] = _dense_side_by_side(part, dense[key]) if key in dense else part
    return replace(
        batch,
        sparse_features=_side_by_side(other.sparse_features, batch.sparse_features),
        dense_features=dense,
        sequence_dense_features={**other.sequence_dense_features, **batch.sequence_dense_features},
        sequence_mulval_lengths=_side_by_side(other.sequence_mulval_lengths, batch.sequence_mulval_lengths),
    )


def feature_names(batch: "Batch") -> list[str]:
    """The names of all features, of whatever data group and kind."""
    keyed = [*batch.sparse_features.values(), *batch.dense_features.values()]
    return [*(name for part in keyed for name in part.keys()), *batch.sequence_dense_features]  # noqa: SIM118


def item_places(lengths: Tensor, rows: Tensor) -> Tensor:
    """Where the items of the rows at `rows` [M] lie, int64 [items of those], given the items of each row, [B]."""
    lengths = lengths.long()
    taken = lengths[rows]
    shifts = torch.repeat_interleave((lengths.cumsum(0) - lengths)[rows] - (taken.cumsum(0) - taken), taken)
    return torch.arange(shifts.numel(), device=shifts.device) + shifts


def joined_features(parts: Sequence[KeyedJaggedTensor], num_rows: int, lengths: Sequence[Tensor] | None = None) -> KeyedJaggedTensor:
    """The features of all parts in one batch of `num_rows`; where some have weights, ids without count 1.

    Args:
        parts: of different features.
        num_rows: B.
        lengths: ids of each row of each part's features, flat; None: the parts' own.
    """
    counts = [part.length_per_key_or_none() for part in parts]
    weights = None
    if any(part.weights_or_none() is not None for part in parts):
        weights = torch.cat([weights_or_ones(part) for part in parts])
    return KeyedJaggedTensor(
        keys=[name for part in parts for name in part.keys()],  # noqa: SIM118
        values=torch.cat([part.values() for part in parts]),
        lengths=torch.cat([part.lengths() for part in parts] if lengths is None else list(lengths)),
        weights=weights,
        stride=num_rows,
        length_per_key=None if None in counts else [count for own in counts for count in own],
    )


def weights_or_ones(part: KeyedJaggedTensor) -> Tensor:
    """The ids' weights, float32 [N]; 1 for each where there are none."""
    weights: Tensor | None = part.weights_or_none()
    return torch.ones(part.values().shape, device=part.values().device) if weights is None else weights.float()


def _jagged_rows(part: KeyedJaggedTensor, rows: Tensor) -> KeyedJaggedTensor:
    starts = torch.arange(len(part.keys()), device=rows.device) * part.stride()
    bags = (starts.unsqueeze(1) + rows).flatten()
    places, weights = item_places(part.lengths(), bags), part.weights_or_none()
    return KeyedJaggedTensor(
        keys=part.keys(),
        values=part.values()[places],
        lengths=part.lengths()[bags],
        weights=None if weights is None else weights[places],
        stride=rows.numel(),
    )


def _step_rows(part: JaggedTensor, rows: Tensor) -> JaggedTensor:
    return JaggedTensor(values=part.values()[item_places(part.lengths(), rows)], lengths=part.lengths()[rows])


def _only_keys(parts: Mapping[str, KeyedJaggedTensor], names: Collection[str]) -> dict[str, KeyedJaggedTensor]:
    found = {key: [place for place, name in enumerate(part.keys()) if name in names] for key, part in parts.items()}
    return {key: _permuted(parts[key], places) for key, places in found.items() if places}


def _permuted(part: KeyedJaggedTensor, places: list[int]) -> KeyedJaggedTensor:
    result: KeyedJaggedTensor = part.permute(places)
    return result


def _only_columns(parts: Mapping[str, KeyedTensor], names: Collection[str]) -> dict[str, KeyedTensor]:
    result = {}
    for key, part in parts.items():
        kept = [name for name in part.keys() if name in names]  # noqa: SIM118
        if kept:
            columns = [part[name] for name in kept]
            result[key] = _dense(kept, [column.shape[1] for column in columns], torch.cat(columns, dim=1))
    return result


def _dense(keys: list[str], widths: list[int], values: Tensor) -> KeyedTensor:
    return KeyedTensor(keys=keys, length_per_key=widths, values=values)


def _dense_side_by_side(one: KeyedTensor, other: KeyedTensor) -> KeyedTensor:
    widths = [*one.length_per_key(), *other.length_per_key()]
    return _dense([*one.keys(), *other.keys()], widths, torch.cat([one.values(), other.values()], dim=1))


def _side_by_side(one: Mapping[str, KeyedJaggedTensor], other: Mapping[str, KeyedJaggedTensor]) -> dict[str, KeyedJaggedTensor]:
    both = {key: joined_features([part, other[key]], part.stride()) for key, part in one.items() if key in other}
    return {**one, **other, **both}
