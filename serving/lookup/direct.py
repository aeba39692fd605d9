"""Requests straight from their arrays to looked-up rows, many by one call of `requests.c`: it checks, maps raw ids, looks up and pools.

Whatever a request has that is out of the ordinary (another type or shape, a mistake, an id that the model refuses) is left to the long way, which
gives the same answers, and names what is wrong.
"""

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from emberline.compiled import Kernel
from emberline.schema import ModelSchema, UnknownIds
from emberline.serving.lookup.backend import LookupBackend
from emberline.serving.lookup.layout import Layout
from emberline.serving.lookup.native import IDS_PER_THREAD, NativeLookup, ReadOfTable, compiler_flags
from emberline.serving.lookup.rows import RowFinder
from emberline.serving.overlaid_rows import OverlaidRows
from emberline.serving.packed_request import PackedRequest
from emberline.serving.remap import FallbackRows, HashedRemap, RemapIndex, native
from emberline.serving.remap.hashed import IDS_PER_THREAD as MAPPED_PER_THREAD
from emberline.serving.request_rows import id_bounds, most_ids

_ADDRESS, _INT64, _UINT64, _INT32, _OBJECT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int32, ctypes.py_object
_Structure = TypeVar("_Structure", bound=ctypes.Structure)
_READ_FALLBACK, _REFUSE, _ASK = range(3)
_NAMES = ("ids", "lengths", "weights", "dense", "steps", "step_lengths", "dense_steps", "rows_per_user", "user_dense")
"""A request's arrays in the order of `requests.c`: plain requests have the first four."""


class _Feature(ctypes.Structure):
    """`Feature` of `requests.c`."""

    _fields_ = (("bound", _UINT64), ("most", _INT64), ("oov", _INT64))


class _Map(ctypes.Structure):
    """`Map` of `requests.c`."""

    _fields_ = (
        ("lines", _ADDRESS),
        ("num_homes", _UINT64),
        ("seed", _UINT64),
        ("fallback", _INT64),
        ("rows_of", _OBJECT),
        ("feature", _INT32),
        ("unknown", _INT32),
    )


class _Place(ctypes.Structure):
    """`Place` of `requests.c`."""

    _fields_ = (("feature", _INT32), ("map", _INT32), ("column", _INT32))


class _Piece(ctypes.Structure):
    """`Piece` of `requests.c`."""

    _fields_ = (("first", _INT32), ("count", _INT32), ("column", _INT32))


class _Overlay(ctypes.Structure):
    """`Overlay` of `requests.c`."""

    _fields_ = (
        *((name, _ADDRESS) for name in ("base", "rows", "marks", "places")),
        *((name, _INT64) for name in ("num_rows", "num_changed", "base_pitch", "pitch", "row_bytes")),
        ("read", _INT32),
    )


class _Model(ctypes.Structure):
    """`Model` of `requests.c`."""

    _fields_ = (
        *((name, _ADDRESS) for name in ("pool", "remap", "reads", "places", "features", "maps", "pieces", "overlays", "apart")),
        *((name, _INT64) for name in ("read_bytes", "rows_at", "num_rows_at")),
        *((name, _INT32) for name in ("num_overlays", "num_reads", "num_features", "num_maps", "num_pieces", "most_maps", "takes_weights", "unused")),
        *((name, _INT64) for name in ("width", "dense_dim", "ids_per_thread", "mapped_per_thread")),
        *((name, _OBJECT) for name in ("array_type", "none", "empty", "num_threads", "data_ptr", "width_number", "dense_number")),
        *((f"name_{name}", _OBJECT) for name in _NAMES),
    )


def _declare(library: ctypes.CDLL) -> None:
    """Its one function is called by `_function_of` alone: with Python's lock."""


def _function_of(library: ctypes.CDLL, model: _Model, kept: Sequence[object]) -> Any:
    """The function that answers requests for a model, which keeps what it needs."""
    make = ctypes.PYFUNCTYPE(_OBJECT, _OBJECT)(("emberline_requests", library))
    return make((ctypes.addressof(model), model, *kept))


KERNEL = Kernel(
    Path(__file__).with_name("requests.c"),
    _declare,
    stand_in="numpy and torch",
    without="small requests are checked and cut by numpy, which is slower",
    flags=compiler_flags,
)


class Found(NamedTuple):
    """What one call found.

    Args:
        answers: float32 [B, width], of all requests that were answered, one after the other, and unused rows behind them; or by request, None for
            those that were not.
        dense: float32 [B, D] of all that were answered, as `answers`, where they are together and the model has any; else None.
        num_rows: of each request; -1 for one that must go the long way.
        counts: of each of `DirectReader.tables`: ids asked for, and those without a row of their own, one after the other.
    """

    answers: Any
    dense: Tensor | None
    num_rows: tuple[int, ...]
    counts: tuple[int, ...]


class DirectReader:
    """Reads requests for one model; any number of threads may use it.

    Make one with `DirectReader.of`.

    Attributes:
        tables: the table of each map of raw ids that requests are counted for.
    """

    def __init__(self, schema: ModelSchema, lookup: NativeLookup, finder: RowFinder, layout: Layout, library: ctypes.CDLL) -> None:
        self.tables = tuple(table for _, table, _ in finder.reads)
        features = _array(_Feature, _features_of(schema))
        maps = _array(_Map, [_map_of(schema, feature, remap) for feature, _, remap in finder.reads])
        places, pieces = _array(_Place, _places_of(schema, finder, layout)), _array(_Piece, [_Piece(*piece) for piece in layout.pieces])
        reads = [schema.lookups[place] for place, _ in layout.reads]
        described, apart = lookup.describe(reads), lookup.describe(reads, apart=True)
        overlaid = [(place, rows) for place, read in enumerate(reads) if (rows := lookup.overlaid(read.table)) is not None]
        overlays = _array(_Overlay, [_overlay_of(place, rows, described[place], apart[place]) for place, rows in overlaid])
        per_feature = [feature for feature, _, _ in finder.reads]
        remap_library = native.KERNEL.get()
        fields: Any = ReadOfTable
        model = _Model(
            pool=lookup.pool_address,
            remap=0 if remap_library is None else ctypes.cast(remap_library.emberline_remap_lookup, _ADDRESS).value,
            reads=ctypes.addressof(described),
            places=ctypes.addressof(places),
            features=ctypes.addressof(features),
            maps=ctypes.addressof(maps),
            pieces=ctypes.addressof(pieces),
            overlays=ctypes.addressof(overlays),
            apart=ctypes.addressof(apart),
            read_bytes=ctypes.sizeof(ReadOfTable),
            rows_at=fields.rows.offset,
            num_rows_at=fields.num_rows.offset,
            num_overlays=len(overlays),
            num_reads=len(places),
            num_features=len(features),
            num_maps=len(maps),
            num_pieces=len(pieces),
            most_maps=max(map(per_feature.count, per_feature), default=0),
            takes_weights=schema.has_weights,
            width=layout.width,
            dense_dim=schema.dense_dim,
            ids_per_thread=IDS_PER_THREAD,
            mapped_per_thread=MAPPED_PER_THREAD,
            array_type=np.ndarray,
            none=None,
            empty=torch.empty(0, dtype=torch.float32, device="cpu").new_empty,  # as fast as `torch.empty`, and deaf to its defaults
            num_threads=torch.get_num_threads,
            data_ptr="data_ptr",
            width_number=layout.width,
            dense_number=schema.dense_dim,
            **{f"name_{name}": name for name in _NAMES},
        )
        self._call = _function_of(library, model, (described, apart, overlays, places, features, maps, pieces, lookup, finder))

    @classmethod
    def of(cls, schema: ModelSchema, lookup: LookupBackend, finder: RowFinder, layout: Layout) -> Self | None:
        """A reader for a model; None where it takes the long way always.

        Args:
            schema: the model's description.
            lookup: has its tables.
            finder: has its maps of raw ids.
            layout: of the answers.
        """
        if not isinstance(lookup, NativeLookup) or not lookup.in_memory or schema.sequences or schema.streams or not schema.lookups:
            return None
        if (finder.reads and native.KERNEL.get() is None) or not all(isinstance(remap, HashedRemap) for _, _, remap in finder.reads):
            return None
        library = KERNEL.get()
        return None if library is None else cls(schema, lookup, finder, layout, library)

    def by_request(self, requests: Sequence[PackedRequest]) -> Found:
        """The answers of each request by itself."""
        return Found._make(self._call(requests, 0))

    def together(self, requests: Sequence[PackedRequest]) -> Found:
        """The answers of all of them, one after the other."""
        return Found._make(self._call(requests, 1))


def _array(kind: type[_Structure], items: Sequence[_Structure]) -> "ctypes.Array[_Structure]":
    return (kind * len(items))(*items)


def _features_of(schema: ModelSchema) -> list[_Feature]:
    oov_rows = (getattr(feature.encoder, "oov_row", None) for feature in schema.sparse_features)
    told = zip(id_bounds(schema), map(most_ids, schema.sparse_features), oov_rows, strict=True)
    return [_Feature(bound, most, -1 if row is None else row) for bound, most, row in told]


def _places_of(schema: ModelSchema, finder: RowFinder, layout: Layout) -> list[_Place]:
    order = {feature.name: place for place, feature in enumerate(schema.sparse_features)}
    maps = {(feature, table): place for place, (feature, table, _) in enumerate(finder.reads)}
    reads = ((schema.lookups[place], column) for place, column in layout.reads)
    return [_Place(order[read.feature], maps.get((order[read.feature], read.table), -1), column) for read, column in reads]


def _overlay_of(read: int, rows: OverlaidRows, base: ReadOfTable, apart: ReadOfTable) -> _Overlay:
    """What changed of the table that a lookup reads."""
    return _Overlay(
        base=base.rows,
        rows=rows.rows.data_ptr(),
        marks=rows.marks.data_ptr(),
        places=rows.places.data_ptr(),
        num_rows=base.num_rows,
        num_changed=rows.places.numel(),
        base_pitch=base.pitch,
        pitch=apart.pitch,
        row_bytes=base.row_bytes,
        read=read,
    )


def _map_of(schema: ModelSchema, feature: int, remap: RemapIndex) -> _Map:
    assert isinstance(remap, HashedRemap)
    unknown = _READ_FALLBACK if remap.fallback.same_for_all else _ASK
    if schema.sparse_features[feature].unknown_ids is UnknownIds.ERROR:
        unknown = _REFUSE
    return _Map(remap.lines.data_ptr(), remap.num_homes, remap.seed, remap.fallback.first, _RowsOf(remap.fallback), feature, unknown)


class _RowsOf:
    """Fallback rows as bytes, for `requests.c`."""

    def __init__(self, fallback: FallbackRows) -> None:
        self._fallback = fallback

    def __call__(self, ids: bytes) -> bytes:
        return self._fallback(torch.frombuffer(bytearray(ids), dtype=torch.int64)).numpy().tobytes()


if __name__ == "__main__":
    sys.exit(KERNEL.main())
