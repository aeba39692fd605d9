"""Encoded columns as a packed request, and which of its ids are whose."""

from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding import EncodedColumns
from emberline.schema import ModelSchema
from emberline.serving.request import PackedRequest
from emberline.serving.request_steps import may_be_left_out


def pack_encoded(schema: ModelSchema, encoded: EncodedColumns) -> PackedRequest:
    """One request from encoded columns.

    Args:
        schema: the model's description.
        encoded: its features' ids and floats.
    """
    return PackedRequest(**_ragged(schema, encoded), dense=_dense(schema, encoded))


def pack_tiled(schema: ModelSchema, user: EncodedColumns, item: EncodedColumns, rows_per_user: npt.NDArray[np.int32]) -> PackedRequest:
    """One tiled request from encoded columns.

    Args:
        schema: the model's description.
        user: the ids and floats of the users' features, one row a user.
        item: those of all others.
        rows_per_user: int32 [U], which add up to the rows of `item`.
    """
    return PackedRequest(
        **_ragged(schema, beside(user, item)),
        dense=_dense(schema.part(per_user=False), item),
        user_dense=_dense(schema.part(per_user=True), user),
        rows_per_user=rows_per_user,
    )


def ids_per_bag(schema: ModelSchema, request: PackedRequest) -> list[npt.NDArray[np.int32]]:
    """How many ids each bag of a request holds, by sparse feature: [B], or [U] of users' features in a tiled request."""
    features, lengths, users = schema.sparse_features, request.lengths, request.rows_per_user
    assert lengths is not None
    if users is None:
        return list(lengths.reshape(len(features), -1))
    sizes = [users.size if feature.is_per_user else int(users.sum(dtype=np.int64)) for feature in features]
    return np.split(lengths, np.cumsum(sizes)[:-1])


def split_ids(schema: ModelSchema, request: PackedRequest, values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The part of each sparse feature of what a request has, or was answered, for each of its ids."""
    ends = np.cumsum([bags.sum(dtype=np.int64) for bags in ids_per_bag(schema, request)])
    return {feature.name: part for feature, part in zip(schema.sparse_features, np.split(values, ends[:-1]), strict=True)}


def beside(user: EncodedColumns, item: EncodedColumns) -> EncodedColumns:
    """The features of both, which are different ones, and as many rows as the second has."""
    return EncodedColumns(
        item.num_rows,
        user.sparse | item.sparse,
        user.dense | item.dense,
        user.sparse_sequences | item.sparse_sequences,
        user.dense_sequences | item.dense_sequences,
    )


def _ragged(schema: ModelSchema, encoded: EncodedColumns) -> dict[str, Any]:
    """What a request says of ids and steps, each feature with as many rows as it has."""
    sequences = encoded.sparse_sequences
    bags = [sequences[feature.name].bags() if feature.sequence else encoded.sparse[feature.name] for feature in schema.sparse_features]
    weights = None
    if schema.has_weights:
        weights = _joined([np.ones(bag.values.size, np.float32) if bag.weights is None else bag.weights for bag in bags], np.float32)
    return {
        "ids": _joined([bag.values for bag in bags], np.int64),
        "lengths": _joined([bag.lengths for bag in bags], np.int32),
        "weights": weights,
        **_steps(schema, encoded),
    }


def _dense(schema: ModelSchema, encoded: EncodedColumns) -> npt.NDArray[np.float32]:
    """The numbers of features without steps, row after row."""
    columns = [encoded.dense[feature.name].reshape(encoded.num_rows, feature.value_dim) for feature in schema.dense_features]
    return np.concatenate(columns, axis=1).reshape(-1) if columns else np.empty(0, np.float32)


def _steps(schema: ModelSchema, encoded: EncodedColumns) -> dict[str, npt.NDArray[Any]]:
    """What a request says of sequences; nothing where there are none, or each id is a step and need not be told."""
    sizes = [encoded.sparse_sequences[feature.name].step_lengths for feature in schema.sparse_sequences]
    if may_be_left_out(schema.sequences) and all(bool((one == 1).all()) for one in sizes):
        return {}
    lengths = {name: steps.lengths for name, steps in encoded.sparse_sequences.items()}
    lengths |= {name: steps.lengths for name, steps in encoded.dense_sequences.items()}
    found = {"steps": _joined([lengths[feature.name] for feature in schema.sequences], np.int32)}
    if sizes:
        found["step_lengths"] = _joined(sizes, np.int32)
    if schema.dense_sequences:
        found["dense_steps"] = _joined([encoded.dense_sequences[feature.name].values.reshape(-1) for feature in schema.dense_sequences], np.float32)
    return found


def _joined(parts: list[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)
