"""What is worked out once for each feature spec: its vocabulary's index, its default, and which features it may be encoded with."""

import weakref
from dataclasses import replace

from emberline.encoding.columns import Column
from emberline.encoding.derive import inner_feature
from emberline.encoding.ids import Vocabulary
from emberline.encoding.numeric import default_numbers
from emberline.encoding.sparse import Alike, Prepared, bags
from emberline.encoding.texts import Texts
from emberline.errors import RequestError
from emberline.schema import (
    BucketEncoder,
    CrossEncoder,
    ExprEncoder,
    FeatureKind,
    FeatureSpec,
    HashEncoder,
    LookupEncoder,
    MatchEncoder,
    NumericEncoder,
    RawIdEncoder,
    VocabEncoder,
)

_prepared: dict[int, tuple["weakref.ref[FeatureSpec]", Prepared]] = {}


def prepare(feature: FeatureSpec) -> Prepared:
    """The feature's `Prepared`: made at the first use of this very object (hashing a vocabulary each time would be slow), dropped with it.

    Raises:
        RequestError: the feature's default is no value of its encoder, or the encoder cannot be: its expression is none, for example.
    """
    known = _prepared.get(id(feature))
    if known is not None and known[0]() is feature:
        return known[1]
    prepared, key = _build(feature), id(feature)
    _prepared[key] = (weakref.ref(feature, lambda _: _prepared.pop(key, None)), prepared)
    return prepared


def _build(feature: FeatureSpec) -> Prepared:
    try:
        inner = inner_feature(feature)
    except ValueError as error:
        raise RequestError(str(error), feature=feature.name) from None
    if inner is feature and not feature.sequence:
        return _build_plain(feature)
    assert inner is feature or not (feature.encoded or feature.weighted), "what is computed is neither encoded nor weighted"
    return replace(_build_plain(inner), inner=None if inner is feature else inner, alike=None)


def _build_plain(feature: FeatureSpec) -> Prepared:
    if feature.kind is FeatureKind.DENSE:
        return Prepared(numbers=default_numbers(feature), alike=("dense", feature.separator) if feature.value_dim <= 1 else None)
    encoder = feature.encoder
    vocabulary = Vocabulary(encoder) if isinstance(encoder, VocabEncoder) and not feature.encoded else None
    id_rows = None
    if feature.encoded or isinstance(encoder, BucketEncoder):
        assert not isinstance(encoder, ExprEncoder | LookupEncoder | MatchEncoder)
        id_rows = 0 if isinstance(encoder, RawIdEncoder | NumericEncoder) else encoder.rows
    oov_row = encoder.oov_row if isinstance(encoder, BucketEncoder | VocabEncoder) else None
    basis = Prepared(vocabulary=vocabulary, id_rows=id_rows, oov_row=oov_row, alike=_alike(feature, id_rows, oov_row))
    if not feature.default:
        return basis
    try:
        ids, _, weights = bags(feature, [Column(Texts.from_strings([feature.default]))] * len(feature.columns), basis)
    except RequestError as error:
        raise RequestError(f"default {feature.default!r}: {error.problem}", feature=feature.name) from None
    return Prepared(vocabulary=vocabulary, ids=ids, weights=weights, id_rows=id_rows, oov_row=oov_row, alike=basis.alike)


def _alike(feature: FeatureSpec, id_rows: int | None, oov_row: int | None) -> Alike | None:
    how: object
    if id_rows is not None:
        how = ("integer", id_rows == 0, oov_row is None)
    elif isinstance(feature.encoder, HashEncoder | RawIdEncoder):
        how = feature.encoder.type
    else:
        return None
    assert not (feature.weighted and isinstance(feature.encoder, CrossEncoder))
    return ("sparse", how, feature.separator, feature.weighted)
