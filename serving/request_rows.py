"""Requests that have everything once a row, checked.

Letters: B rows, F sparse features, N ids in all, D dense floats a row, Q sequences.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.errors import RequestError
from emberline.schema import FeatureSpec, ModelSchema, TableKind
from emberline.serving.arrays import INT32_MAX, counts, first, flat, floats, integers
from emberline.serving.packed_request import CheckedRequest, PackedRequest
from emberline.serving.request_steps import StepsValidator

_NO_BOUND = 2**64 - 1


class RowsValidator:
    """Checks untiled requests for one model, or one side of tiled ones. Holds no state of a request, so any number of threads may use it.

    Args:
        schema: the model's description, or its part of one side.
        per_user: it is the side of the users: errors then speak of users and `user_dense`.
    """

    def __init__(self, schema: ModelSchema, *, per_user: bool = False) -> None:
        self.schema = schema
        self._dense_as, self._units = ("user_dense", "users") if per_user else ("dense", "rows")
        self._features = schema.sparse_features
        self._bounds = np.array(id_bounds(schema), dtype=np.uint64)
        self._oov_rows = [getattr(feature.encoder, "oov_row", None) for feature in self._features]
        self._dense_dim = schema.dense_dim
        self._has_weights = schema.has_weights
        self._has_most = any(feature.value_dim for feature in self._features)
        self._most_ids = np.array([most_ids(feature) for feature in self._features], dtype=np.int64)
        self._steps = StepsValidator(schema) if schema.sequences else None

    def check(self, request: PackedRequest, num_rows: int | None = None) -> CheckedRequest:
        """The request with exact types and shapes, out-of-vocabulary ids replaced where the feature has a row for them.

        Args:
            request: `rows_per_user` and `user_dense` are not looked at.
            num_rows: B, where the sizes of the arrays need not tell.

        Raises:
            RequestError: it is malformed; the message names the tensor, and the feature and row where one is at fault.
        """
        lengths = self._lengths(request.lengths)
        dense = self._dense(request.dense)
        steps = self._steps.read(request.steps) if self._steps is not None else None
        num_rows = self._num_rows(lengths, dense, steps, num_rows)
        ids = self._ids(request.ids, lengths, num_rows)
        weights = check_weights(request.weights, ids.size, wanted=self._has_weights)
        steps_told: dict[str, Any] = {}
        if self._steps is None:
            _refuse_surplus(request)
        else:
            steps_told = self._steps.check(steps, request.step_lengths, request.dense_steps, lengths, num_rows)._asdict()
        return CheckedRequest(ids=ids, lengths=lengths, weights=weights, dense=dense, num_rows=num_rows, checked_for=self.schema, **steps_told)

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
        width, name = self._dense_dim, self._dense_as
        dense = floats(name, flat(name, given, wanted=width > 0))
        if dense.size == 0:
            return dense
        if dense.size % width:
            raise RequestError(f"{name}: {dense.size} numbers are not a whole number of {self._units} of {width}")
        if not np.isfinite(dense).all():
            row, column = divmod(int(np.argmin(np.isfinite(dense))), width)
            number = dense[row * width + column]
            raise RequestError(f"{name}: {number} is not a finite number", feature=self._dense_name(column), row=row)
        return dense

    def _dense_name(self, column: int) -> str:
        for feature in self.schema.dense_features:
            if column < feature.value_dim:
                return feature.name
            column -= feature.value_dim
        raise AssertionError(column)

    def _num_rows(
        self, lengths: npt.NDArray[np.int32], dense: npt.NDArray[np.float32], steps: npt.NDArray[np.int32] | None, known: int | None
    ) -> int:
        found = {} if known is None else {"rows_per_user": known}
        if self._features:
            found["lengths"] = lengths.size // len(self._features)
        if self._dense_dim:
            found[self._dense_as] = dense.size // self._dense_dim
        if steps is not None:
            found["steps"] = steps.size // len(self.schema.sequences)
        if not found:
            return 0
        (first_name, num_rows), *others = found.items()
        for name, other in others:
            if other != num_rows:
                raise RequestError(f"{first_name} tells of {num_rows} {self._units}, but {name} of {other}")
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


def check_weights(given: npt.NDArray[Any] | None, total: int, *, wanted: bool) -> npt.NDArray[np.float32] | None:
    """The weights as float32 [N]; None where there are none.

    Args:
        given: as they came.
        total: N.
        wanted: whether the model takes any.

    Raises:
        RequestError: they are surplus, not N, or not finite numbers.
    """
    if given is None:
        return None
    found = flat("weights", given, wanted=wanted)
    if not wanted:
        return None
    if found.size != total:
        raise RequestError(f"weights holds {found.size} weights for {total} ids")
    weights = floats("weights", found)
    if not np.isfinite(weights).all():
        raise RequestError(f"weights: {first(weights, ~np.isfinite(weights))} is not a finite number")
    return weights


def id_bounds(schema: ModelSchema) -> list[int]:
    """For each sparse feature, the largest id that every static table read by it has, in uint64, where negative ids come out above it."""
    sizes = {table.name: table.rows for table in schema.tables if table.kind is TableKind.STATIC}
    read: dict[str, list[int]] = {feature.name: [] for feature in schema.sparse_features}
    for lookup in schema.reads:
        if lookup.table in sizes:
            read[lookup.feature].append(sizes[lookup.table])
    return [_id_bound(feature, read[feature.name]) for feature in schema.sparse_features]


def _id_bound(feature: FeatureSpec, rows: list[int]) -> int:
    """The largest id that tables of so many rows have, and the feature's encoder makes."""
    encoder_rows = getattr(feature.encoder, "rows", 0)
    return min([*rows, encoder_rows] if encoder_rows else rows) - 1 if rows else _NO_BOUND


def most_ids(feature: FeatureSpec) -> int:
    """The most ids that a row of the feature may hold."""
    steps = feature.sequence_length if feature.sequence else 1
    return feature.value_dim * steps or INT32_MAX


def _refuse_surplus(request: PackedRequest) -> None:
    """A model without sequences has no steps."""
    for name in ("steps", "step_lengths", "dense_steps"):
        if (given := getattr(request, name)) is not None:
            flat(name, given, wanted=False)
