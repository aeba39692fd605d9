"""Lookup and match features: what a map holds for a row's keys, as a raw column that the inner encoder then reads."""

from collections.abc import Sequence

import numpy as np

from emberline.encoding.columns import Column, rows_at, sums
from emberline.encoding.decimal import Floats, integers_to_texts
from emberline.encoding.ids import combinations
from emberline.encoding.maps import Entries, find_entries, map_entries, nested_entries, take_tokens
from emberline.encoding.texts import Ints, Texts, join_texts
from emberline.encoding.tokens import Tokens, id_tokens, number_items
from emberline.errors import RequestError
from emberline.schema import Combiner, FeatureSpec, LookupEncoder, MatchEncoder

KEY_MARK = "_"
"""What stands between a key and its value where both make one id."""


def read_entries(feature: FeatureSpec, column: Column) -> Entries:
    """The entries of the maps that a lookup or match feature looks in.

    Raises:
        RequestError: names feature and row.
    """
    encoder = feature.encoder
    return map_entries(feature, column, encoder.map_separator) if isinstance(encoder, LookupEncoder) else nested_entries(feature, column)


def lookup_column(feature: FeatureSpec, inner: FeatureSpec, entries: Entries, keys: Column, map_rows: Ints) -> Column:
    """The values that each row's keys find.

    Args:
        feature: the lookup feature.
        inner: how the values are read.
        entries: of the maps.
        keys: B rows.
        map_rows: int64 [B], the row whose map each row of keys asks.

    Raises:
        RequestError: names feature and row.
    """
    encoder = feature.encoder
    assert isinstance(encoder, LookupEncoder)
    tokens = id_tokens(feature, keys)
    found, counts = find_entries(entries, np.repeat(map_rows, tokens.lengths), (tokens,))
    prefixes = entries.keys if encoder.with_key else ()
    return _found_column(inner, encoder.combiner, entries, prefixes, found, sums(counts, tokens.lengths))


def match_column(feature: FeatureSpec, inner: FeatureSpec, entries: Entries, keys: Sequence[Column], map_rows: Ints) -> Column:
    """The values that each pair of a row's outer and inner keys finds; arguments as for `lookup_column`, with a column for each kind of key."""
    encoder = feature.encoder
    assert isinstance(encoder, MatchEncoder)
    queries, asked = _queries(feature, encoder, keys, map_rows.size)
    found, counts = find_entries(entries, np.repeat(map_rows, queries), asked)
    prefixes = [tokens for tokens, shown in zip(entries.keys, (encoder.with_outer, encoder.with_inner), strict=True) if shown]
    return _found_column(inner, encoder.combiner, entries, prefixes, found, sums(counts, queries))


def _queries(
    feature: FeatureSpec, encoder: MatchEncoder, columns: Sequence[Column], num_rows: int
) -> tuple[Ints, tuple[Tokens | None, Tokens | None]]:
    """How many pairs each row asks for, and their keys; None for any key."""
    tokens = [id_tokens(feature, column) for column in columns]
    if not tokens:
        return np.ones(num_rows, dtype=np.int64), (None, None)
    queries, chosen = combinations(feature, tokens)
    keys: list[Tokens | None] = [take_tokens(token, index) for token, index in zip(tokens, chosen, strict=True)]
    outer = None if encoder.any_outer else keys.pop(0)
    return queries, (outer, None if encoder.any_inner else keys.pop(0))


def _found_column(inner: FeatureSpec, combiner: Combiner, entries: Entries, prefixes: Sequence[Tokens], found: Ints, lengths: Ints) -> Column:
    """The values at `found`, `lengths` of them a row, combined or with their keys where that is asked for."""
    items = entries.values.items
    values = Column([items[place] for place in found.tolist()] if isinstance(items, list) else items.take(found), whole=not inner.separator)
    with rows_at(np.repeat(np.arange(lengths.size), lengths)):
        if combiner is not Combiner.NONE:
            return _combined(inner, combiner, values, lengths)
        if not prefixes:
            return Column(values.items, lengths.astype(np.int32), whole=values.whole)
        tokens = id_tokens(inner, values)
    index = np.repeat(found, tokens.lengths)
    parts = [_texts(take_tokens(prefix, index)) for prefix in prefixes]
    return Column(join_texts([*parts, _texts(tokens)], KEY_MARK), sums(tokens.lengths, lengths).astype(np.int32), whole=True)


def _texts(tokens: Tokens) -> Texts:
    return tokens.values if isinstance(tokens.values, Texts) else integers_to_texts(tokens.values)


def _combined(inner: FeatureSpec, combiner: Combiner, values: Column, lengths: Ints) -> Column:
    """Numbers of each row made one: `value_dim` of them, each from the numbers at its place; missing where there are none."""
    numbers, sizes = number_items(inner, values)
    width = max(inner.value_dim, 1)
    if (sizes is None and width > 1) or (sizes is not None and (sizes != width).any()):
        wrong = 0 if sizes is None else int((sizes != width).argmax())
        if numbers.size:
            raise RequestError(f"a map holds {1 if sizes is None else int(sizes[wrong])} numbers, not {width}", feature=inner.name, row=wrong)
    matrix = numbers.reshape(-1, width)
    rows = np.repeat(np.arange(lengths.size), lengths)
    out = np.stack([_combine(combiner, matrix[:, place], rows, lengths.size) for place in range(width)], axis=1)
    return Column(out.reshape(-1), np.full(lengths.size, width, dtype=np.int32) if width > 1 else None)


def _combine(combiner: Combiner, numbers: Floats, rows: Ints, num_rows: int) -> Floats:
    """float64 [num_rows], NaN for rows without numbers. Sums add from the first to the last, whatever else is in the batch."""
    there = ~np.isnan(numbers)
    numbers, rows = numbers[there], rows[there]
    counts = np.bincount(rows, minlength=num_rows)
    out = np.full(num_rows, np.nan)
    some = np.flatnonzero(counts)
    if combiner is Combiner.COUNT:
        out[some] = counts[some]
    elif combiner in (Combiner.SUM, Combiner.MEAN):
        total = np.bincount(rows, weights=numbers, minlength=num_rows)[some]
        out[some] = total if combiner is Combiner.SUM else total / counts[some]
    elif some.size:
        firsts = (counts.cumsum() - counts)[some]
        out[some] = (np.minimum if combiner is Combiner.MIN else np.maximum).reduceat(numbers, firsts)
    return out
