"""Requests that a model must answer whatever it was trained on: empty, single, unknown, extreme and large ones, made from its schema.

Letters: B rows, N ids.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emberline.encoding import EncodedColumns, Jagged
from emberline.schema import FeatureSpec, ModelSchema, TableKind

ODD_RAW_IDS = (5, 499, 500, 995, -5, 2**63 - 1, 2**63 - 2, -(2**63), -1, 0)
"""Raw ids that were answered wrongly elsewhere: never trained, at the edges of int64, or equal to the marker of a free row."""

_MOST_IDS = 200
_KNOWN_ROWS = 512
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """One request: what the parity gate calls it, and its encoded columns."""

    name: str
    encoded: EncodedColumns


def odd_cases(schema: ModelSchema, known_ids: Mapping[str, Ids], fallback_starts: Mapping[str, Ids], seed: int = 0) -> list[Case]:
    """The cases for one model, the same ones for the same arguments.

    Args:
        schema: the model's.
        known_ids: by ZCH table: the raw ids that own a row.
        fallback_starts: by ZCH table: where each range of ids with a fallback row of its own begins.
        seed: of what is drawn.
    """
    return _CaseMaker(schema, known_ids, fallback_starts, np.random.default_rng(seed)).make()


class _CaseMaker:
    """Draws bags for each feature."""

    def __init__(self, schema: ModelSchema, known_ids: Mapping[str, Ids], fallback_starts: Mapping[str, Ids], rng: np.random.Generator) -> None:
        self._schema = schema
        self._rng = rng
        self._pools = {feature.name: _Pool(schema, feature, known_ids, fallback_starts) for feature in schema.sparse_features}

    def make(self) -> list[Case]:
        edges = max((len(pool.edges) for pool in self._pools.values()), default=1)
        cases = [
            self._case("no rows", 0, lambda feature, rows: []),
            self._case("one row, all bags empty", 1, lambda feature, rows: [0]),
            self._case("all bags empty", 3, lambda feature, rows: [0] * rows),
            self._case("one id in all", 2, lambda feature, rows: [0, int(feature is self._schema.sparse_features[0])]),
            self._case("edge ids", edges, lambda feature, rows: [1] * rows, edges=True),
            self._case("known ids", _KNOWN_ROWS, lambda feature, rows: [1] * rows),
            self._case("mixed lengths", 7, lambda feature, rows: self._rng.integers(0, min(5, _most_ids(feature) + 1), rows)),
            self._case("maximal lengths", 4, lambda feature, rows: [_most_ids(feature)] * rows),
            self._case("one long bag", 3, lambda feature, rows: [0, _most_ids(feature), 0]),
        ]
        if self._schema.has_weights:
            for name, values in (("zero weights", (0.0,)), ("negative weights", (-1.5, -0.5)), ("weights that add up to zero", (1.0, -1.0))):
                cases.append(self._case(name, 3, lambda feature, rows: [min(2, _most_ids(feature))] * rows, weights=values))
        return cases

    def _case(
        self,
        name: str,
        rows: int,
        lengths: Callable[[FeatureSpec, int], Sequence[int] | npt.NDArray[np.int64]],
        *,
        edges: bool = False,
        weights: Sequence[float] = (),
    ) -> Case:
        sparse = {}
        for feature in self._schema.sparse_features:
            counts = np.asarray(lengths(feature, rows), dtype=np.int32)
            pool, total = self._pools[feature.name], int(counts.sum())
            ids = np.resize(pool.edges, total) if edges else pool.draw(self._rng, total)
            sparse[feature.name] = Jagged(ids, counts, self._weights(feature, total, weights))
        dense = {feature.name: self._dense(feature, rows) for feature in self._schema.dense_features}
        return Case(name, EncodedColumns(rows, sparse, dense))

    def _weights(self, feature: FeatureSpec, total: int, values: Sequence[float]) -> npt.NDArray[np.float32] | None:
        if not feature.weighted:
            return None
        return np.resize(np.asarray(values, np.float32), total) if values else self._rng.uniform(0.1, 2, total).astype(np.float32)

    def _dense(self, feature: FeatureSpec, rows: int) -> npt.NDArray[np.float32]:
        values = self._rng.normal(0, 2, (rows, feature.value_dim)).astype(np.float32)
        values[::3] = 0
        return values


class _Pool:
    """The ids that one feature may be asked for: `edges` int64 [E], tried one by one, and draws from all of them."""

    def __init__(self, schema: ModelSchema, feature: FeatureSpec, known_ids: Mapping[str, Ids], fallback_starts: Mapping[str, Ids]) -> None:
        tables = {table.name: table for table in schema.tables}
        read = [tables[lookup.table] for lookup in schema.lookups if lookup.feature == feature.name]
        rows = [table.rows for table in read if table.kind is TableKind.STATIC]
        rows += [encoder_rows] if (encoder_rows := getattr(feature.encoder, "rows", 0)) else []
        raw = [table.name for table in read if table.kind is not TableKind.STATIC]
        self._rows = min(rows) if rows else None
        self._known = np.unique(np.concatenate([known_ids[name] for name in raw])) if raw else np.empty(0, np.int64)
        self.edges: Ids
        if self._rows is not None:
            self.edges = np.array([0, self._rows - 1], np.int64)
        else:
            starts = [start for name in raw for start in fallback_starts[name].tolist()]
            before = [start - 1 for start in starts if start > -(2**63)]
            ends = [*self._known[:1].tolist(), *self._known[-1:].tolist()]
            self.edges = np.array(list(dict.fromkeys([*ODD_RAW_IDS, *starts, *before, *ends])), np.int64)

    def draw(self, rng: np.random.Generator, count: int) -> Ids:
        if self._rows is not None:
            return rng.integers(0, self._rows, count)
        drawn: Ids = rng.integers(-(2**63), 2**63 - 1, count, dtype=np.int64, endpoint=True)
        if self._known.size:
            known = rng.random(count) < 0.75
            drawn[known] = rng.choice(self._known, int(known.sum()))
        return drawn


def _most_ids(feature: FeatureSpec) -> int:
    return feature.value_dim or _MOST_IDS
