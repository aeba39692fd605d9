"""Tiled batches: what users are like once each, and beside it the rows, each with the user whom it belongs to.

    user side, U = 2 rows         item side, B = 3 rows      rows
    u0   [7 8]                    i0   [1]                   0        a user's rows may stand anywhere, and a user
    u1   [9]                      i1   [2]                   1        may have none
                                  i2   [3]                   0

    untiled: ([7 8], [1])  ([9], [2])  ([7 8], [3])

A request for one user and B candidates has U = 1 and `rows` of zeros. Only the data group `__BASE__` has sides: negatives come as ever.

Letters: U users, B rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.encoding import EncodedColumns
from emberline.errors import ConfigError, DataError
from emberline.train.data.batch import Batch, Tile, batch_from_encoded
from emberline.train.data.rows import feature_names, only_data_group, only_features, take_rows, with_features_of
from emberline.train.features import BASE_DATA_GROUP, Feature, Side


def tiled_from_encoded(
    features: Sequence[Feature],
    user: EncodedColumns,
    item: EncodedColumns,
    rows: npt.NDArray[np.int64] | None = None,
    *,
    labels: Mapping[str, npt.NDArray[np.generic]] | None = None,
    sample_weights: npt.NDArray[np.float32] | None = None,
) -> Batch:
    """A tiled batch of encoded columns.

    Args:
        features: those that were encoded. Where a feature's side is not known, its column comes with the rows.
        user: the columns of the user's features, U rows.
        item: the columns of all others, B rows.
        rows: int64 [B], the user of each row; None: all belong to the only one.
        labels: column -> [B].
        sample_weights: float32 [B].

    Raises:
        DataError: a feature's column is missing or came on the other side, or `rows` cannot be right.
    """
    of_user = [feature for feature in features if is_user_side(feature)]
    others = [feature for feature in features if not is_user_side(feature)]
    _check_columns(of_user, user, item, "user")
    _check_columns(others, item, user, "item")
    if rows is None:
        if user.num_rows != 1:
            raise DataError(f"the user side has {user.num_rows} rows; say in rows which of them each of the {item.num_rows} rows belongs to")
        rows = np.zeros(item.num_rows, np.int64)
    batch = batch_from_encoded(others, item, labels, sample_weights)
    tile = Tile(batch_from_encoded(of_user, user), torch.from_numpy(np.ascontiguousarray(rows)))
    check_tile_rows(tile.rows, item.num_rows, user.num_rows)
    return replace(batch, tile=tile)


def tile_batch(batch: Batch, features: Sequence[Feature], users: Tensor | None = None) -> Batch:
    """The tiled form of an untiled batch, with each user once, in any order; `untile_batch` is the way back.

    Args:
        batch: B rows, a user's features repeated in each of the user's rows.
        features: of the batch; those of the user's side go into the tile.
        users: int64 [B], one number for each user; None: rows of equal user features are one user's.

    Raises:
        ConfigError: no feature is on the user's side.
        DataError: the batch is tiled already, or two rows of one user differ in a feature of the user's side; names feature and rows.
    """
    if batch.tile is not None:
        raise DataError("the batch is tiled already")
    names = {feature.name for feature in features if is_user_side(feature)}
    if not names:
        raise ConfigError("no feature is on the user's side; write expressions as user:column")
    others = {feature.name for feature in features} - names
    user = only_features(batch, names)
    if missing := sorted(names - set(feature_names(user))):
        raise DataError(f"the batch has no {', '.join(missing)}, of the user's side; it has {', '.join(feature_names(batch)) or 'no features'}")
    classes = _classes(user)
    if users is None:
        _, rows = torch.unique(torch.stack(list(classes.values())), dim=1, return_inverse=True)
    else:
        check_whole_numbers("users", users, user.num_rows)
        _, rows = torch.unique(users, return_inverse=True)
    first = _first_rows(rows)
    for name, found in classes.items():
        differing = found != found[first[rows]]
        if bool(differing.any()):
            row = int(differing.int().argmax())
            raise DataError(f"feature {name!r} is the user's, but differs between rows {int(first[rows[row]])} and {row} of one user")
    return replace(only_features(batch, others), tile=Tile(take_rows(user, first), rows))


def untile_batch(batch: Batch) -> Batch:
    """The untiled form of a tiled batch: the user's features repeated in each row, in front of the others. Untiled ones stay.

    Raises:
        DataError: `rows` cannot be right.
    """
    if batch.tile is None:
        return batch
    tile, plain = batch.tile, replace(batch, tile=None)
    base = only_data_group(plain, BASE_DATA_GROUP)
    check_tile_rows(tile.rows, base.num_rows if feature_names(base) else tile.rows.numel(), tile.user.num_rows)
    return with_features_of(plain, take_rows(tile.user, tile.rows))


def is_user_side(feature: Feature) -> bool:
    """Whether a tiled batch has the feature once for each user."""
    return feature.side is Side.USER and feature.data_group == BASE_DATA_GROUP


def check_tile_rows(rows: Tensor, num_rows: int, num_users: int) -> None:
    """Refuse rows that name no user.

    Args:
        rows: `Tile.rows`.
        num_rows: B, that they must be of.
        num_users: U.

    Raises:
        DataError: they are no flat int64 tensor, not B, or outside of [0, U).
    """
    check_whole_numbers("tile.rows", rows, num_rows)
    bad = (rows < 0) | (rows >= num_users)
    if bool(bad.any()):
        row = int(bad.int().argmax())
        raise DataError(f"tile.rows gives row {row} to user {int(rows[row])}, but there are {num_users} users, counted from 0")


def check_whole_numbers(name: str, values: Tensor, count: int) -> None:
    """Refuse what is no flat int64 tensor of `count` numbers.

    Raises:
        DataError: names it, with what was found.
    """
    if values.dtype != torch.int64 or values.dim() != 1:
        raise DataError(f"{name} must be a flat int64 tensor, not {values.dtype} of shape {tuple(values.shape)}")
    if values.numel() != count:
        raise DataError(f"{name} has {values.numel()} numbers for {count} rows")


def _check_columns(features: Sequence[Feature], columns: EncodedColumns, others: EncodedColumns, side: str) -> None:
    found, elsewhere = _column_names(columns), _column_names(others)
    for feature in features:
        if feature.name in elsewhere:
            raise DataError(f"feature {feature.name!r} belongs on the {side} side, but came on the other")
        if feature.name not in found:
            raise DataError(f"feature {feature.name!r} is missing on the {side} side; it has {', '.join(sorted(found)) or 'none'}")


def _column_names(columns: EncodedColumns) -> set[str]:
    return {*columns.sparse, *columns.dense, *columns.sparse_sequences, *columns.dense_sequences}


def _classes(batch: Batch) -> dict[str, Tensor]:
    """For each feature a number [B] for each row; rows have the same number where they hold the same, bit by bit."""
    found: dict[str, list[Tensor]] = {}
    for name, matrix in _matrices(batch):
        found.setdefault(name, []).append(torch.unique(matrix, dim=0, return_inverse=True)[1])
    return {name: torch.unique(torch.stack(parts), dim=1, return_inverse=True)[1] for name, parts in found.items()}


def _matrices(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """All that a row holds of each feature, as whole numbers [B, any]."""
    for jagged in (*batch.sparse_features.values(), *batch.sequence_mulval_lengths.values()):
        for name in jagged.keys():  # noqa: SIM118
            part = jagged[name]
            yield name, _padded(part.lengths(), part.values())
            if (weights := part.weights_or_none()) is not None:
                yield name, _padded(part.lengths(), weights)
    for keyed in batch.dense_features.values():
        for name in keyed.keys():  # noqa: SIM118
            yield name, _bits(keyed[name])
    for name, steps in batch.sequence_dense_features.items():
        yield name, _padded(steps.lengths(), steps.values())


def _padded(lengths: Tensor, values: Tensor) -> Tensor:
    """Items [N] or [N, v] as [B, 1 + longest row]: the number of items first, zeros last."""
    lengths, values = lengths.long(), _bits(values.unsqueeze(1) if values.dim() == 1 else values)
    longest = int(lengths.max()) if lengths.numel() else 0
    rows = torch.repeat_interleave(lengths)
    matrix = values.new_zeros(lengths.numel(), longest, values.shape[1])
    matrix[rows, torch.arange(rows.numel(), device=rows.device) - (lengths.cumsum(0) - lengths)[rows]] = values
    return torch.cat([lengths.unsqueeze(1), matrix.flatten(1)], dim=1)


def _bits(values: Tensor) -> Tensor:
    return values.double().view(torch.int64) if values.is_floating_point() else values.long()


def _first_rows(rows: Tensor) -> Tensor:
    """The first row of each user, given the user of each row."""
    count = int(rows.max()) + 1 if rows.numel() else 0
    numbers = torch.arange(rows.numel(), device=rows.device)
    return torch.full((count,), rows.numel(), device=rows.device).scatter_reduce(0, rows, numbers, "amin")
