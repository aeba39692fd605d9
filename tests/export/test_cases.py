"""The made requests: they hold what they promise, whatever the schema."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.export.cases import ODD_RAW_IDS, Case, odd_cases
from emberline.schema import (
    BucketEncoder,
    FeatureKind,
    FeatureSpec,
    LookupSpec,
    ModelSchema,
    NumericEncoder,
    Pooling,
    RawIdEncoder,
    TableKind,
    TableSpec,
)
from emberline.serving.encoded import pack_encoded
from emberline.serving.request import RequestValidator


def _schema(rows: int, value_dim: int, weighted: bool, dense: int) -> ModelSchema:
    features = [
        FeatureSpec(
            name="plain", kind=FeatureKind.SPARSE, columns=("plain",), encoder=BucketEncoder(rows=rows), value_dim=value_dim, weighted=weighted
        ),
        FeatureSpec(name="raw", kind=FeatureKind.SPARSE, columns=("raw",), encoder=RawIdEncoder()),
    ]
    if dense:
        features.append(FeatureSpec(name="numbers", kind=FeatureKind.DENSE, columns=("numbers",), encoder=NumericEncoder(), value_dim=dense))
    tables = (TableSpec(name="p", rows=rows, dim=4), TableSpec(name="r", rows=8, dim=4, kind=TableKind.ZCH))
    lookups = (
        LookupSpec(key="plain", feature="plain", table="p", pooling=Pooling.SUM, dim=4, weighted=weighted),
        LookupSpec(key="raw", feature="raw", table="r", pooling=Pooling.SUM, dim=4),
    )
    return ModelSchema(features=tuple(features), tables=tables, lookups=lookups, groups=())


def _make(schema: ModelSchema) -> list[Case]:
    return odd_cases(schema, {"r": np.array([-7, 11, 12])}, {"r": np.array([-(2**63), 0, 500])})


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 9), value_dim=st.integers(0, 3), weighted=st.booleans(), dense=st.integers(0, 2))
def test_every_case_is_a_request_that_the_engine_takes(rows: int, value_dim: int, weighted: bool, dense: int) -> None:
    schema = _schema(rows, value_dim, weighted, dense)
    cases = _make(schema)
    for case in cases:
        checked = RequestValidator(schema).check(pack_encoded(schema, case.encoded))
        assert checked.num_rows == case.encoded.num_rows
        plain = case.encoded.sparse["plain"]
        assert ((plain.values >= 0) & (plain.values < rows)).all()
        assert (plain.weights is not None) == weighted
    assert len({case.name for case in cases}) == len(cases) == (12 if weighted else 9)


def test_odd_ids_fallback_borders_and_ends_are_all_asked_one_a_row() -> None:
    cases = {case.name: case.encoded for case in _make(_schema(5, 0, True, 1))}
    raw = cases["edge ids"].sparse["raw"]
    assert set(raw.values.tolist()) == {*ODD_RAW_IDS, -(2**63), 0, 500, -1, 499, -7, 12}
    assert set(raw.lengths.tolist()) == {1}
    assert set(cases["edge ids"].sparse["plain"].values.tolist()) == {0, 4}
    assert {-7, 11, 12} <= set(cases["known ids"].sparse["raw"].values.tolist())


def test_empty_single_long_and_weighted_bags_are_what_their_names_say() -> None:
    cases = {case.name: case.encoded for case in _make(_schema(5, 3, True, 1))}
    assert cases["no rows"].num_rows == 0
    assert cases["no rows"].dense["numbers"].shape == (0, 1)
    assert cases["all bags empty"].sparse["raw"].lengths.tolist() == [0, 0, 0]
    assert [cases["one id in all"].sparse[name].lengths.tolist() for name in ("plain", "raw")] == [[0, 1], [0, 0]]
    assert cases["maximal lengths"].sparse["plain"].lengths.tolist() == [3] * 4
    assert cases["one long bag"].sparse["raw"].lengths.tolist() == [0, 200, 0]
    weights = [cases[name].sparse["plain"].weights for name in ("zero weights", "weights that add up to zero")]
    assert [None if part is None else part.tolist() for part in weights] == [[0.0] * 6, [1.0, -1.0] * 3]


def test_cases_are_the_same_each_time() -> None:
    first, second = _make(_schema(5, 0, True, 1)), _make(_schema(5, 0, True, 1))
    for one, other in zip(first, second, strict=True):
        assert one.encoded.sparse["raw"].values.tolist() == other.encoded.sparse["raw"].values.tolist()
