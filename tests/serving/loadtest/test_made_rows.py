"""Made rows are such that every model takes them, and have ids as they come in practice."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from emberline.encoding import required_columns
from emberline.schema import (
    BoundaryEncoder,
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
from emberline.serving.client.data import encode_data
from emberline.serving.loadtest.made_rows import RowMaker
from tests.serving.conftest import make_steps_toy, toy_schema

ZSCORE = Normalizer(method="zscore", parameters=(("mean", 50.0), ("std", 2.0)))
ENCODERS: tuple[Encoder, ...] = (
    HashEncoder(rows=7),
    RawIdEncoder(),
    VocabEncoder(words=("a", "b"), word_rows=(0, 1), oov_row=2, rows=3),
    BoundaryEncoder(boundaries=(1.0, 2.0, 4.0)),
    BoundaryEncoder(boundaries=()),
    NumericEncoder(normalizer=ZSCORE),
    NumericEncoder(normalizer=Normalizer(method="minmax", parameters=(("high", 9.0), ("low", 3.0)))),
    NumericEncoder(normalizer=Normalizer(method="log10", parameters=(("fill", -10.0), ("threshold", 1e-10)))),
    CrossEncoder(rows=100),
    ExprEncoder(expression="a / (1 + b)", variables=("a", "b"), inner=NumericEncoder()),
    LookupEncoder(inner=HashEncoder(rows=9)),
    LookupEncoder(inner=BoundaryEncoder(boundaries=(0.5,))),
    MatchEncoder(inner=HashEncoder(rows=9)),
)


def feature(encoder: Encoder, **settings: object) -> FeatureSpec:
    counts = {"cross": 2, "expr": 2, "lookup": 2, "match": 3}
    columns = tuple(f"c{place}" for place in range(counts.get(encoder.type, 1)))
    is_dense = isinstance(encoder, NumericEncoder | ExprEncoder)
    kind = FeatureKind.DENSE if is_dense else FeatureKind.SPARSE
    spec = FeatureSpec(name="f", kind=kind, columns=columns, encoder=encoder, value_dim=1 if is_dense else 0, default="0" if is_dense else None)
    return replace(spec, **settings)  # type: ignore[arg-type]


def schema(spec: FeatureSpec) -> ModelSchema:
    return ModelSchema(features=(spec,), tables=(), lookups=(), groups=())


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: encoder.type)
def test_every_encoder_reads_its_values(encoder: Encoder) -> None:
    described = schema(feature(encoder))
    rows = RowMaker(described, seed=3).make(50)
    encoded = encode_data(described, rows)
    assert encoded.num_rows == 50
    assert all(row.keys() == required_columns(described.features).keys() for row in rows)
    assert len({str(row) for row in rows}) > 5


@pytest.mark.parametrize(
    "spec",
    [
        feature(RawIdEncoder(), weighted=True),
        feature(HashEncoder(rows=3), sequence=True, sequence_length=4),
        feature(NumericEncoder(), value_dim=3),
        feature(NumericEncoder(), value_dim=2, sequence=True, sequence_length=5),
        feature(CrossEncoder(rows=9), sequence=True, sequence_length=3, row_columns=("c1",)),
        feature(HashEncoder(rows=30), encoded=True),
        feature(HashEncoder(rows=30), value_dim=1),
        feature(HashEncoder(rows=30), value_dim=2),
    ],
)
def test_every_shape_of_a_feature_is_filled(spec: FeatureSpec) -> None:
    described = replace(schema(spec), tables=toy_schema().tables, lookups=(replace(toy_schema().lookups[3], feature="f"),))
    rows = RowMaker(described).make(40)
    assert encode_data(described, rows).num_rows == 40
    if spec.sequence:
        assert {len(row["c0"]) for row in rows} == set(range(1, spec.sequence_length + 1))


def test_the_toys_take_them_and_a_seed_says_which() -> None:
    for described in (toy_schema(), make_steps_toy().schema):
        assert encode_data(described, RowMaker(described).make(30)).num_rows == 30
    assert RowMaker(toy_schema(), seed=1).make(9) == RowMaker(toy_schema(), seed=1).make(9) != RowMaker(toy_schema(), seed=2).make(9)


def test_raw_ids_follow_zipf_and_some_are_strange() -> None:
    described = replace(toy_schema(), tables=tuple(replace(table, rows=1000) for table in toy_schema().tables))
    rows = RowMaker(described, unknown_share=0.2).make(3000)
    ids = [one for row in rows for one in row["user"]]
    strange = [one for one in ids if one >= 1000]
    assert len(strange) / len(ids) == pytest.approx(0.2, abs=0.03)
    assert min(strange) >= 1 << 62
    often = Counter(one for one in ids if one < 1000)
    ranks = np.array([often[rank] for rank in (0, 1, 3, 7)])
    assert np.all(ranks[:-1] > 1.3 * ranks[1:])  # twice the rank, about half as often
    assert len(often) > 200
    strict = replace(described, features=tuple(replace(spec, unknown_ids=UnknownIds.ERROR) for spec in described.features))
    assert max(one for row in RowMaker(strict, unknown_share=1.0).make(200) for one in row["user"]) < 1000


def test_numbers_are_in_their_usual_range() -> None:
    rows = RowMaker(schema(feature(NumericEncoder(normalizer=ZSCORE)))).make(500)
    values = np.array([row["c0"] for row in rows])
    assert values.mean() == pytest.approx(50, abs=0.5)
    assert values.std() == pytest.approx(2, abs=0.4)
    bounds = schema(feature(BoundaryEncoder(boundaries=(1.0, 2.0, 4.0)), value_dim=1))
    drawn = [row["c0"] for row in RowMaker(bounds).make(300)]
    assert (min(drawn), max(drawn)) == (pytest.approx(0, abs=0.1), pytest.approx(5, abs=0.1))  # one bucket's width beyond the bounds
    assert len({sum(value >= bound for bound in (1.0, 2.0, 4.0)) for value in drawn}) == 4
