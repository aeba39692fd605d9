"""Sparse features: columns -> bags of ids, one feature at a time or, in small requests, all that are alike at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from emberline.encoding.columns import Column, Jagged
from emberline.encoding.decimal import Floats
from emberline.encoding.ids import Vocabulary, cross_ids, integer_ids, raw_ids, row_ids, token_hashes
from emberline.encoding.numeric import boundary_ids
from emberline.encoding.texts import Ints, ranges
from emberline.encoding.tokens import Tokens, check_total, id_tokens
from emberline.errors import RequestError
from emberline.schema import BoundaryEncoder, CrossEncoder, FeatureSpec, HashEncoder, RawIdEncoder

Alike = tuple[object, ...]


@dataclass(frozen=True)
class Prepared:
    """One feature, ready to encode.

    Args:
        vocabulary: index of a vocabulary's words.
        numbers: dense: the default, float64 [value_dim].
        ids: sparse: the default's ids, empty where there is none.
        weights: weights of those, for weighted features.
        id_rows: rows that whole-number ids are checked against; 0 where any int64 is right, None where ids are not whole numbers.
        oov_row: row for whole numbers outside.
        inner: what reads the values of a computed feature; None for features that read their own.
        alike: features with equal `alike` encode together in small requests; None encodes alone.
    """

    vocabulary: Vocabulary | None = None
    numbers: Floats = field(default_factory=lambda: np.zeros(0))
    ids: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    weights: Floats | None = None
    id_rows: int | None = None
    oov_row: int | None = None
    inner: FeatureSpec | None = None
    alike: Alike | None = None


Bags = tuple[Ints, Ints, Floats | None]
"""Ids int64 [N], lengths int64 [B], weights float64 [N]."""


def bags(feature: FeatureSpec, columns: Sequence[Column], prepared: Prepared) -> Bags:
    """A sparse feature's ids before its default is filled in."""
    encoder = feature.encoder
    if isinstance(encoder, BoundaryEncoder) and not feature.encoded:
        return *boundary_ids(feature, encoder, columns[0]), None
    tokens = [id_tokens(feature, column) for column in columns]
    if isinstance(encoder, CrossEncoder) and not feature.encoded:
        return *cross_ids(feature, encoder, tokens), None
    only = tokens[0]
    if prepared.vocabulary is not None:
        ids = prepared.vocabulary.rows_of(only)
    else:
        rows = encoder.rows if isinstance(encoder, HashEncoder) else prepared.id_rows
        ids = _ids(feature, only, rows, prepared.oov_row)
    return ids, only.lengths, only.weights


def _ids(feature: FeatureSpec, tokens: Tokens, rows: int | Ints | None, oov_row: int | Ints | None) -> Ints:
    """Ids of every encoder that may take several features at once: `rows` and `oov_row` are then one for each token."""
    if feature.encoded or not isinstance(feature.encoder, HashEncoder | RawIdEncoder):
        assert rows is not None, feature
        return integer_ids(feature, tokens) if isinstance(rows, int) and not rows else row_ids(feature, tokens, rows, oov_row)
    if isinstance(feature.encoder, RawIdEncoder):
        return raw_ids(tokens)
    assert rows is not None
    return (token_hashes(tokens) % np.asarray(rows).astype(np.uint64)).view(np.int64)


def _fill_default(found: Bags, prepared: Prepared) -> Bags:
    """Put the default's ids into the rows that have none."""
    ids, lengths, weights = found
    if not prepared.ids.size:
        return found
    empty = np.flatnonzero(lengths == 0)
    if not empty.size:
        return found
    filled = lengths.copy()
    filled[empty] = prepared.ids.size
    places = ranges((filled.cumsum() - filled)[empty], filled[empty])
    old = np.ones(ids.size + places.size, dtype=np.bool_)
    old[places] = False
    out = np.empty(old.size, dtype=np.int64)
    out[old], out[places] = ids, np.tile(prepared.ids, empty.size)
    if weights is None or prepared.weights is None:
        return out, filled, None
    both = np.empty(old.size)
    both[old], both[places] = weights, np.tile(prepared.weights, empty.size)
    return out, filled, both


def _finish(feature: FeatureSpec, found: Bags, prepared: Prepared) -> Jagged:
    ids, lengths, weights = _fill_default(found, prepared)
    if feature.value_dim > 0 and lengths.size and lengths.max() > feature.value_dim:
        row = int(lengths.argmax())
        raise RequestError(f"{int(lengths[row])} values, more than value_dim {feature.value_dim}", feature=feature.name, row=row)
    check_total(feature, ids.size)
    return Jagged(ids, lengths.astype(np.int32), None if weights is None else weights.astype(np.float32))


def encode_sparse(feature: FeatureSpec, columns: Sequence[Column], prepared: Prepared) -> Jagged:
    """One sparse feature.

    Raises:
        RequestError: names feature and row.
    """
    return _finish(feature, bags(feature, columns, prepared), prepared)


def encode_sparse_alike(features: Sequence[FeatureSpec], column: Column, prepared: Sequence[Prepared], num_rows: int) -> list[Jagged]:
    """Features that are alike (`Prepared.alike`), whose columns lie one after the other in `column`: one call each to split, parse and hash.

    Raises:
        RequestError: some value is wrong; encode the features one by one to learn which.
    """
    first = features[0]
    tokens = id_tokens(first, column)
    counts = tokens.lengths.reshape(len(features), num_rows).sum(axis=1)
    rows: int | Ints | None = prepared[0].id_rows
    if isinstance(first.encoder, HashEncoder) and not first.encoded:
        rows = np.repeat(np.array([feature.encoder.rows for feature in features if isinstance(feature.encoder, HashEncoder)]), counts)
    elif rows:
        rows = np.repeat(np.array([one.id_rows for one in prepared]), counts)
    oov_row: Ints | None = None
    if prepared[0].oov_row is not None:
        oov_row = np.repeat(np.array([one.oov_row for one in prepared]), counts)
    ids = _ids(first, tokens, rows, oov_row)
    return _separate(features, (ids, tokens.lengths, tokens.weights), prepared, counts.tolist(), num_rows)


def _separate(features: Sequence[FeatureSpec], found: Bags, prepared: Sequence[Prepared], counts: list[int], num_rows: int) -> list[Jagged]:
    """Cut the bags of several features apart."""
    ids, lengths, weights = found
    lengths_32 = lengths.astype(np.int32)
    weights_32 = None if weights is None else weights.astype(np.float32)
    some_empty, most = bool((lengths == 0).any()), int(lengths.max(initial=0))
    out, at = [], 0
    for number, (feature, one, count) in enumerate(zip(features, prepared, counts, strict=True)):
        rows, end = slice(number * num_rows, (number + 1) * num_rows), at + count
        if (some_empty and one.ids.size) or 0 < feature.value_dim < most:
            out.append(_finish(feature, (ids[at:end], lengths[rows], None if weights is None else weights[at:end]), one))
        else:
            out.append(Jagged(ids[at:end], lengths_32[rows], None if weights_32 is None else weights_32[at:end]))
        at = end
    return out
