"""Requests that a model must answer whatever it was trained on: empty, single, unknown, extreme and large ones, made from its schema.

Letters: B rows, N ids.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emberline.encoding import DenseSteps, EncodedColumns, Jagged, JaggedSteps
from emberline.schema import FeatureKind, FeatureSpec, ModelSchema, TableKind
from emberline.serving.remap import RemapParts

ODD_RAW_IDS = (5, 499, 500, 995, -5, 2**63 - 1, 2**63 - 2, -(2**63), -1, 0)
"""Raw ids that were answered wrongly elsewhere: never trained, at the edges of int64, or equal to the marker of a free row."""

_MOST_ITEMS = 200
_MOST_IDS_A_STEP = 4
_KNOWN_ROWS = 512
Ids = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Case:
    """One request: what the parity gate calls it, and its encoded columns."""

    name: str
    encoded: EncodedColumns


def odd_cases(schema: ModelSchema, known_ids: Mapping[str, Ids], fallback_starts: Mapping[str, Ids], seed: int = 0) -> list[Case]:
    """The cases for one model, the same ones for the same arguments.

    Args:
        schema: the model's.
        known_ids: by table with raw ids: the raw ids that own a row.
        fallback_starts: by the same tables: where each range of ids with a fallback row of its own begins.
        seed: of what is drawn.
    """
    return _CaseMaker(schema, known_ids, fallback_starts, np.random.default_rng(seed)).make()


def single_id(schema: ModelSchema, feature: FeatureSpec, one: int) -> EncodedColumns:
    """One row whose only id is `one` of `feature`; what stands beside a sequence has a step without ids, or of zeros."""
    mates = {name for stream in schema.streams if feature.name in stream.features for name in stream.features} | {feature.name}
    encoded = EncodedColumns(1, {}, {})
    for other in schema.features:
        ids = np.array([one] if other is feature else [], np.int64)
        weights = np.ones(ids.size, np.float32) if other.weighted else None
        steps = np.array([int(other.name in mates)], np.int32)
        if other.kind is FeatureKind.DENSE and other.sequence:
            encoded.dense_sequences[other.name] = DenseSteps(np.zeros((int(steps[0]), other.value_dim), np.float32), steps)
        elif other.kind is FeatureKind.DENSE:
            encoded.dense[other.name] = np.zeros((1, other.value_dim), np.float32)
        elif other.sequence:
            encoded.sparse_sequences[other.name] = JaggedSteps(ids, np.full(int(steps[0]), ids.size, np.int32), steps, weights)
        else:
            encoded.sparse[other.name] = Jagged(ids, np.array([ids.size], np.int32), weights)
    return encoded


def odd_cases_of(schema: ModelSchema, remaps: Mapping[str, RemapParts], seed: int = 0) -> list[Case]:
    """As `odd_cases`, of a model whose raw ids have these maps, by table."""
    known = {table: parts.raw_ids.numpy() for table, parts in remaps.items()}
    starts = {table: parts.fallback_starts.numpy() for table, parts in remaps.items()}
    return odd_cases(schema, known, starts, seed)


Lengths = Callable[["_Unit", int], Sequence[int] | npt.NDArray[np.int64]]
"""From features that have equally many items in each row, and B, to items of each row: ids, or steps of sequences."""


@dataclass(frozen=True)
class _Unit:
    """Features with equally many items in each row: one feature, or a stream.

    Args:
        name: of the first.
        most: items of a row.
    """

    name: str
    most: int


class _CaseMaker:
    """Draws bags and steps for each feature."""

    def __init__(self, schema: ModelSchema, known_ids: Mapping[str, Ids], fallback_starts: Mapping[str, Ids], rng: np.random.Generator) -> None:
        self._schema = schema
        self._rng = rng
        self._pools = {feature.name: _Pool(schema, feature, known_ids, fallback_starts) for feature in schema.sparse_features}
        self._units = _units(schema)

    def make(self) -> list[Case]:
        edges = max((len(pool.edges) for pool in self._pools.values()), default=1)
        first = next(iter(self._units.values()), None)
        cases = [
            self._case("no rows", 0, lambda unit, rows: []),
            self._case("one row, all bags empty", 1, lambda unit, rows: [0]),
            self._case("all bags empty", 3, lambda unit, rows: [0] * rows),
            self._case("one id in all", 2, lambda unit, rows: [0, int(unit is first)]),
            self._case("edge ids", edges, lambda unit, rows: [1] * rows, edges=True),
            self._case("known ids", _KNOWN_ROWS, lambda unit, rows: [1] * rows),
            self._case("mixed lengths", 7, lambda unit, rows: self._rng.integers(0, min(5, unit.most + 1), rows)),
            self._case("maximal lengths", 4, lambda unit, rows: [unit.most] * rows),
            self._case("one long bag", 3, lambda unit, rows: [0, unit.most, 0]),
        ]
        if self._schema.sparse_sequences:
            cases.append(self._case("steps of several ids and of none", 9, _in_turn, several=True))
        if self._schema.has_weights:
            for name, values in (("zero weights", (0.0,)), ("negative weights", (-1.5, -0.5)), ("weights that add up to zero", (1.0, -1.0))):
                cases.append(self._case(name, 3, lambda unit, rows: [min(2, unit.most)] * rows, weights=values))
        return cases

    def _case(self, name: str, rows: int, lengths: Lengths, *, edges: bool = False, several: bool = False, weights: Sequence[float] = ()) -> Case:
        counts = {unit.name: np.asarray(lengths(unit, rows), dtype=np.int32) for unit in dict.fromkeys(self._units.values())}
        encoded = EncodedColumns(rows, {}, {})
        for feature in self._schema.features:
            own = counts[self._units[feature.name].name]
            if feature.kind is FeatureKind.DENSE and feature.sequence:
                encoded.dense_sequences[feature.name] = DenseSteps(self._numbers(feature, int(own.sum())), own)
            elif feature.kind is FeatureKind.DENSE:
                encoded.dense[feature.name] = self._numbers(feature, rows)
            elif feature.sequence:
                sizes = self._sizes(feature, int(own.sum()), several=several)
                ids = self._ids(feature, int(sizes.sum()), edges=edges)
                encoded.sparse_sequences[feature.name] = JaggedSteps(ids, sizes, own, self._weights(feature, ids.size, weights))
            else:
                ids = self._ids(feature, int(own.sum()), edges=edges)
                encoded.sparse[feature.name] = Jagged(ids, own, self._weights(feature, ids.size, weights))
        return Case(name, encoded)

    def _ids(self, feature: FeatureSpec, total: int, *, edges: bool) -> Ids:
        pool = self._pools[feature.name]
        return np.resize(pool.edges, total) if edges else pool.draw(self._rng, total)

    def _sizes(self, feature: FeatureSpec, steps: int, *, several: bool) -> Counts:
        """Ids of each step."""
        if not several:
            return np.ones(steps, np.int32)
        return (np.arange(steps) % ((feature.value_dim or _MOST_IDS_A_STEP) + 1)).astype(np.int32)

    def _weights(self, feature: FeatureSpec, total: int, values: Sequence[float]) -> npt.NDArray[np.float32] | None:
        if not feature.weighted:
            return None
        return np.resize(np.asarray(values, np.float32), total) if values else self._rng.uniform(0.1, 2, total).astype(np.float32)

    def _numbers(self, feature: FeatureSpec, rows: int) -> npt.NDArray[np.float32]:
        values = self._rng.normal(0, 2, (rows, feature.value_dim)).astype(np.float32)
        values[::3] = 0
        return values


def _in_turn(unit: _Unit, rows: int) -> list[int]:
    """No item, one, two and three, again and again."""
    return [row % min(4, unit.most + 1) for row in range(rows)]


def _units(schema: ModelSchema) -> dict[str, _Unit]:
    """The unit of each feature, in the order of features, those with ids first."""
    streams = {name: stream.features for stream in schema.streams for name in stream.features}
    features = {feature.name: feature for feature in (*schema.sparse_features, *schema.features)}
    made: dict[tuple[str, ...], _Unit] = {}
    for feature in features.values():
        names = streams.get(feature.name, (feature.name,))
        if names not in made:
            limits = [_most_items(features[name]) for name in names]
            made[names] = _Unit(names[0], min(limits))
    return {name: made[streams.get(name, (name,))] for name in features}


def _most_items(feature: FeatureSpec) -> int:
    """Ids of a row, or steps of a sequence."""
    return (feature.sequence_length if feature.sequence else feature.value_dim) or _MOST_ITEMS


class _Pool:
    """The ids that one feature may be asked for: `edges` int64 [E], tried one by one, and draws from all of them."""

    def __init__(self, schema: ModelSchema, feature: FeatureSpec, known_ids: Mapping[str, Ids], fallback_starts: Mapping[str, Ids]) -> None:
        tables = {table.name: table for table in schema.tables}
        read = [tables[lookup.table] for lookup in schema.reads if lookup.feature == feature.name]
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
