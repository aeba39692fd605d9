"""Whatever JSON a row holds, it is encoded or refused by name; nothing else is raised, and its answer does not depend on its neighbours."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.encoding import EncodedColumns, columns_from_rows, encode
from emberline.errors import RequestError
from emberline.schema import (
    BoundaryEncoder,
    BucketEncoder,
    Combiner,
    CrossEncoder,
    ExprEncoder,
    FeatureKind,
    FeatureSpec,
    HashEncoder,
    Keep,
    LookupEncoder,
    MatchEncoder,
    NumericEncoder,
    RawIdEncoder,
    VocabEncoder,
)
from tests.encoding.cuts import cut

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["1", "a:1", "a:1\x1d7:2", "a^7:1,b:2|7^a:3", "1;2;", "1\x032", "nan", "1e9", "\ud800", 2**63, -0.0, 1e308, "9" * 70, 3, 0.5])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=5)
PLAIN = st.integers(-3, 30) | st.sampled_from(["7", "a", "", "1\x032", "2:0.5"]) | st.lists(st.integers(0, 9), max_size=3) | st.none()
SPARSE = [
    FeatureSpec(name="hash", kind=FeatureKind.SPARSE, columns=("a",), encoder=HashEncoder(rows=11)),
    FeatureSpec(name="hash2", kind=FeatureKind.SPARSE, columns=("b",), encoder=HashEncoder(rows=13), default="x"),
    FeatureSpec(name="raw", kind=FeatureKind.SPARSE, columns=("a",), encoder=RawIdEncoder()),
    FeatureSpec(name="bucket", kind=FeatureKind.SPARSE, columns=("b",), encoder=BucketEncoder(rows=20, oov_row=0)),
    FeatureSpec(name="strict", kind=FeatureKind.SPARSE, columns=("c",), encoder=BucketEncoder(rows=20)),
    FeatureSpec(name="words", kind=FeatureKind.SPARSE, columns=("a",), encoder=VocabEncoder(words=("a", "7"), word_rows=(2, 3), oov_row=1, rows=4)),
    FeatureSpec(name="weighted", kind=FeatureKind.SPARSE, columns=("d",), encoder=HashEncoder(rows=11), weighted=True, default="q:2"),
    FeatureSpec(name="cross", kind=FeatureKind.SPARSE, columns=("a", "b"), encoder=CrossEncoder(rows=99)),
    FeatureSpec(name="edges", kind=FeatureKind.SPARSE, columns=("x",), encoder=BoundaryEncoder(boundaries=(0.0, 1.5))),
]
DENSE = [
    FeatureSpec(name="number", kind=FeatureKind.DENSE, columns=("x",), encoder=NumericEncoder(), value_dim=1, default="3"),
    FeatureSpec(name="pair", kind=FeatureKind.DENSE, columns=("y",), encoder=NumericEncoder(), value_dim=2),
]
COMPUTED = [
    FeatureSpec(
        name="expr",
        kind=FeatureKind.DENSE,
        columns=("x", "y"),
        encoder=ExprEncoder(expression="x > 0 ? log(x) : y / x", variables=("x", "y"), inner=NumericEncoder()),
        value_dim=1,
    ),
    FeatureSpec(name="lookup", kind=FeatureKind.SPARSE, columns=("m", "a"), encoder=LookupEncoder(inner=RawIdEncoder()), default="5"),
    FeatureSpec(name="keyed", kind=FeatureKind.SPARSE, columns=("m", "a"), encoder=LookupEncoder(inner=HashEncoder(rows=99), with_key=True)),
    FeatureSpec(
        name="largest",
        kind=FeatureKind.DENSE,
        columns=("m", "b"),
        encoder=LookupEncoder(inner=NumericEncoder(), combiner=Combiner.MAX, value_separator=","),
        value_dim=1,
    ),
    FeatureSpec(name="match", kind=FeatureKind.SPARSE, columns=("n", "a", "b"), encoder=MatchEncoder(inner=RawIdEncoder())),
    FeatureSpec(
        name="any",
        kind=FeatureKind.SPARSE,
        columns=("n",),
        encoder=MatchEncoder(inner=RawIdEncoder(), any_outer=True, any_inner=True, with_outer=True),
    ),
]
SEQUENCES = [
    FeatureSpec(name="ids", kind=FeatureKind.SPARSE, columns=("a",), encoder=RawIdEncoder(), sequence=True, sequence_length=2),
    FeatureSpec(name="rows", kind=FeatureKind.SPARSE, columns=("b",), encoder=BucketEncoder(rows=20), sequence=True, encoded=True, default="1"),
    FeatureSpec(name="numbers", kind=FeatureKind.DENSE, columns=("x",), encoder=NumericEncoder(), sequence=True, value_dim=1),
    FeatureSpec(name="weights", kind=FeatureKind.SPARSE, columns=("d",), encoder=RawIdEncoder(), sequence=True, weighted=True, keep=Keep.OLDEST),
    FeatureSpec(name="crosses", kind=FeatureKind.SPARSE, columns=("a", "b"), row_columns=("b",), encoder=CrossEncoder(), sequence=True),
    FeatureSpec(
        name="lookups", kind=FeatureKind.SPARSE, columns=("m", "a"), row_columns=("m",), encoder=LookupEncoder(inner=RawIdEncoder()), sequence=True
    ),
]
FEATURES = [*SPARSE, *DENSE, *COMPUTED, *SEQUENCES]
MIXED = ("has weights, but another row has none", "is no object, but another row holds one")
COLUMNS = ("a", "b", "c", "d", "x", "y", "m", "n")


def _encode(features: list[FeatureSpec], rows: list[dict[str, Any]]) -> EncodedColumns | str:
    columns = {column for feature in features for column in feature.columns}
    try:
        return encode(features, *columns_from_rows(features, [{key: row[key] for key in row if key in columns} for row in rows]))
    except RequestError as error:
        names = [feature.name for feature in features]
        return str(error) if error.feature in names else f"no feature is named: {error}"


def _row(encoded: EncodedColumns, row: int) -> dict[str, object]:
    out: dict[str, object] = {name: matrix[row].tolist() for name, matrix in encoded.dense.items()}
    for name, dense in encoded.dense_sequences.items():
        out[name] = cut(dense.values.tolist(), dense.lengths)[row]
    for name, steps in encoded.sparse_sequences.items():
        parts = (steps.values, steps.weights)
        out[name] = [None if part is None else cut(cut(part.tolist(), steps.step_lengths), steps.lengths)[row] for part in parts]
    for name, bag in encoded.sparse.items():
        out[name] = [None if part is None else cut(part.tolist(), bag.lengths)[row] for part in (bag.values, bag.weights)]
    return out


@settings(deadline=None, max_examples=70)
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, VALUES)), max_size=4))
def test_encoded_or_refused_by_name(rows: list[dict[str, Any]]) -> None:
    for feature in FEATURES:
        together = _encode([feature], rows)
        alone = [_encode([feature], [row]) for row in rows]
        if not isinstance(together, str):
            assert [_row(together, row) for row in range(len(rows))] == [_row(one, 0) for one in alone if not isinstance(one, str)]
        else:
            assert together.startswith(f"feature {feature.name!r}: ")
            assert any(isinstance(one, str) for one in alone) or together.endswith(MIXED)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, PLAIN | VALUES)), max_size=3))
def test_features_together_and_one_by_one(rows: list[dict[str, Any]]) -> None:
    together = _encode(FEATURES, rows)
    single = [_encode([feature], rows) for feature in FEATURES]
    problems = [one for one in single if isinstance(one, str)]
    if isinstance(together, str):
        assert together in problems
    else:
        assert not problems
        for one in single:
            assert not isinstance(one, str)
            for row in range(len(rows)):
                assert _row(one, row).items() <= _row(together, row).items()
