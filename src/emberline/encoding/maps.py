"""Raw columns that hold maps: from key to value, or from an outer and an inner key to value.

    {"a": 1, "b": 2}      "a:1\\x1db:2"      ["a:1", "b:2"]      {"a": {"x": 1}, "b": {"y": 2}}      "a^x:1|b^y:2"

A key ends at the first mark after it, so that values may hold more of them. Entries without key or without value are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emberline.encoding.columns import Column, rows_at, show, take_rows
from emberline.encoding.hash import Hashes
from emberline.encoding.ids import token_hashes
from emberline.encoding.rows import column_from_values
from emberline.encoding.texts import Bools, Ints, Texts, find_first, ranges, split_texts
from emberline.encoding.tokens import Tokens, id_tokens
from emberline.errors import RequestError
from emberline.schema import FeatureSpec

_MIX = np.uint64(0x9E3779B97F4A7C15)
_NO_PLACES: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Entries:
    """All entries of the maps of B rows, E in number, row after row.

    Args:
        rows: int64 [E], the row of each.
        keys: its key, or its outer and inner key: E each.
        values: a column of E rows with one item each.
    """

    rows: Ints
    keys: tuple[Tokens, ...]
    values: Column


def take_tokens(tokens: Tokens, index: Ints) -> Tokens:
    """The tokens at `index`, one a row."""
    values = tokens.values.take(index) if isinstance(tokens.values, Texts) else tokens.values[index]
    return Tokens(values, np.ones(index.size, dtype=np.int64))


def map_column(feature: str, values: Sequence[object]) -> Column:
    """One Python value a row as a column: objects become a column with `map_values`, and so do objects in objects; others stay what they are.

    Raises:
        RequestError: objects and others are mixed, or what is no value; names feature and row.
    """
    if not any(isinstance(value, Mapping) for value in values):
        return column_from_values(feature, values)
    keys: list[object] = []
    held: list[object] = []
    lengths = np.zeros(len(values), dtype=np.int32)
    for row, value in enumerate(values):
        if isinstance(value, Mapping):
            keys.extend(value)
            held.extend(value.values())
            lengths[row] = len(value)
        elif value is not None and value != "" and value != []:
            raise RequestError(f"{show(value)} is no object, but another row holds one", feature=feature, row=row)
    with rows_at(np.repeat(np.arange(lengths.size), lengths)):
        key_column, map_values = column_from_values(feature, keys), map_column(feature, held)
    return Column(key_column.items, lengths, key_column.valid, whole=True, map_values=map_values)


def map_entries(feature: FeatureSpec, column: Column, separator: str) -> Entries:
    """The entries of maps, from `map_column` or from Arrow, or of `key:value` texts with `separator` between them.

    Raises:
        RequestError: values that are no maps, or a key that is none; names feature and row.
    """
    if column.map_values is None:
        pieces, owner = _pieces(feature, column, separator)
        keys, values = _split_entry(feature, pieces, owner, ":")
        rows = owner
    else:
        rows, keys, values = _map_rows(column), _flat(column), column.map_values
    return _entries(feature, rows, (keys,), values)


def nested_entries(feature: FeatureSpec, column: Column) -> Entries:
    """The entries of maps of maps, from `map_column` or from Arrow, or of `outer^inner:value,inner:value|outer^...` texts.

    Raises:
        RequestError: values that are no maps of maps, or a key that is none; names feature and row.
    """
    inner = column.map_values
    if inner is None:
        pieces, owner = _pieces(feature, column, "|")
        outer, held = _split_entry(feature, pieces, owner, "^")
        assert isinstance(held.items, Texts)
        texts, counts = split_texts(held.items, ",")
        index = np.repeat(np.arange(counts.size), counts)
        there = texts.sizes > 0
        texts, index = texts.take(there), index[there]
        keys, values = _split_entry(feature, texts, owner[index], ":")
        return _entries(feature, owner[index], (take_rows(outer, index), keys), values)
    if inner.map_values is None:
        if not _missing(inner).all() or inner.lengths is not None:
            raise RequestError("a map holds no map for each outer key", feature=feature.name)
        nothing = Column(_NO_PLACES)
        return _entries(feature, _NO_PLACES, (nothing, nothing), nothing)
    index = _map_rows(inner)
    return _entries(feature, _map_rows(column)[index], (take_rows(_flat(column), index), _flat(inner)), inner.map_values)


def _map_rows(column: Column) -> Ints:
    assert column.lengths is not None
    return np.repeat(np.arange(column.lengths.size), column.lengths)


def _flat(column: Column) -> Column:
    """Its items, one a row."""
    return Column(column.items, valid=column.valid, whole=True)


def _missing(column: Column) -> Bools:
    """Which items are null, empty text or NaN, bool [N]."""
    items, missing = column.items, np.zeros(0, dtype=np.bool_)
    if isinstance(items, Texts):
        missing = items.sizes == 0
    elif isinstance(items, list):
        missing = np.array([item is None or item == "" or item != item for item in items], dtype=np.bool_)
    else:
        missing = np.asarray(np.isnan(items), dtype=np.bool_)
    return missing if column.valid is None else np.asarray(missing | ~column.valid)


def _entries(feature: FeatureSpec, rows: Ints, keys: tuple[Column, ...], values: Column) -> Entries:
    if values.lengths is not None:
        raise RequestError("a map holds lists or maps, where it holds one text or number for each key", feature=feature.name)
    missing = _missing(values)
    for key in keys:
        missing |= _missing(key)
    if missing.any():
        index = np.flatnonzero(~missing)
        rows, keys, values = rows[index], tuple(take_rows(key, index) for key in keys), take_rows(values, index)
    with rows_at(rows):
        tokens = tuple(id_tokens(feature, Column(key.items, whole=True)) for key in keys)
    return Entries(rows, tokens, Column(values.items, whole=True))


def _pieces(feature: FeatureSpec, column: Column, separator: str) -> tuple[Texts, Ints]:
    """The texts of all rows, split, without empty ones, and the row of each."""
    rows = np.arange(column.num_rows) if column.lengths is None else _map_rows(column)
    missing = _missing(column)
    if missing.all():
        return Texts.from_strings([]), _NO_PLACES
    if not isinstance(column.items, Texts):
        raise RequestError("a map is an object, a text of key:value or a list of those, not a number", feature=feature.name)
    there = np.flatnonzero(~missing)
    texts, rows = column.items.take(there), rows[there]
    splittable = None if isinstance(column.whole, bool) else ~column.whole[there]
    if column.whole is not True:
        texts, counts = split_texts(texts, separator, splittable)
        rows = np.repeat(rows, counts)
    there = np.flatnonzero(texts.sizes > 0)
    return texts.take(there), rows[there]


def _split_entry(feature: FeatureSpec, texts: Texts, rows: Ints, mark: str) -> tuple[Column, Column]:
    """Keys and values of texts `key<mark>value`."""
    texts, at = find_first(texts, mark)
    wrong = at < 0
    if wrong.any():
        piece = int(wrong.argmax())
        raise RequestError(f"{show(texts.text(piece))} has no {mark!r} between key and value", feature=feature.name, row=int(rows[piece]))
    return Column(Texts(texts.buffer, texts.starts, at), whole=True), Column(Texts(texts.buffer, at + 1, texts.ends), whole=True)


def find_entries(entries: Entries, rows: Ints, keys: tuple[Tokens | None, ...]) -> tuple[Ints, Ints]:
    """Look Q queries up. Of entries with equal keys in one row the last one counts.

    Args:
        entries: E of them.
        rows: int64 [Q], the row whose map each query asks.
        keys: Q keys for each key of the entries; None: any key matches.

    Returns:
        int64 [M], the entries found, query after query, each query's in the order of their maps; and int64 [Q], how many each query found.
    """
    asked_hashes = [None if key is None else token_hashes(key) for key in keys]
    hashes = [token_hashes(tokens) for tokens in entries.keys]
    index = _candidates(entries.rows, hashes, rows, asked_hashes)
    distinct = known = entries.rows[index]
    asked = rows
    for words, asked_words in zip(hashes, asked_hashes, strict=True):
        distinct, _ = _combine(distinct, words[index], _NO_PLACES, None)
        if asked_words is not None:
            known, asked = _combine(known, words[index], asked, asked_words)
    last = np.sort(distinct.size - 1 - np.unique(distinct[::-1], return_index=True)[1])
    kept, known = index[last], known[last]
    order = np.argsort(known, kind="stable")
    ordered = known[order]
    firsts = np.searchsorted(ordered, asked, side="left")
    counts = np.searchsorted(ordered, asked, side="right") - firsts
    return kept[order[ranges(firsts, counts)]], counts


def _candidates(rows: Ints, hashes: Sequence[Hashes], asked: Ints, asked_hashes: Sequence[Hashes | None]) -> Ints:
    """The entries that some query may ask for, as far as 64 bits of a row and its keys tell: few of many, as a rule, and all that is sorted."""
    known, wanted = rows.astype(np.uint64), asked.astype(np.uint64)
    for words, asked_words in zip(hashes, asked_hashes, strict=True):
        if asked_words is not None:
            known, wanted = (known * _MIX) ^ words, (wanted * _MIX) ^ asked_words
    wanted = np.unique(wanted)
    if not wanted.size:
        return _NO_PLACES
    at = np.minimum(np.searchsorted(wanted, known), wanted.size - 1)
    return np.flatnonzero(wanted[at] == known)


def _combine(known: Ints, hashes: Hashes, asked: Ints, asked_hashes: Hashes | None) -> tuple[Ints, Ints]:
    """One number for each pair of a number below 2^31 and a hash, equal for equal pairs; -1 for those asked for that are not known."""
    words, place = np.unique(hashes, return_inverse=True)
    pairs, known = np.unique(known * words.size + place, return_inverse=True)
    if asked_hashes is None or not words.size:
        return known, np.full(asked.size, -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(words, asked_hashes), words.size - 1)
    wanted = np.where((words[at] == asked_hashes) & (asked >= 0), asked * words.size + at, -1)
    at = np.minimum(np.searchsorted(pairs, wanted), pairs.size - 1)
    return known, np.where(pairs[at] == wanted, at, -1)
