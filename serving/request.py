"""A request in packed form, and the one validator that every path into the engine goes through.

Letters: B rows, F sparse features, N ids in all, D dense floats a row. Ids and lengths go feature after feature (feature-major). For F = 2, B = 3:

             row 0    row 1   row 2
    user     [7]      []      [3, 4]
    item     [1, 2]   [9]     []

    ids      7 3 4 1 2 9
    lengths  1 0 2 2 1 0
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.errors import RequestError
from emberline.schema import FeatureSpec, ModelSchema, TableKind

_INT32_MAX = 2**31 - 1
_NO_BOUND = 2**64 - 1


@dataclass(frozen=True, eq=False)
class PackedRequest:
    """One request as flat arrays, each of shape [n] or [1, n]. Making one checks nothing; `RequestValidator` returns a checked one.

    Args:
        ids: int64 [N], feature after feature; narrower integers are widened. Rows for static tables, raw ids for ZCH and dynamic ones.
        lengths: int32 [F * B]: how many ids each bag holds.
        weights: float32 [N], or None: all 1.
        dense: float32 [B * D], row after row.
    """

    ids: npt.NDArray[Any] | None = None
    lengths: npt.NDArray[Any] | None = None
    weights: npt.NDArray[Any] | None = None
    dense: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class CheckedRequest(PackedRequest):
    """A request that the engine can run: flat arrays of the exact types, sizes that agree, ids that every table has.

    `ids`, `lengths` and `dense` are never None here: they are empty where the model has no such input.

    Args:
        num_rows: B.
        checked_for: the schema that it was checked against.
    """

    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32] | None
    dense: npt.NDArray[np.float32]
    num_rows: int = field(kw_only=True)
    checked_for: ModelSchema = field(kw_only=True, repr=False)


class RequestValidator:
    """Checks requests for one model. Holds no state of a request, so any number of threads may use it.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self.schema = schema
        self._features = schema.sparse_features
        self._bounds = np.array([_bound(schema, feature) for feature in self._features], dtype=np.uint64)
        self._oov_rows = [getattr(feature.encoder, "oov_row", None) for feature in self._features]
        self._dense_dim = schema.dense_dim
        self._has_weights = schema.has_weights
        self._has_most = any(feature.value_dim for feature in self._features)
        self._most_ids = np.array([feature.value_dim or _INT32_MAX for feature in self._features], dtype=np.int64)

    def check(self, request: PackedRequest) -> CheckedRequest:
        """The request with exact types and shapes, out-of-vocabulary ids replaced where the feature has a row for them.

        Raises:
            RequestError: it is malformed; the message names the tensor, and the feature and row where one is at fault.
        """
        if isinstance(request, CheckedRequest) and request.checked_for is self.schema:
            return request
        lengths = self._lengths(request.lengths)
        dense = self._dense(request.dense)
        num_rows = self._num_rows(lengths, dense)
        ids = self._ids(request.ids, lengths, num_rows)
        weights = self._weights(request.weights, ids.size)
        return CheckedRequest(ids=ids, lengths=lengths, weights=weights, dense=dense, num_rows=num_rows, checked_for=self.schema)

    def _lengths(self, given: npt.NDArray[Any] | None) -> npt.NDArray[np.int32]:
        flat = _flat("lengths", given, wanted=bool(self._features))
        if flat.size == 0:
            return np.empty(0, np.int32)
        _integers("lengths", flat)
        if flat.dtype != np.int32 and (flat.max() > _INT32_MAX or flat.min() < -_INT32_MAX):
            raise RequestError(f"lengths: {_first(flat, np.abs(flat.astype(np.float64)) > _INT32_MAX)} does not fit INT32")
        if flat.size % len(self._features):
            names = ", ".join(feature.name for feature in self._features)
            raise RequestError(f"lengths: {flat.size} lengths are not a whole number for each of {len(self._features)} features ({names})")
        lengths = np.ascontiguousarray(flat, dtype=np.int32)
        table = lengths.reshape(len(self._features), -1)
        if lengths.min() < 0:
            feature, row = (int(place[0]) for place in np.nonzero(table < 0))
            raise RequestError(f"lengths: {table[feature, row]} is negative", feature=self._features[feature].name, row=row)
        if self._has_most and (over := table > self._most_ids[:, None]).any():
            feature, row = (int(place[0]) for place in np.nonzero(over))
            most, name = self._most_ids[feature], self._features[feature].name
            raise RequestError(f"lengths: {table[feature, row]} ids, but it takes at most {most}", feature=name, row=row)
        return lengths

    def _dense(self, given: npt.NDArray[Any] | None) -> npt.NDArray[np.float32]:
        width = self._dense_dim
        flat = _flat("dense", given, wanted=width > 0)
        if flat.size == 0:
            return np.empty(0, np.float32)
        dense = _floats("dense", flat)
        if dense.size % width:
            raise RequestError(f"dense: {dense.size} numbers are not a whole number of rows of {width}")
        if not np.isfinite(dense).all():
            row, column = divmod(int(np.argmin(np.isfinite(dense))), width)
            number = dense[row * width + column]
            raise RequestError(f"dense: {number} is not a finite number", feature=self._dense_name(column), row=row)
        return dense

    def _dense_name(self, column: int) -> str:
        for feature in self.schema.dense_features:
            if column < feature.value_dim:
                return feature.name
            column -= feature.value_dim
        raise AssertionError(column)

    def _num_rows(self, lengths: npt.NDArray[np.int32], dense: npt.NDArray[np.float32]) -> int:
        width = self._dense_dim
        by_lengths = lengths.size // len(self._features) if self._features else None
        by_dense = dense.size // width if width else None
        if by_lengths is not None and by_dense is not None and by_lengths != by_dense:
            raise RequestError(f"lengths tells of {by_lengths} rows, but dense of {by_dense}")
        return by_lengths if by_lengths is not None else by_dense or 0

    def _ids(self, given: npt.NDArray[Any] | None, lengths: npt.NDArray[np.int32], num_rows: int) -> npt.NDArray[np.int64]:
        flat = _flat("ids", given, wanted=bool(self._features))
        total = int(lengths.sum(dtype=np.int64))
        if flat.size != total:
            raise RequestError(f"ids holds {flat.size} ids, but lengths add up to {total}")
        if flat.size == 0:
            return np.empty(0, np.int64)
        _integers("ids", flat)
        if flat.dtype == np.uint64 and (flat > np.uint64(2**63 - 1)).any():
            raise RequestError(f"ids: {_first(flat, flat > np.uint64(2**63 - 1))} does not fit INT64")
        ids = np.ascontiguousarray(flat, dtype=np.int64)
        bags = lengths.reshape(len(self._features), num_rows)
        outside = ids.view(np.uint64) > np.repeat(self._bounds, bags.sum(axis=1, dtype=np.int64))
        return self._replace(ids, outside, bags) if outside.any() else ids

    def _replace(self, ids: npt.NDArray[np.int64], outside: npt.NDArray[np.bool_], bags: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Ids that a static table does not have become the feature's out-of-vocabulary row, or the request is refused."""
        ids = ids.copy()
        end = 0
        for feature, bound, oov_row, lengths in zip(self._features, self._bounds, self._oov_rows, bags, strict=True):
            start, end = end, end + int(lengths.sum(dtype=np.int64))
            part = outside[start:end]
            if not part.any():
                continue
            if oov_row is None:
                row = int(np.searchsorted(lengths.cumsum(), int(np.argmax(part)), side="right"))
                raise RequestError(f"id {_first(ids[start:end], part)} is outside [0, {int(bound) + 1})", feature=feature.name, row=row)
            ids[start:end][part] = oov_row
        return ids

    def _weights(self, given: npt.NDArray[Any] | None, total: int) -> npt.NDArray[np.float32] | None:
        if given is None:
            return None
        flat = _flat("weights", given, wanted=self._has_weights)
        if not self._has_weights:
            return None
        if flat.size != total:
            raise RequestError(f"weights holds {flat.size} weights for {total} ids")
        weights = _floats("weights", flat) if flat.size else np.empty(0, np.float32)
        if not np.isfinite(weights).all():
            raise RequestError(f"weights: {_first(weights, ~np.isfinite(weights))} is not a finite number")
        return weights


def pack_encoded(schema: ModelSchema, sparse: Mapping[str, Any], dense: Mapping[str, npt.NDArray[np.float32]], num_rows: int) -> PackedRequest:
    """One request from encoded columns.

    Args:
        schema: the model's description.
        sparse: by feature: an object with `values` int64 [n], `lengths` int32 [B] and `weights` float32 [n] or None.
        dense: by feature: float32 [B, value_dim].
        num_rows: B.
    """
    bags = [sparse[feature.name] for feature in schema.sparse_features]
    columns = [dense[feature.name].reshape(num_rows, feature.value_dim) for feature in schema.dense_features]
    weights = None
    if schema.has_weights:
        weights = _joined([np.ones(bag.values.size, np.float32) if bag.weights is None else bag.weights for bag in bags], np.float32)
    return PackedRequest(
        ids=_joined([bag.values for bag in bags], np.int64),
        lengths=_joined([bag.lengths for bag in bags], np.int32),
        weights=weights,
        dense=np.concatenate(columns, axis=1).reshape(-1) if columns else np.empty(0, np.float32),
    )


def _joined(parts: list[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)


def _bound(schema: ModelSchema, feature: FeatureSpec) -> int:
    """The largest id that every static table read by the feature has, in uint64, where negative ids come out above it."""
    tables = {table.name: table for table in schema.tables}
    read = [tables[lookup.table] for lookup in schema.lookups if lookup.feature == feature.name]
    rows = [table.rows for table in read if table.kind is TableKind.STATIC]
    if rows and (encoder_rows := getattr(feature.encoder, "rows", 0)):
        rows.append(encoder_rows)
    return min(rows) - 1 if rows else _NO_BOUND


def _flat(name: str, given: npt.NDArray[Any] | None, *, wanted: bool) -> npt.NDArray[Any]:
    """The array as [n]; an input that the model lacks must be absent or empty, and one that it has must be there."""
    if given is None:
        if wanted:
            raise RequestError(f"{name} is missing")
        return np.empty(0)
    array = np.asarray(given)
    if not (array.ndim == 1 or (array.ndim == 2 and array.shape[0] == 1)):
        raise RequestError(f"{name} has shape {list(array.shape)}; send [n] or [1, n]: one request is one batch item, whatever its number of rows")
    if array.size and not wanted:
        raise RequestError(f"{name}: the model takes none, found {array.size}")
    return array.reshape(-1)


def _integers(name: str, array: npt.NDArray[Any]) -> None:
    if array.dtype.kind not in "iu":
        raise RequestError(f"{name} must be integers, found {array.dtype}")


def _floats(name: str, array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if array.dtype.kind not in "fiu":
        raise RequestError(f"{name} must be numbers, found {array.dtype}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def _first(values: npt.NDArray[Any], where: npt.NDArray[np.bool_]) -> Any:
    """The first of `values` at a true place."""
    return values[int(np.argmax(where))]
