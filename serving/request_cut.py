"""The arrays of a tiled request, cut into those of its users and those of its rows.

Letters: U users, B rows, N ids, F sparse features, Q sequences.

    features        user (per user)   item      U = 2, B = 3
    lengths         1 2               2 1 0
    ids             7   3 4           1 2   9

    lengths, cut    1 2     and  2 1 0
    ids, cut        7 3 4   and  1 2 9
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emberline.errors import RequestError
from emberline.schema import FeatureKind, FeatureSpec, ModelSchema
from emberline.serving.arrays import counts, flat
from emberline.serving.packed_request import PackedRequest
from emberline.serving.request_rows import check_weights
from emberline.serving.request_steps import may_be_left_out

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Halves = tuple[Array | None, Array | None]
"""An array's parts, the user's and the item's side's; None where it did not come."""


class CutRequest(NamedTuple):
    """A tiled request, cut.

    Args:
        user: what is told of users.
        item: what is told of rows.
        of_user: bool [N], which of the request's ids are the user side's.
        sent: the arrays that were cut, flat, by name.
    """

    user: PackedRequest
    item: PackedRequest
    of_user: npt.NDArray[np.bool_]
    sent: dict[str, Any]


class RequestCutter:
    """Cuts tiled requests for one model. Of what is in them it checks only what it must know to cut them.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._features, self._sequences = _Owners(schema.sparse_features), _Owners(schema.sequences)
        self._sparse = np.array([feature.kind is FeatureKind.SPARSE for feature in schema.sequences], np.bool_)
        self._widths = [feature.value_dim for feature in schema.dense_sequences]
        self._has_weights = schema.has_weights
        self._weighted = [schema.part(per_user=per_user).has_weights for per_user in (True, False)]
        self._needs_steps = not may_be_left_out(schema.sequences)

    def __call__(self, request: PackedRequest, num_users: int, num_rows: int) -> CutRequest:
        """Both sides of a request.

        Raises:
            RequestError: an array is missing, surplus, or of another size than others tell; names it.
        """
        sizes = self._features.sizes(num_users, num_rows)
        lengths = self._features.counts("lengths", request.lengths, sizes)
        totals = _sums(lengths, sizes)
        ids = flat("ids", request.ids, wanted=bool(self._features))
        if ids.size != totals.sum():
            raise RequestError(f"ids holds {ids.size} ids, but lengths add up to {totals.sum()}")
        of_user = np.repeat(self._features.per_user, totals)
        weights = check_weights(request.weights, ids.size, wanted=self._has_weights)
        weights_cut = [half if weighted else None for half, weighted in zip(_cut(weights, of_user), self._weighted, strict=True)]
        halves: dict[str, Halves] = {
            "ids": _cut(ids, of_user),
            "lengths": _cut(lengths, np.repeat(self._features.per_user, sizes)),
            "weights": (weights_cut[0], weights_cut[1]),
            "dense": (request.user_dense, request.dense),
        }
        sent: dict[str, Any] = {"ids": ids, "lengths": lengths, "weights": weights}
        for name, array, mask in self._steps(request, num_users, num_rows):
            sent[name], halves[name] = array, _cut(array, mask)
        user, item = (PackedRequest(**{name: pair[side] for name, pair in halves.items()}) for side in (0, 1))
        return CutRequest(user, item, of_user, sent)

    def _steps(self, request: PackedRequest, num_users: int, num_rows: int) -> Iterator[tuple[str, Array, Mask]]:
        """What came of steps: name, array, and which of it is the user side's."""
        has_steps, has_sparse, has_dense = bool(self._sequences), bool(self._sparse.any()), not self._sparse.all()
        given = flat("steps", request.steps, wanted=has_steps, optional=not self._needs_steps)
        sizes_given = flat("step_lengths", request.step_lengths, wanted=has_sparse, optional=True)
        numbers = flat("dense_steps", request.dense_steps, wanted=has_dense)
        if request.steps is None or not has_steps:
            if request.step_lengths is not None and has_sparse:
                raise RequestError("step_lengths is there, but steps, which tells of how many steps each row has, is missing")
            return
        per_user, sparse, sizes = self._sequences.per_user, self._sparse, self._sequences.sizes(num_users, num_rows)
        steps = self._sequences.counts("steps", given, sizes)
        totals = _sums(steps, sizes)
        yield "steps", steps, np.repeat(per_user, sizes)
        if request.step_lengths is not None and has_sparse:
            if sizes_given.size != totals[sparse].sum():
                raise RequestError(f"step_lengths tells of {sizes_given.size} steps, but steps of {totals[sparse].sum()}")
            yield "step_lengths", sizes_given, np.repeat(per_user[sparse], totals[sparse])
        if has_dense:
            wanted = [total * width for total, width in zip(totals[~sparse].tolist(), self._widths, strict=True)]  # Python's own: may pass 64 bits
            if numbers.size != sum(wanted):
                raise RequestError(f"dense_steps holds {numbers.size} numbers, but steps tells of {sum(wanted)}")
            yield "dense_steps", numbers, np.repeat(per_user[~sparse], wanted)


class _Owners:
    """Features in the order of an array that goes feature after feature."""

    def __init__(self, features: Sequence[FeatureSpec]) -> None:
        self._features = features
        self.per_user = np.array([feature.is_per_user for feature in features], np.bool_)

    def __bool__(self) -> bool:
        return bool(self._features)

    def sizes(self, num_users: int, num_rows: int) -> npt.NDArray[np.int64]:
        """How many entries each feature has."""
        found: npt.NDArray[np.int64] = np.where(self.per_user, np.int64(num_users), np.int64(num_rows))
        return found

    def counts(self, name: str, given: Array | None, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """An array of counts as int32, of the right size, none negative."""
        found = counts(name, flat(name, given, wanted=bool(self)))
        if found.size != sizes.sum():
            names = ", ".join(f"{feature.name} {size}" for feature, size in zip(self._features, sizes, strict=True))
            raise RequestError(f"{name} holds {found.size} numbers, but {sizes.sum()} are due ({names})")
        if found.size and found.min() < 0:
            entry = int(found.argmin())
            ends = sizes.cumsum()
            feature = int(np.searchsorted(ends, entry, side="right"))
            place = entry - int(ends[feature] - sizes[feature])
            where = {"user": place} if self.per_user[feature] else {"row": place}
            raise RequestError(f"{name}: {found[entry]} is negative", feature=self._features[feature].name, **where)
        return found


def _sums(counts: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum of each feature's entries."""
    ends = np.concatenate([np.zeros(1, np.int64), counts.cumsum(dtype=np.int64)])
    last = sizes.cumsum()
    found: npt.NDArray[np.int64] = ends[last] - ends[last - sizes]
    return found


def _cut(array: Array | None, of_user: Mask) -> Halves:
    return (None, None) if array is None else (array[of_user], array[~of_user])
