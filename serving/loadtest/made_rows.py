"""Raw rows as they might come, made from a model's description: ids by Zipf's law, words of the vocabulary, numbers in their usual range."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from emberline.schema import (
    BoundaryEncoder,
    BucketEncoder,
    CrossEncoder,
    Encoder,
    ExprEncoder,
    FeatureKind,
    FeatureSpec,
    HashEncoder,
    LookupEncoder,
    MatchEncoder,
    ModelSchema,
    Normalizer,
    NumericEncoder,
    RawIdEncoder,
    UnknownIds,
    VocabEncoder,
)

_ZIPF = 1.1
_SPACE = 1_000_000
"""Different ids of what is crossed or hashed, where nothing tells of another number."""
_FIRST_STRANGE = 1 << 62
"""Unknown ids are drawn from here on."""
_MOST_IDS, _MOST_STEPS, _MOST_ENTRIES = 4, 20, 4
Row = dict[str, Any]
Draw = Callable[[], Any]


class RowMaker:
    """Makes rows for one model; the same ones from the same seed.

    Zero-collision and dynamic tables get the ids 0, 1, 2 and so on, small ones most often: a server cannot be asked which it knows.

    Args:
        schema: the model's description.
        unknown_share: of the ids of tables that know raw ids, and of words, so many are none that the model has seen.
        seed: of chance.
    """

    def __init__(self, schema: ModelSchema, *, unknown_share: float = 0.05, seed: int = 0) -> None:
        self._source = random.Random(seed)
        self._unknown_share = unknown_share
        rows = {table.name: table.rows for table in schema.tables}
        self._rows = {read.feature: rows[read.table] for read in schema.reads}
        lengths = [feature.sequence_length for feature in schema.sequences if feature.sequence_length]
        self._most_steps = min([_MOST_STEPS, *lengths])
        self._columns = self._plan(schema)

    def make(self, count: int) -> list[Row]:
        """So many rows, with a value for each column."""
        return [self._row() for _ in range(count)]

    def _row(self) -> Row:
        steps = self._below(self._most_steps) + 1
        return {column: [draw() for _ in range(steps)] if in_steps else draw() for column, (draw, in_steps) in self._columns.items()}

    def _plan(self, schema: ModelSchema) -> Mapping[str, tuple[Draw, bool]]:
        """How each column's values are drawn, and whether it has steps; features of one column, which say most of it, come first."""
        found: dict[str, tuple[Draw, bool]] = {}
        for feature in sorted(schema.features, key=lambda feature: len(feature.columns)):
            for place, column in enumerate(feature.columns):
                found.setdefault(column, (self._draw(feature, place), feature.sequence and column not in feature.row_columns))
        return {column: found[column] for feature in schema.features for column in feature.columns}

    def _draw(self, feature: FeatureSpec, place: int) -> Draw:
        """What draws a row's value, or a step's, of one column of a feature."""
        encoder = feature.encoder
        if isinstance(encoder, ExprEncoder):
            return lambda: self._source.random()
        if isinstance(encoder, CrossEncoder):
            return lambda: self._ranked(_SPACE)
        if isinstance(encoder, LookupEncoder):
            return self._map(encoder.inner) if place == 0 else self._key
        if isinstance(encoder, MatchEncoder):
            return (lambda: {str(self._key()): self._map(encoder.inner)() for _ in range(_MOST_ENTRIES)}) if place == 0 else self._key
        one = self._one(feature, encoder)
        if feature.kind is FeatureKind.DENSE:
            return one if feature.value_dim == 1 else lambda: [one() for _ in range(feature.value_dim)]
        most = min(feature.value_dim or _MOST_IDS, _MOST_IDS)
        if feature.weighted:
            return lambda: {str(one()): round(self._source.random(), 3) for _ in range(self._below(most) + 1)}
        return one if most == 1 else lambda: [one() for _ in range(self._below(most) + 1)]

    def _one(self, feature: FeatureSpec, encoder: Encoder) -> Draw:
        rows = self._rows.get(feature.name, _SPACE)
        unknown_share = 0.0 if feature.unknown_ids is UnknownIds.ERROR else self._unknown_share
        if feature.encoded:
            return lambda: self._ranked(rows)
        if isinstance(encoder, RawIdEncoder):
            return lambda: self._strange() if self._source.random() < unknown_share else self._ranked(rows)
        if isinstance(encoder, VocabEncoder):
            words = encoder.words
            return lambda: f"word {self._strange()}" if not words or self._source.random() < unknown_share else words[self._ranked(len(words))]
        if isinstance(encoder, BucketEncoder):
            return lambda: self._ranked(encoder.rows)
        if isinstance(encoder, HashEncoder):
            return lambda: self._ranked(10 * encoder.rows)
        if isinstance(encoder, BoundaryEncoder | NumericEncoder):
            return self._number(encoder)
        raise AssertionError(encoder)

    def _number(self, encoder: BoundaryEncoder | NumericEncoder) -> Draw:
        if encoder.normalizer is not None:
            normalizer = encoder.normalizer
            return lambda: _denormalize(normalizer, self._source.gauss(0.0, 1.0))
        if isinstance(encoder, BoundaryEncoder) and encoder.boundaries:
            low, high = encoder.boundaries[0], encoder.boundaries[-1]
            margin = (high - low) / len(encoder.boundaries) or 1.0
            return lambda: self._source.uniform(low - margin, high + margin)
        return lambda: self._source.gauss(0.0, 1.0)

    def _map(self, inner: Encoder) -> Draw:
        """Maps of a few keys, to numbers: every inner encoder takes such."""
        is_number = isinstance(inner, BoundaryEncoder | NumericEncoder)
        rows = inner.rows if isinstance(inner, BucketEncoder) else _SPACE
        return lambda: {str(self._key()): self._source.random() if is_number else self._ranked(rows) for _ in range(_MOST_ENTRIES)}

    def _key(self) -> str:
        """Few of them, so that keys are found in maps."""
        return str(self._below(2 * _MOST_ENTRIES))

    def _strange(self) -> int:
        return self._source.randrange(_FIRST_STRANGE, 2**63 - 1)

    def _below(self, end: int) -> int:
        return self._source.randrange(end)

    def _ranked(self, count: int) -> int:
        """A number below `count` by Zipf's law, 0 most often: the inverse of its distribution, taken as continuous."""
        span = (count + 1.0) ** (1 - _ZIPF) - 1
        return min(int((1 + self._source.random() * span) ** (1 / (1 - _ZIPF))) - 1, count - 1)


def _denormalize(normalizer: Normalizer, drawn: float) -> float:
    """A raw number that the normaliser makes a usual one of, from one of the standard normal distribution."""
    numbers = dict(normalizer.parameters)
    if normalizer.method == "zscore":
        return numbers["mean"] + numbers["std"] * drawn
    if normalizer.method == "minmax":
        return numbers["low"] + (numbers["high"] - numbers["low"]) * min(abs(drawn) / 3, 1.0)
    return float(10.0 ** min(drawn, 6.0))
