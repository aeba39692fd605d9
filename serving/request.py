"""A request in packed form, and the one validator that every path into the engine goes through.

Letters: B rows, F sparse features, N ids in all, D dense floats a row, Q sequences, S steps of all sparse sequences. Ids and lengths go feature
after feature (feature-major). For F = 2, B = 3:

             row 0    row 1   row 2
    user     [7]      []      [3, 4]
    item     [1, 2]   [9]     []

    ids      7 3 4 1 2 9
    lengths  1 0 2 2 1 0

The row of a sequence is the ids of all its steps. How many steps it has, and how many ids each, is told besides; for a sparse sequence `clicks` and a
dense one `prices` of one number a step, B = 2:

             row 0         row 1
    clicks   [[5, 6], []]  [[8]]         ids 5 6 8   lengths 2 1   step_lengths 2 0 1
    prices   [[0.5], [2]]  [[1]]         dense_steps 0.5 2 1       steps 2 1 (clicks) 2 1 (prices)
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.errors import RequestError
from emberline.schema import FeatureSpec, ModelSchema, TableKind
from emberline.serving.arrays import INT32_MAX, counts, first, flat, floats, integers
from emberline.serving.request_steps import StepsValidator

_NO_BOUND = 2**64 - 1


@dataclass(frozen=True, eq=False)
class PackedRequest:
    """One request as flat arrays, each of shape [n] or [1, n]. Making one checks nothing; `RequestValidator` returns a checked one.

    Args:
        ids: int64 [N], feature after feature; narrower integers are widened. Rows for static tables, raw ids for ZCH and dynamic ones.
        lengths: int32 [F * B]: how many ids each bag holds.
        weights: float32 [N], or None: all 1.
        dense: float32 [B * D], row after row.
        steps: int32 [Q * B]: how many steps each row has, sequence after sequence, sparse and dense ones in the order of the schema. May be left
            out where all are sparse and take one id a step: each id is a step then.
        step_lengths: int32 [S]: how many ids each step holds, sparse sequence after sequence. May be left out where all take one id a step: each
            step has one then.
        dense_steps: float32, the numbers of each step, dense sequence after sequence.
    """

    ids: npt.NDArray[Any] | None = None
    lengths: npt.NDArray[Any] | None = None
    weights: npt.NDArray[Any] | None = None
    dense: npt.NDArray[Any] | None = None
    steps: npt.NDArray[Any] | None = None
    step_lengths: npt.NDArray[Any] | None = None
    dense_steps: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class CheckedRequest(PackedRequest):
    """A request that the engine can run: flat arrays of the exact types, sizes that agree, ids that every table has.

    `ids`, `lengths`, `dense`, `steps` and `dense_steps` are never None here: they are empty where the model has no such input. `step_lengths` is
    None where each step has one id.

    Args:
        num_rows: B.
        checked_for: the schema that it was checked against.
    """

    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32] | None
    dense: npt.NDArray[np.float32]
    steps: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    step_lengths: npt.NDArray[np.int32] | None = None
    dense_steps: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
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
        self._most_ids = np.array([_most_ids(feature) for feature in self._features], dtype=np.int64)
        self._steps = StepsValidator(schema) if schema.sequences else None

    def check(self, request: PackedRequest) -> CheckedRequest:
        """The request with exact types and shapes, out-of-vocabulary ids replaced where the feature has a row for them.

        Raises:
            RequestError: it is malformed; the message names the tensor, and the feature and row where one is at fault.
        """
        if isinstance(request, CheckedRequest) and request.checked_for is self.schema:
            return request
        lengths = self._lengths(request.lengths)
        dense = self._dense(request.dense)
        steps = self._steps.read(request.steps) if self._steps is not None else None
        num_rows = self._num_rows(lengths, dense, steps)
        ids = self._ids(request.ids, lengths, num_rows)
        weights = self._weights(request.weights, ids.size)
        checked = CheckedRequest(ids=ids, lengths=lengths, weights=weights, dense=dense, num_rows=num_rows, checked_for=self.schema)
        if self._steps is None:
            _refuse_surplus(request)
            return checked
        found = self._steps.check(steps, request.step_lengths, request.dense_steps, lengths, num_rows)
        return replace(checked, steps=found.steps, step_lengths=found.step_lengths, dense_steps=found.dense_steps)

    def _lengths(self, given: npt.NDArray[Any] | None) -> npt.NDArray[np.int32]:
        lengths = counts("lengths", flat("lengths", given, wanted=bool(self._features)))
        if lengths.size == 0:
            return lengths
        if lengths.size % len(self._features):
            names = ", ".join(feature.name for feature in self._features)
            raise RequestError(f"lengths: {lengths.size} lengths are not a whole number for each of {len(self._features)} features ({names})")
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
        dense = floats("dense", flat("dense", given, wanted=width > 0))
        if dense.size == 0:
            return dense
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

    def _num_rows(self, lengths: npt.NDArray[np.int32], dense: npt.NDArray[np.float32], steps: npt.NDArray[np.int32] | None) -> int:
        found = {}
        if self._features:
            found["lengths"] = lengths.size // len(self._features)
        if self._dense_dim:
            found["dense"] = dense.size // self._dense_dim
        if steps is not None:
            found["steps"] = steps.size // len(self.schema.sequences)
        if not found:
            return 0
        (first_name, num_rows), *others = found.items()
        for name, other in others:
            if other != num_rows:
                raise RequestError(f"{first_name} tells of {num_rows} rows, but {name} of {other}")
        return num_rows

    def _ids(self, given: npt.NDArray[Any] | None, lengths: npt.NDArray[np.int32], num_rows: int) -> npt.NDArray[np.int64]:
        found = flat("ids", given, wanted=bool(self._features))
        total = int(lengths.sum(dtype=np.int64))
        if found.size != total:
            raise RequestError(f"ids holds {found.size} ids, but lengths add up to {total}")
        if found.size == 0:
            return np.empty(0, np.int64)
        integers("ids", found)
        if found.dtype == np.uint64 and (found > np.uint64(2**63 - 1)).any():
            raise RequestError(f"ids: {first(found, found > np.uint64(2**63 - 1))} does not fit INT64")
        ids = np.ascontiguousarray(found, dtype=np.int64)
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
                raise RequestError(f"id {first(ids[start:end], part)} is outside [0, {int(bound) + 1})", feature=feature.name, row=row)
            ids[start:end][part] = oov_row
        return ids

    def _weights(self, given: npt.NDArray[Any] | None, total: int) -> npt.NDArray[np.float32] | None:
        if given is None:
            return None
        found = flat("weights", given, wanted=self._has_weights)
        if not self._has_weights:
            return None
        if found.size != total:
            raise RequestError(f"weights holds {found.size} weights for {total} ids")
        weights = floats("weights", found)
        if not np.isfinite(weights).all():
            raise RequestError(f"weights: {first(weights, ~np.isfinite(weights))} is not a finite number")
        return weights


def _bound(schema: ModelSchema, feature: FeatureSpec) -> int:
    """The largest id that every static table read by the feature has, in uint64, where negative ids come out above it."""
    tables = {table.name: table for table in schema.tables}
    read = [tables[lookup.table] for lookup in schema.reads if lookup.feature == feature.name]
    rows = [table.rows for table in read if table.kind is TableKind.STATIC]
    if rows and (encoder_rows := getattr(feature.encoder, "rows", 0)):
        rows.append(encoder_rows)
    return min(rows) - 1 if rows else _NO_BOUND


def _most_ids(feature: FeatureSpec) -> int:
    """The most ids that a row of the feature may hold."""
    steps = feature.sequence_length if feature.sequence else 1
    return feature.value_dim * steps or INT32_MAX


def _refuse_surplus(request: PackedRequest) -> None:
    """A model without sequences has no steps."""
    for name in ("steps", "step_lengths", "dense_steps"):
        if (given := getattr(request, name)) is not None:
            flat(name, given, wanted=False)
