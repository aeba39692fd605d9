"""Small requests straight from their arrays to what programs take, by one call of the kernel: it checks, cuts and looks up.

Whatever such a request has that is out of the ordinary (another type or shape, an id that needs replacing, a mistake) is left to the long way, which
gives the same answers, and names what is wrong.
"""

import ctypes
from collections.abc import Collection
from itertools import accumulate
from typing import Any, Self, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.schema import ModelSchema
from emberline.serving.lookup.backend import LookupBackend
from emberline.serving.lookup.bags import tensor
from emberline.serving.lookup.native import NativeLookup
from emberline.serving.packed_request import CheckedRequest, PackedRequest
from emberline.serving.request_rows import id_bounds, most_ids

MOST_IDS = 4096
"""Larger requests gain nothing: what they spend is spent in lookups."""
MOST_OFFSETS, MOST_READS = 4096, 512
"""Limits of `kernel.c`."""
_CPU = torch.device("cpu")
_INT64, _INT32, _FLOAT32 = np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.float32)
_NO_NUMBERS = np.empty(0, np.float32)


class _Feature(ctypes.Structure):
    """`Feature` of `kernel.c`."""

    _fields_ = (("bound", ctypes.c_uint64), ("most", ctypes.c_int64))


class _Model(ctypes.Structure):
    """`Model` of `kernel.c`."""

    _fields_ = (
        ("reads", ctypes.c_void_p),
        ("feature_of", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("features", ctypes.c_void_p),
        ("num_reads", ctypes.c_int32),
        ("num_features", ctypes.c_int32),
        ("width", ctypes.c_int64),
    )


class DirectReader:
    """Reads small requests for one model; any number of threads may use it.

    Args:
        schema: the model's description.
        lookup: has its tables.
    """

    def __init__(self, schema: ModelSchema, lookup: NativeLookup) -> None:
        features, lookups = schema.sparse_features, schema.lookups
        places = {feature.name: place for place, feature in enumerate(features)}
        ends = list(accumulate((read.dim for read in lookups), initial=0))
        self._feature_of = (ctypes.c_int32 * len(lookups))(*(places[read.feature] for read in lookups))
        self._columns = (ctypes.c_int32 * len(lookups))(*ends[:-1])
        self._features = (_Feature * len(features))(*map(_Feature, id_bounds(schema), map(most_ids, features)))
        self._lookup = lookup  # keeps tables and what describes them
        places_of = [ctypes.addressof(part) for part in (lookup.described, self._feature_of, self._columns, self._features)]
        self._model = _Model(*places_of, len(lookups), len(features), ends[-1])
        self._place = ctypes.addressof(self._model)
        self._call = lookup.direct
        self._num_features, self._width, self._dense_dim, self._weighted = len(features), ends[-1], schema.dense_dim, schema.has_weights

    @classmethod
    def of(cls, schema: ModelSchema, lookup: LookupBackend, mapped: Collection[str]) -> Self | None:
        """A reader for a model; None where it takes the long way always.

        Args:
            schema: the model's description.
            lookup: has its tables.
            mapped: the tables whose ids are raw.
        """
        if not isinstance(lookup, NativeLookup) or not lookup.in_memory or schema.sequences or schema.streams:
            return None
        if not 0 < len(schema.lookups) <= MOST_READS or any(read.table in mapped for read in schema.reads):
            return None
        return cls(schema, lookup)

    def __call__(self, request: PackedRequest) -> dict[str, Tensor] | None:
        """The inputs that `program_inputs` lists; None where the request must go the long way."""
        ids, lengths, weights, dense = request.ids, request.lengths, request.weights, request.dense
        if not _is_plain(ids, _INT64) or not _is_plain(lengths, _INT32) or _has_more(request):
            return None
        num_rows, rest = divmod(lengths.size, self._num_features)
        if rest or not num_rows or ids.size > MOST_IDS or lengths.size + self._num_features > MOST_OFFSETS:
            return None
        if weights is not None and not (self._weighted and _is_plain(weights, _FLOAT32) and weights.size == ids.size):
            return None
        if dense is None:
            dense = _NO_NUMBERS
        if not _is_plain(dense, _FLOAT32) or dense.size != num_rows * self._dense_dim:
            return None
        pooled = torch.empty(num_rows, self._width)
        heavy = None if weights is None else weights.tobytes()
        given = (self._place, ids.tobytes(), ids.size, lengths.tobytes(), num_rows, heavy, dense.tobytes(), dense.size, pooled.data_ptr())
        if not self._call(*given):
            return None
        return {"pooled": pooled, "dense": tensor(dense, _CPU).view(num_rows, self._dense_dim)}


def _is_plain(array: npt.NDArray[Any] | None, dtype: np.dtype[Any]) -> TypeGuard[npt.NDArray[Any]]:
    """Whether it is [n] of a type, without gaps; arrays of other classes (masked ones) may mean something else by their memory."""
    return type(array) is np.ndarray and array.dtype == dtype and array.ndim == 1 and array.flags.c_contiguous


def _has_more(request: PackedRequest) -> bool:
    """Whether it tells of steps or users."""
    if isinstance(request, CheckedRequest):
        return request.tile is not None or bool(request.steps.size)
    return not (
        request.rows_per_user is None
        and request.user_dense is None
        and request.steps is None
        and request.step_lengths is None
        and request.dense_steps is None
    )
