"""Tokens -> ids, one function for each encoder."""

import numpy as np

from emberline.encoding.decimal import integers_to_texts, texts_to_integers
from emberline.encoding.hash import Hashes, hash_strings, hash_texts, xxh64
from emberline.encoding.texts import Ints, Texts, ranges
from emberline.encoding.tokens import Tokens, check_total
from emberline.errors import RequestError
from emberline.schema import RAW_ID_SPACE, CrossEncoder, FeatureSpec, VocabEncoder

_MOST_CROSSED = 65_536


def token_hashes(tokens: Tokens) -> Hashes:
    """XXH64 of each token's text, uint64 [N]; whole numbers count as their decimal text."""
    values = tokens.values
    return hash_texts(values if isinstance(values, Texts) else integers_to_texts(values))


def raw_ids(tokens: Tokens) -> Ints:
    """Whole numbers and canonical decimal text as they are, other text as its hash modulo RAW_ID_SPACE."""
    if not isinstance(tokens.values, Texts):
        return tokens.values
    ids, good = texts_to_integers(tokens.values)
    if not good.all():
        other = np.flatnonzero(~good)
        ids[other] = (hash_texts(tokens.values.take(other)) % np.uint64(RAW_ID_SPACE)).view(np.int64)
    return ids


def integer_ids(feature: FeatureSpec, tokens: Tokens) -> Ints:
    """Ids that must be whole numbers: int64, or canonical decimal text.

    Raises:
        RequestError: a text that isn't; names feature and row.
    """
    if not isinstance(tokens.values, Texts):
        return tokens.values
    ids, good = texts_to_integers(tokens.values)
    if not good.all():
        token = int(good.argmin())
        raise RequestError(f"{tokens.shown(token)} is not a whole number of 64 bits", feature=feature.name, row=tokens.row_of(token))
    return ids


def row_ids(feature: FeatureSpec, tokens: Tokens, rows: int | Ints, oov_row: int | Ints | None) -> Ints:
    """Whole numbers in [0, rows) as they are; others (and text that is no whole number) as `oov_row`.

    Raises:
        RequestError: a value outside, where `oov_row` is None; names feature, row and range.
    """
    if oov_row is None:
        ids = integer_ids(feature, tokens)
        wrong = (ids < 0) | (ids >= rows)
        if wrong.any():
            token = int(wrong.argmax())
            raise RequestError(f"id {int(ids[token])} is outside [0, {rows})", feature=feature.name, row=tokens.row_of(token))
        return ids
    if isinstance(tokens.values, Texts):
        ids, good = texts_to_integers(tokens.values)
        return np.where(good & (ids >= 0) & (ids < rows), ids, oov_row)
    ids = tokens.values
    return np.where((ids >= 0) & (ids < rows), ids, oov_row)


class Vocabulary:
    """A word list, ready to look up many tokens: the words' hashes in order, and the row of each."""

    def __init__(self, encoder: VocabEncoder) -> None:
        hashes = hash_strings(encoder.words)
        order = np.argsort(hashes, kind="stable")
        self._hashes: Hashes = hashes[order]
        self._rows: Ints = np.array(encoder.word_rows, dtype=np.int64)[order]
        self._oov_row = encoder.oov_row
        assert hashes.size < 2 or (self._hashes[1:] > self._hashes[:-1]).all(), "words repeat or collide"

    def rows_of(self, tokens: Tokens) -> Ints:
        """Row of each token's word, or the row for unknown words, int64 [N]."""
        if not self._hashes.size:
            return np.full(len(tokens.values), self._oov_row, dtype=np.int64)
        hashes = token_hashes(tokens)
        at = np.minimum(np.searchsorted(self._hashes, hashes), self._hashes.size - 1)
        return np.where(self._hashes[at] == hashes, self._rows[at], self._oov_row)


def combinations(feature: FeatureSpec, columns: list[Tokens]) -> tuple[Ints, list[Ints]]:
    """Every combination of a row's tokens, one of each column, the last column changing fastest.

    Returns:
        int64 [B], combinations of each row: the product of the columns' lengths; and for each column int64 [N], the token of each combination.

    Raises:
        RequestError: a row with more than 65,536 combinations.
    """
    product = np.ones(columns[0].lengths.size)
    for tokens in columns:
        product *= tokens.lengths
    if product.size and product.max() > _MOST_CROSSED:
        row = int(product.argmax())
        raise RequestError(f"{product[row]:.0f} combinations, more than {_MOST_CROSSED}", feature=feature.name, row=row)
    check_total(feature, float(product.sum()))
    lengths = product.astype(np.int64)
    place = ranges(np.zeros(lengths.size, dtype=np.int64), lengths)
    rows = np.repeat(np.arange(lengths.size), lengths)
    chosen: list[Ints] = []
    for tokens in reversed(columns):
        sizes = tokens.lengths
        size = sizes[rows]
        chosen.append((sizes.cumsum() - sizes)[rows] + place % size)
        place //= size
    return lengths, chosen[::-1]


def cross_ids(feature: FeatureSpec, encoder: CrossEncoder, columns: list[Tokens]) -> tuple[Ints, Ints]:
    """One id for each combination of a row's tokens, as `combinations`.

    Returns:
        int64 [N] ids and int64 [B] lengths.

    Raises:
        RequestError: a row with more than 65,536 combinations.
    """
    lengths, chosen = combinations(feature, columns)
    combined: Hashes = np.empty((chosen[0].size, len(columns)), dtype="<u8")
    for number, (tokens, index) in enumerate(zip(columns, chosen, strict=True)):
        combined[:, number] = token_hashes(tokens)[index]
    width = 8 * len(columns)
    starts = np.arange(chosen[0].size, dtype=np.int64) * width
    hashes = xxh64(combined.view(np.uint8).reshape(-1), starts, starts + width)
    return (hashes % np.uint64(encoder.rows or RAW_ID_SPACE)).view(np.int64), lengths
