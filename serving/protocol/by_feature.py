"""A request's inputs by feature: for callers who would rather name features than know their order.

    packed                       by feature, of the same request
    ids      7 3 4 1 2 9         values.user   7 3 4    lengths.user  1 0 2
    lengths  1 0 2 2 1 0         values.item   1 2 9    lengths.item  2 1 0
    dense    0.5 2 1 3 0 1       values.price  0.5 1 0  values.age    2 3 1

Letters: B rows, U users of a tiled request, N ids of one feature, S steps of one feature, W floats of a row or step.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.errors import RequestError
from emberline.schema import FeatureKind, FeatureSpec, ModelSchema
from emberline.serving.arrays import counts, flat
from emberline.serving.packed_request import PackedRequest
from emberline.serving.protocol.wire import WireTensor
from emberline.serving.request_steps import may_be_left_out

Array = npt.NDArray[Any]
_TILED = "rows_per_user"
"""It is no feature's, and is the same in both forms; features of the user's side then have U users in place of B rows."""


def feature_inputs(schema: ModelSchema) -> tuple[WireTensor, ...]:
    """The inputs by feature. All are optional: a request has either these or the packed ones.

    Of a sparse feature `values.<feature>` (ids [N]), `lengths.<feature>` (ids of each row [B]) and, where it is weighted, `weights.<feature>` [N],
    which may be left out; of a dense one `values.<feature>` [B * W]. Of a sequence `steps.<feature>` [B] besides, with values [S * W] where it is
    dense, and `step_lengths.<feature>` [S] where it is sparse; where steps have one id each, both may be left out.
    """
    return tuple(tensor for feature in schema.features for tensor in _inputs_of(feature))


def _inputs_of(feature: FeatureSpec) -> Iterator[WireTensor]:
    sparse = feature.kind is FeatureKind.SPARSE
    yield WireTensor(f"values.{feature.name}", ("INT64", "INT32") if sparse else ("FP32",), (-1,), optional=True)
    if sparse:
        yield WireTensor(f"lengths.{feature.name}", ("INT32", "INT64"), (-1,), optional=True)
        if feature.weighted:
            yield WireTensor(f"weights.{feature.name}", ("FP32",), (-1,), optional=True)
    if feature.sequence:
        yield WireTensor(f"steps.{feature.name}", ("INT32", "INT64"), (-1,), optional=True)
        if sparse:
            yield WireTensor(f"step_lengths.{feature.name}", ("INT32", "INT64"), (-1,), optional=True)


class FeaturePacker:
    """Makes packed requests of inputs by feature, for one model. What it does not check, the request's own check does, which comes later.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._schema = schema
        self._names = frozenset(tensor.name for tensor in feature_inputs(schema))

    def __call__(self, arrays: Mapping[str, Array]) -> PackedRequest:
        """The request, whichever form it has.

        Args:
            arrays: by input name, each [n] or [1, n].

        Raises:
            RequestError: an input is missing, both forms are mixed, or a feature's sizes do not go together; names input and feature.
        """
        if self._names.isdisjoint(arrays):
            return PackedRequest(**arrays)
        mine = self._names & arrays.keys()
        if packed := sorted(arrays.keys() - mine - {_TILED}):
            raise RequestError(f"{packed[0]} and {min(mine)} are in one request: send the packed inputs, or all by feature")
        return _Parts(self._schema, arrays).pack()


class _Parts:
    """One request by feature."""

    def __init__(self, schema: ModelSchema, arrays: Mapping[str, Array]) -> None:
        self._schema = schema
        self._arrays = arrays
        self._tiled = _TILED in arrays
        self._rows: dict[bool, tuple[str, int]] = {}

    def pack(self) -> PackedRequest:
        sparse = self._schema.sparse_features
        lengths = [self._of_rows("lengths", feature) for feature in sparse]
        ids = [self._sized("values", feature, int(own.sum(dtype=np.int64)), "lengths") for feature, own in zip(sparse, lengths, strict=True)]
        dense = [(feature.is_per_user and self._tiled, self._dense(feature)) for feature in self._schema.dense_features]
        steps = self._steps({feature.name: own for feature, own in zip(sparse, lengths, strict=True)})
        return PackedRequest(
            ids=_joined(ids),
            lengths=_joined(lengths),
            weights=self._weights(sparse, ids),
            dense=_row_by_row([values for of_user, values in dense if not of_user]),
            steps=None if steps is None else _joined([steps[feature.name] for feature in self._schema.sequences]),
            step_lengths=None if steps is None else self._step_lengths(steps),
            dense_steps=_joined([self._step_values(feature, steps or {}) for feature in self._schema.dense_sequences]),
            rows_per_user=self._arrays.get(_TILED),
            user_dense=_row_by_row([values for of_user, values in dense if of_user]),
        )

    def _get(self, kind: str, feature: FeatureSpec, *, optional: bool = False) -> Array | None:
        name = f"{kind}.{feature.name}"
        found = flat(name, self._arrays.get(name), wanted=True, optional=optional)
        return found if name in self._arrays else None

    def _of_rows(self, kind: str, feature: FeatureSpec) -> Array:
        """Whole numbers, one for each row."""
        found = self._get(kind, feature)
        assert found is not None
        self._tell_rows(kind, feature, found.size)
        return counts(f"{kind}.{feature.name}", found)

    def _sized(self, kind: str, feature: FeatureSpec, size: int, teller: str) -> Array:
        found = self._get(kind, feature)
        assert found is not None
        if found.size != size:
            raise RequestError(f"{kind}.{feature.name} holds {found.size} items, but {teller}.{feature.name} tells of {size}")
        return found

    def _tell_rows(self, kind: str, feature: FeatureSpec, num_rows: int) -> None:
        """All inputs of a side must tell of equally many rows, or users."""
        of_user, name = self._tiled and feature.is_per_user, f"{kind}.{feature.name}"
        first, wanted = self._rows.setdefault(of_user, (name, num_rows))
        if num_rows != wanted:
            raise RequestError(f"{first} tells of {wanted} {'users' if of_user else 'rows'}, but {name} of {num_rows}")

    def _weights(self, sparse: Sequence[FeatureSpec], ids: Sequence[Array]) -> Array | None:
        """Ones for what has no weights; None where nothing has."""
        if not any(f"weights.{feature.name}" in self._arrays for feature in sparse):
            return None
        parts = []
        for feature, own in zip(sparse, ids, strict=True):
            given = f"weights.{feature.name}" in self._arrays
            parts.append(self._sized("weights", feature, own.size, "values") if given else np.ones(own.size, np.float32))
        return _joined(parts)

    def _dense(self, feature: FeatureSpec) -> Array:
        """Floats [B, W]."""
        found = self._get("values", feature)
        assert found is not None
        if found.size % feature.value_dim:
            raise RequestError(f"values.{feature.name}: {found.size} numbers are not a whole number of rows of {feature.value_dim}")
        self._tell_rows("values", feature, found.size // feature.value_dim)
        return found.reshape(-1, feature.value_dim)

    def _steps(self, lengths: Mapping[str, Array]) -> Mapping[str, Array] | None:
        """Steps of each row by sequence; None where no sequence says, and none needs to."""
        sequences = self._schema.sequences
        said = any(f"{kind}.{feature.name}" in self._arrays for kind in ("steps", "step_lengths") for feature in sequences)
        if not said and may_be_left_out(sequences):
            return None
        found = {}
        for feature in sequences:
            alone = may_be_left_out([feature]) and not any(f"{kind}.{feature.name}" in self._arrays for kind in ("steps", "step_lengths"))
            found[feature.name] = lengths[feature.name] if alone else self._of_rows("steps", feature)
        return found

    def _step_lengths(self, steps: Mapping[str, Array]) -> Array | None:
        """Ids of each step, sequence after sequence; ones, as many as there are ids, for those that take one id a step and say nothing."""
        sparse = self._schema.sparse_sequences
        if may_be_left_out(sparse) and not any(f"step_lengths.{feature.name}" in self._arrays for feature in sparse):
            return None
        parts = []
        for feature in sparse:
            total = _total(steps[feature.name])
            alone = may_be_left_out([feature]) and f"step_lengths.{feature.name}" not in self._arrays
            own = self._sized("values" if alone else "step_lengths", feature, total, "steps")
            parts.append(np.ones(own.size, np.int32) if alone else own)
        return _joined(parts)

    def _step_values(self, feature: FeatureSpec, steps: Mapping[str, Array]) -> Array:
        """The numbers of a dense sequence."""
        return self._sized("values", feature, _total(steps[feature.name]) * feature.value_dim, "steps")


def _total(steps: Array) -> int:
    """Of all rows; 0 where they add up to less, which the request's own check refuses."""
    return max(int(steps.sum(dtype=np.int64)), 0)


def _row_by_row(parts: Sequence[Array]) -> Array | None:
    """Columns [B, W] of some features as whole rows, flat; None for none."""
    return np.concatenate(parts, axis=1).reshape(-1) if parts else None


def _joined(parts: Sequence[Array]) -> Array | None:
    """End to end; None for none."""
    return np.concatenate(parts) if parts else None
