"""Features that are computed from several columns: their values as one column, which an inner feature then reads."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from emberline.encoding.columns import Column, StepColumn
from emberline.encoding.evaluate import expression_column
from emberline.encoding.expression import parse_expression
from emberline.encoding.lookup import lookup_column, match_column, read_entries
from emberline.encoding.maps import Entries, map_column
from emberline.encoding.rows import column_from_values
from emberline.encoding.texts import Ints
from emberline.errors import RequestError
from emberline.schema import BoundaryEncoder, Combiner, ExprEncoder, FeatureSpec, LookupEncoder, MatchEncoder, NumericEncoder

Raw = Column | StepColumn | list[object]
"""A raw column before it is known what reads it: Python values, one a row, stay as they are until then."""


def inner_feature(feature: FeatureSpec) -> FeatureSpec:
    """What reads the values of a computed feature; other features read their own.

    Raises:
        ValueError: the encoder cannot be: a wrong expression, another number of columns than it reads, or settings that exclude each other.
    """
    encoder = feature.encoder
    if isinstance(encoder, ExprEncoder):
        if len(encoder.variables) != len(feature.columns):
            raise ValueError(f"{len(encoder.variables)} variables, but {len(feature.columns)} columns")
        parse_expression(encoder.expression, encoder.variables)
        return replace(feature, encoder=encoder.inner, columns=feature.columns[:1])
    if not isinstance(encoder, LookupEncoder | MatchEncoder):
        return feature
    shown = encoder.with_key if isinstance(encoder, LookupEncoder) else encoder.with_outer or encoder.with_inner
    num_columns = 2 if isinstance(encoder, LookupEncoder) else 3 - encoder.any_outer - encoder.any_inner
    if len(feature.columns) != num_columns:
        raise ValueError(f"reads {num_columns} columns, found {len(feature.columns)}")
    reads_numbers = isinstance(encoder.inner, BoundaryEncoder | NumericEncoder)
    if shown and reads_numbers:
        raise ValueError("a value with its key is no number")
    if encoder.combiner is not Combiner.NONE and not reads_numbers:
        raise ValueError(f"{encoder.combiner} is for numbers, not for ids")
    separator = encoder.value_separator if isinstance(encoder, LookupEncoder) else ""
    return replace(feature, encoder=encoder.inner, columns=feature.columns[:1], separator=separator)


def is_map(feature: FeatureSpec, number: int) -> bool:
    """Whether the feature reads its column `number` as a map."""
    return number == 0 and isinstance(feature.encoder, LookupEncoder | MatchEncoder)


def read_rows(feature: FeatureSpec, number: int, raw: Raw) -> Column:
    """The raw column `number` of a feature as it reads it.

    Raises:
        RequestError: what is no value; names feature and row.
    """
    if isinstance(raw, StepColumn):
        name = feature.columns[number]
        raise RequestError(f"column {name!r} holds lists of lists, or of maps, which only the steps of a sequence are", feature=feature.name)
    if isinstance(raw, Column):
        return raw
    return map_column(feature.name, raw) if is_map(feature, number) else column_from_values(feature.name, raw)


def derive(
    feature: FeatureSpec, inner: FeatureSpec, columns: Sequence[Column], entries: Entries | None = None, map_rows: Ints | None = None
) -> list[Column]:
    """The columns that the inner feature reads.

    Args:
        feature: a feature that is not encoded already.
        inner: `inner_feature` of it.
        columns: of B rows each; without the maps, where `entries` has them.
        entries: of maps that have other rows.
        map_rows: int64 [B], the row of the map that belongs to each row.

    Raises:
        RequestError: names feature and row.
    """
    encoder = feature.encoder
    if isinstance(encoder, ExprEncoder):
        return [expression_column(feature, encoder, columns, parse_expression(encoder.expression, encoder.variables))]
    if not isinstance(encoder, LookupEncoder | MatchEncoder):
        return list(columns)
    if entries is None or map_rows is None:
        maps, *columns = columns
        entries, map_rows = read_entries(feature, maps), np.arange(maps.num_rows)
    if isinstance(encoder, LookupEncoder):
        return [lookup_column(feature, inner, entries, columns[0], map_rows)]
    return [match_column(feature, inner, entries, columns, map_rows)]
